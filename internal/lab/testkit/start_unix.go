//go:build unix

package testkit

import "syscall"

// start replaces this process.
func start(path string, args []string) error { return syscall.Exec(path, args, syscall.Environ()) }
