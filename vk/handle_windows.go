package vk

import "syscall"

// closeHandle closes a handle that no import took; 0 is none.
func closeHandle(h uintptr) error {
	if h == 0 {
		return nil
	}
	return syscall.CloseHandle(syscall.Handle(h))
}

// checkHandle demands a handle.
func checkHandle(op string, h uintptr, _ uint64) error {
	if h == 0 || syscall.Handle(h) == syscall.InvalidHandle {
		return argument(op, "Handle", "none", "an open handle")
	}
	return nil
}

// passedHandle is the handle itself: drivers open another one of what it names.
func passedHandle(_ string, h uintptr) (uintptr, error) { return h, nil }

func refuseHandle(uintptr, uintptr) {}
