//go:build unix

package main

// #include <fcntl.h>
//
// static int closed;
//
// __attribute__((constructor)) static void look(void) { closed = fcntl(1, F_GETFD) < 0; }
// static int stdout_closed(void) { return closed; }
import "C"

import "os"

// erases reports whether a terminal obeys the sequence that erases a line.
func erases(*os.File) bool { return true }

// stdoutClosed reports whether the process began without a standard output. Only C sees it: Go
// opens /dev/null in place of what is closed before any of its code runs.
func stdoutClosed() bool { return C.stdout_closed() != 0 }
