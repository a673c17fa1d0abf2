//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package files

import (
	"errors"
	"os"
	"syscall"
)

// lock takes the lock of an open file, which ends with the process at the latest. It does not wait.
func lock(f *os.File) int {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return locked
		case errors.Is(err, syscall.EWOULDBLOCK):
			return lockedByOther
		case !errors.Is(err, syscall.EINTR):
			return unlockable
		}
	}
}

// syncFolder makes a new name in a folder last.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) { // as some network file systems say
		return nil
	}
	return err
}
