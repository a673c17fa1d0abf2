package prefix

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vkmla/vkmla/pipeline"
)

// Open makes a session that has the first n of a prompt's tokens already, as many as the store has,
// at most all but the last one: 0 tokens, an empty session, where it has none. What the store fails
// at, or takes too long for, is in Stats and the log, and costs only the time: see Options.Timeout.
// Who opens the same prefix meanwhile waits for the same objects. Tokens are loaded into host
// memory first, about 4 MB for 1,000 of DeepSeek-V4.
//
// Errors: those of pipeline.Engine.Open and pipeline.Engine.RestoreSpans; the context's;
// vk.ErrArgument.
func (k *Keeper) Open(ctx context.Context, tokens []int32) (s *pipeline.Session, n int, err error) {
	if err = k.usable(ctx); err == nil {
		s, err = k.open(ctx, tokens)
	}
	if err == nil && s == nil {
		s, err = k.engine.Open()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("prefix: open: %w", err)
	}
	n = s.Len()
	k.count(func(c *Stats) { c.Asked, c.Found = c.Asked+uint64(len(tokens)), c.Found+uint64(n) })
	return s, n, nil
}

// Parting returns the number of tokens that a prompt shares with others that were kept, up to the
// end of a block, if no session can be opened there for want of a state; else 0. It tells what
// Open, called before, has learnt from the store. A caller that ends a step there and calls
// KeepBlocks spares the tokens to every later prompt that shares them. The end of a block is as
// near as that comes to the place where prompts part: which token is the first other one, names do
// not say.
func (k *Keeper) Parting(tokens []int32) int {
	if len(tokens) < 2 {
		return 0
	}
	c := k.names.chain(tokens[:len(tokens)-1])
	for blocks := len(c.at) - 1; blocks > 0; blocks-- {
		if k.knows(c.span(blocks-1)) != present {
			continue
		}
		if length := blocks * Block; k.knows(c.state(length)) == absent {
			return length
		}
		return 0
	}
	return 0
}

// open makes a session with tokens, nil if there are none.
func (k *Keeper) open(ctx context.Context, tokens []int32) (*pipeline.Session, error) {
	if len(tokens) < 2 || time.Now().UnixNano() < k.resting.Load() {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	c, l := k.names.chain(tokens[:len(tokens)-1]), k.loader()
	defer l.close()
	s, err := k.longest(ctx, limited, c, l)
	switch {
	case err == nil || s != nil:
		return s, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errStore):
		k.o.Log.Warn("a prefix is computed again", "error", err)
		if limited.Err() != nil {
			k.resting.Store(time.Now().Add(k.o.Timeout).UnixNano()) // a slow store is left alone for a while
		}
		return nil, nil
	}
	return nil, err
}

// errStore marks errors that are the store's.
var errStore = errors.New("the store")

// longest tries the lengths that the store has, the greatest first.
func (k *Keeper) longest(ctx, limited context.Context, c *chain, l *loader) (*pipeline.Session, error) {
	end, blocks := len(c.tokens), len(c.tokens)/Block
	whole := end%Block != 0 // all tokens have not been tried
	for {
		length, err := k.find(limited, c, blocks, whole)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errStore, err)
		}
		if length == 0 {
			return nil, nil
		}
		at, names := c.objects(length)
		missing := -1
		s, err := k.engine.RestoreSpans(ctx, at, func(sizes []int) (data [][]byte, err error) {
			data, missing, err = l.all(limited, names, sizes)
			if err != nil {
				err = fmt.Errorf("%w: %w", errStore, err)
			} else if missing >= 0 {
				err = errAbsent
			}
			return data, err
		})
		if missing < 0 {
			return s, err
		}
		// Without this span only shorter prefixes can be had, without this state others.
		if blocks = min(missing, length/Block); length == end && length%Block != 0 {
			whole = false
		} else if missing == len(names)-1 {
			blocks--
		}
	}
}

// objects returns the spans and the state of `length` tokens, and where each begins and ends.
func (c *chain) objects(length int) (at []int, names []digest) {
	for i := range length / Block {
		at, names = append(at, i*Block), append(names, c.span(i))
	}
	return append(at, length/Block*Block, length), append(names, c.state(length))
}

// find returns a length that the store seems to have: of all tokens if whole, else of at most
// `blocks` blocks; 0 for none.
func (k *Keeper) find(ctx context.Context, c *chain, blocks int, whole bool) (int, error) {
	if whole {
		there, err := k.has(ctx, c.state(len(c.tokens)))
		if err != nil || there {
			return len(c.tokens), err
		}
	}
	blocks, err := k.spans(ctx, c, blocks)
	if err != nil {
		return 0, err
	}
	// States are only where one was kept. They are asked for some at a time.
	for blocks > 0 {
		n := min(blocks, k.o.Parallel)
		there, errs := make([]bool, n), make([]error, n)
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() { there[i], errs[i] = k.has(ctx, c.state((blocks-i)*Block)) })
		}
		group.Wait()
		for i := range n {
			if there[i] {
				return (blocks - i) * Block, nil
			}
		}
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
		blocks -= n
	}
	return 0, nil
}

// spans returns the number of first spans that the store has, at most `most`, if none is missing
// among them.
func (k *Keeper) spans(ctx context.Context, c *chain, most int) (int, error) {
	low, high := 0, most+1 // the first low are there, the one before high is not
	for try := most; low+1 < high; try = (low + high) / 2 {
		there, err := k.has(ctx, c.span(try-1))
		if err != nil {
			return 0, err
		}
		if there {
			low = try
		} else {
			high = try
		}
	}
	return low, nil
}
