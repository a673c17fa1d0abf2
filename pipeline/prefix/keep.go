package prefix

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Keep stores what a session remembers of a prompt: a span for each whole block that the store does
// not have, the state after the last of them, and the state after all tokens but the last, so that
// the same prompt has only one token to compute. The session has these tokens, and perhaps more, or
// all but the last. Of the states it can store those that the session could be truncated to: with
// EngineOptions.Rewind of at least Block both, if Keep is called right after the prompt.
//
// It reads the session between steps, and other goroutines may change the session once the first
// step begins: so fork it, or call Keep before the next one.
//
// Errors: vk.ErrArgument for a session with fewer tokens; pipeline.ErrRewind where neither state
// can be had; those of pipeline.Engine.SaveSpans and of the store; context.DeadlineExceeded after
// Options.Timeout. Then some objects may be there; others are found missing later.
func (k *Keeper) Keep(ctx context.Context, s *pipeline.Session, tokens []int32) error {
	return k.keep(ctx, s, tokens, true)
}

// KeepBlocks stores the spans of whole blocks and the state after the last one: what other prompts
// with the same beginning, or a longer one, can use. It is for the middle of prompts and answers.
// Else it is like Keep.
func (k *Keeper) KeepBlocks(ctx context.Context, s *pipeline.Session, tokens []int32) error {
	return k.keep(ctx, s, tokens, false)
}

func (k *Keeper) keep(ctx context.Context, s *pipeline.Session, tokens []int32, end bool) error {
	err := k.usable(ctx)
	if err == nil {
		have, n := s.Len(), len(tokens)
		if have < n-1 || have < n && !end {
			err = &vk.ArgumentError{Op: "prefix: keep", Arg: "tokens", Got: fmt.Sprint(n), Want: fmt.Sprintf("the session's %d", have)}
		} else {
			ctx, cancel := context.WithTimeout(ctx, k.o.Timeout)
			defer cancel()
			err = k.keepAll(ctx, s, k.names.chain(tokens), min(have, n), end)
		}
	}
	if err != nil {
		return fmt.Errorf("prefix: keep: %w", err)
	}
	return nil
}

// keepAll stores states first: they are gone when the session goes on.
func (k *Keeper) keepAll(ctx context.Context, s *pipeline.Session, c *chain, have int, end bool) error {
	blocks := have / Block
	var states []int
	if blocks > 0 {
		states = append(states, blocks*Block)
	}
	if last := len(c.tokens) - 1; end && last > 0 && last%Block != 0 {
		states = append(states, last)
	}
	mine := &claims{k: k}
	defer mine.release()
	var rewind error
	kept := 0
	for _, length := range states {
		err := k.keepState(ctx, s, c, length, mine)
		if errors.Is(err, pipeline.ErrRewind) {
			rewind = err
			continue
		}
		if err != nil {
			return err
		}
		kept++
	}
	if kept == 0 {
		return rewind
	}
	return k.keepSpans(ctx, s, c, blocks, mine)
}

func (k *Keeper) keepState(ctx context.Context, s *pipeline.Session, c *chain, length int, mine *claims) error {
	name := c.state(length)
	there, err := k.has(ctx, name)
	if err != nil || !k.lacks(name, there) || !mine.claim(name) {
		return err
	}
	at := []int{length / Block * Block, length}
	return k.engine.SaveSpans(ctx, s, at, true, func(_ int, data []byte) error { return k.put(ctx, name, data) })
}

// keepSpans stores the spans of the first blocks that the store does not have.
func (k *Keeper) keepSpans(ctx context.Context, s *pipeline.Session, c *chain, blocks int, mine *claims) error {
	there, err := k.spans(ctx, c, blocks)
	if err != nil {
		return err
	}
	for i := 0; i < blocks; {
		if !k.lacks(c.span(i), i < there) || !mine.claim(c.span(i)) {
			i++
			continue
		}
		at := []int{i * Block, (i + 1) * Block}
		for i++; i < blocks && k.lacks(c.span(i), i < there) && mine.claim(c.span(i)); i++ {
			at = append(at, (i+1)*Block)
		}
		if err := k.putSpans(ctx, s, c, at); err != nil {
			return err
		}
	}
	return nil
}

// putSpans stores spans that follow on each other, several at a time.
func (k *Keeper) putSpans(ctx context.Context, s *pipeline.Session, c *chain, at []int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	slots := make(chan struct{}, k.o.Parallel) // bounds what waits in memory
	err := k.engine.SaveSpans(ctx, s, at, false, func(i int, data []byte) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		group.Go(func() {
			defer func() { <-slots }()
			if err := k.put(ctx, c.span(at[i]/Block), data); err != nil {
				cancel(err) // the first error ends the others
			}
		})
		return nil
	})
	group.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
