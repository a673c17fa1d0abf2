package check

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticks is how many units of /proc/PID/stat a second has, on every system that Go runs on.
const ticks = 100

// busyTime returns what a process took of the processors so far.
func busyTime(pid int) (time.Duration, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// After the name, which may have spaces and ends with ")", user time is the 12th field and
	// system time the 13th.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 13 {
		return 0, false
	}
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err != nil || err2 != nil {
		return 0, false
	}
	return time.Duration(user+system) * time.Second / ticks, true
}
