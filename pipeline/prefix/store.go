package prefix

import (
	"context"
	"errors"
)

// Store keeps objects under names of 64 hexadecimal digits. Whoever puts an object under a name
// that is taken puts the same bytes there, unless the old ones were damaged. An object appears
// whole or not at all; what a store forgets is computed again. All methods may be called from many
// goroutines. Those that wait end when their context does.
type Store interface {
	// Get returns an object of at most `most` bytes. Errors: fs.ErrNotExist, perhaps wrapped, where
	// there is none; ErrDamaged for a larger one and for what is no object; others are failures of
	// the store.
	Get(ctx context.Context, name string, most int) ([]byte, error)

	// Has reports whether there is an object, whatever is in it.
	Has(ctx context.Context, name string) (bool, error)

	// Put keeps an object. It must not change data, or use it after it returned.
	Put(ctx context.Context, name string, data []byte) error
}

// ErrDamaged: an object is not what was put.
var ErrDamaged = errors.New("the object is damaged")
