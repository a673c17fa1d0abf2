//go:build !linux

package check

import "time"

// busyTime knows nothing here.
func busyTime(int) (time.Duration, bool) { return 0, false }
