//go:build !linux

package rdna

import "errors"

func attach() bool { return false }

type llvm struct{}

func newLLVM(string, int) (*llvm, error) { return nil, errors.New("rdna: only on Linux") }

func (l *llvm) instruction([]uint32) (string, int) { return "", 0 }
