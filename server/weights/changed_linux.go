package weights

import (
	"io/fs"
	"syscall"
)

// changed is the time of the last change of any kind, which programs that set the time of
// modification cannot set.
func changed(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}
