//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package files

import "os"

func lock(*os.File) int { return unlockable }

// syncFolder does nothing where folders cannot be synced.
func syncFolder(string) error { return nil }
