//go:build !windows

package vk

import (
	"fmt"
	"syscall"
)

// closeHandle closes a handle that no import took; 0 is none.
func closeHandle(h uintptr) error {
	if h == 0 {
		return nil
	}
	return syscall.Close(int(h))
}

// checkHandle demands an open file descriptor, and that it has as many bytes if it tells: drivers
// that keep memory in files may kill a program that maps more.
func checkHandle(op string, h uintptr, bytes uint64) error {
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

// passedHandle is a handle for the driver, which has it once an import succeeded. What drivers do
// with one that they refuse differs, so it is not the caller's.
func passedHandle(op string, h uintptr) (uintptr, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Dup(int(h))
	if err != nil {
		return 0, argument(op, "Handle", fmt.Sprintf("%d: %v", int(h), err), "an open file descriptor")
	}
	syscall.CloseOnExec(fd)
	return uintptr(fd), nil
}

// refuseHandle closes what passedHandle returned, unless the driver has, as Mesa does.
func refuseHandle(h, own uintptr) {
	var a, b syscall.Stat_t
	if syscall.Fstat(int(h), &a) == nil && syscall.Fstat(int(own), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino {
		_ = closeHandle(h)
	}
}
