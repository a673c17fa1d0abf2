package cache

import "errors"

// ErrPoolFull: fewer pages are free than were asked for. It arrives wrapped, with both numbers, and
// nothing has changed then.
var ErrPoolFull = errors.New("block pool is full")
