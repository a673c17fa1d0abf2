//go:build !windows

package vk

import (
	"fmt"
	"syscall"
)

// Close closes a handle that no import took. The zero Handle is none.
func (h Handle) Close() error {
	if h == 0 {
		return nil
	}
	return syscall.Close(int(h))
}

// check demands an open file descriptor, and that it has as many bytes if it tells: drivers that
// keep memory in files may kill a program that maps more.
func (h Handle) check(op string, bytes uint64) error {
	if h == 0 {
		return argument(op, "Handle", "none", "an open file descriptor")
	}
	var s syscall.Stat_t
	if err := syscall.Fstat(int(h), &s); err != nil {
		return argument(op, "Handle", fmt.Sprintf("%d: %v", int(h), err), "an open file descriptor")
	}
	if s.Mode&syscall.S_IFMT == syscall.S_IFREG && uint64(s.Size) < bytes {
		return argument(op, "Handle", fmt.Sprintf("%d bytes", s.Size), "at least %d", bytes)
	}
	return nil
}

// passed is a handle for the driver, which has it once an import succeeded. What drivers do with
// one that they refuse differs, so it is not the caller's.
func (h Handle) passed(op string) (Handle, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Dup(int(h))
	if err != nil {
		return 0, argument(op, "Handle", fmt.Sprintf("%d: %v", int(h), err), "an open file descriptor")
	}
	syscall.CloseOnExec(fd)
	return Handle(fd), nil
}

// refused closes what passed returned, unless the driver has, as Mesa does.
func (h Handle) refused(own Handle) {
	var a, b syscall.Stat_t
	if syscall.Fstat(int(h), &a) == nil && syscall.Fstat(int(own), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino {
		_ = h.Close()
	}
}
