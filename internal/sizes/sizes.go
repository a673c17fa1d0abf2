// Package sizes reads sizes of memory as they stand on a command line.
package sizes

import (
	"regexp"
	"strconv"
	"strings"
)

// Wanted says what Parse reads.
const Wanted = "a size such as 24GiB or 80GB"

var size = regexp.MustCompile(`(?i)^(\d+(?:\.\d+)?) ?([kmgt]i?)b$`)

var units = map[string]float64{"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}

// Parse returns the bytes of a size with a unit, 1 to 2^60.
func Parse(text string) (bytes uint64, ok bool) {
	f := size.FindStringSubmatch(text)
	if f == nil {
		return 0, false
	}
	x, err := strconv.ParseFloat(f[1], 64)
	x *= units[strings.ToLower(f[2])]
	return uint64(x), err == nil && x >= 1 && x <= 1<<60
}
