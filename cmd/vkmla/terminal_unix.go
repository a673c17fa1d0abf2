//go:build unix

package main

import "os"

// erases reports whether a terminal obeys the sequence that erases a line.
func erases(*os.File) bool { return true }
