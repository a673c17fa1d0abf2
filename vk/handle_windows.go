package vk

import "syscall"

// Close closes a handle that no import took. The zero Handle is none.
func (h Handle) Close() error {
	if h == 0 {
		return nil
	}
	return syscall.CloseHandle(syscall.Handle(h))
}

// check demands a handle.
func (h Handle) check(op string, _ uint64) error {
	if h == 0 || syscall.Handle(h) == syscall.InvalidHandle {
		return argument(op, "Handle", "none", "an open handle")
	}
	return nil
}

// passed is the handle itself: drivers open another one of what it names.
func (h Handle) passed(string) (Handle, error) { return h, nil }

func (h Handle) refused(Handle) {}
