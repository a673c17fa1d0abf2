package files

import (
	"errors"
	"runtime/debug"
)

// ErrShrunk is returned where a file was read after it became shorter.
var ErrShrunk = errors.New("read: a file became shorter while it was mapped")

// Guard runs f, which reads what Map mapped, and returns ErrShrunk for the fault that the system
// raises where the file has become shorter than its mapping. f must not hold a lock or otherwise
// mind ending in the middle. Any other panic goes on.
func Guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		r := recover()
		if r == nil {
			return
		}
		if _, fault := r.(interface{ Addr() uintptr }); !fault {
			panic(r)
		}
		err = ErrShrunk
	}()
	return f()
}
