package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// erases reports whether a console obeys the sequence that erases a line, which it has to be asked
// for. Text needs no such care: Go writes UTF-16 to consoles, whatever their code page is.
func erases(f *os.File) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	return windows.GetConsoleMode(h, &mode) == nil &&
		windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// stdoutClosed reports nothing that writing does not: Go opens no file in place of what is closed.
func stdoutClosed() bool { return false }
