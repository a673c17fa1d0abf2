package cuts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/pipeline"
)

// promptLengths cuts prompts at random, decodes some tokens, and demands what one pass gives.
func promptLengths(ctx context.Context, l *Lab) error {
	lengths := l.upTo(1, 2, 3, 41, 42, 43, 127, 128, 129, 255, 256, 257, 1003)
	cuts := 1
	if l.o.Size == Full {
		lengths, cuts = append(lengths, 1000, 1001, 1002, 2047, 2048, 2049, 4094, 4095, 4096, 4097), 4
	}
	p, err := l.pass(ctx, 1)
	if err != nil {
		return err
	}
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 2, MaxStep: 64})
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range lengths {
		for range cuts {
			if err := l.prompt(ctx, p, e, n, rng); err != nil {
				return errors.Join(fmt.Errorf("a prompt of %d tokens: %w", n, err), e.Close())
			}
		}
	}
	return e.Close()
}

func (l *Lab) prompt(ctx context.Context, p *pass, e *pipeline.Engine, n int, rng *rand.Rand) error {
	x, err := l.open(e, p.st)
	if err != nil {
		return err
	}
	for x.s.Len() < n {
		if err := x.take(ctx, min(1+rng.IntN(64), n-x.s.Len()), 64); err != nil {
			return err
		}
	}
	if err := x.take(ctx, 6, 1); err != nil {
		return err
	}
	return errors.Join(p.check(ctx, x), x.s.Close())
}
