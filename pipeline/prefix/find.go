package prefix

import (
	"context"
	"fmt"
	"time"
)

// Find returns how many of a prompt's tokens Open would find, as far as the store says: it asks
// which objects are there and loads none. Who knows another place where the tokens are, such as an
// open session, thus knows which has more of them. A store that Open leaves alone has 0.
//
// Errors: those of the store; context.DeadlineExceeded after Options.Timeout; the context's;
// vk.ErrArgument.
func (k *Keeper) Find(ctx context.Context, tokens []int32) (int, error) {
	if err := k.usable(ctx); err != nil {
		return 0, fmt.Errorf("prefix: find: %w", err)
	}
	if len(tokens) < 2 || time.Now().UnixNano() < k.resting.Load() {
		return 0, nil
	}
	limited, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	c := k.names.chain(tokens[:len(tokens)-1])
	n, err := k.find(limited, c, len(c.tokens)/Block, len(c.tokens)%Block != 0)
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			k.rest()
		}
		return 0, fmt.Errorf("prefix: find: %w", err)
	}
	return n, nil
}

// rest leaves a slow store alone for a while.
func (k *Keeper) rest() { k.resting.Store(time.Now().Add(k.o.Timeout).UnixNano()) }
