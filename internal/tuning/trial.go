package tuning

import (
	"os"
	"strconv"
	"strings"
)

// Trial is the number of a word of VKX, as whole=3,parts=1; 0 where it has none.
func Trial(name string) int {
	for _, w := range strings.Split(os.Getenv("VKX"), ",") {
		if k, v, ok := strings.Cut(w, "="); ok && k == name {
			n, err := strconv.Atoi(v)
			if err != nil {
				panic(err)
			}
			return n
		}
	}
	return 0
}
