//go:build unix

package check

import (
	"os"
	"os/exec"
)

// inherit gives a command that is not yet started a file, and says which of its own that will be.
func inherit(cmd *exec.Cmd, f *os.File) (uintptr, error) {
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	return uintptr(2 + len(cmd.ExtraFiles)), nil
}
