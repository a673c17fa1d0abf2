package check

import (
	"os"
	"os/exec"
	"syscall"
)

// inherit gives a command that is not yet started a file, and says which handle of its own that
// will be.
func inherit(cmd *exec.Cmd, f *os.File) (uintptr, error) {
	h := syscall.Handle(f.Fd())
	cmd.SysProcAttr = &syscall.SysProcAttr{AdditionalInheritedHandles: []syscall.Handle{h}}
	return uintptr(h), os.NewSyscallError("SetHandleInformation", syscall.SetHandleInformation(h, syscall.HANDLE_FLAG_INHERIT, 1))
}
