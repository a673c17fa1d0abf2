package cpu

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/server/weights"
)

const (
	warmPiece = 4 << 20 // bytes that a task of Warm looks at
	page      = 4096    // bytes of the smallest page of a system
	warmers   = 8       // tasks at a time: they wait for the disk
)

// Warm looks at each page of the weights, so that the system has it in memory and in the program's
// tables. Else the first use of an expert costs more than reading it. It takes the disk's time, and
// steps may run beside it.
//
// Errors: the context's; model.ErrCheckpoint where a file became shorter.
func (c *CPU) Warm(ctx context.Context) error {
	var pieces [][]byte
	add := func(list ...*weights.Matrix) {
		for _, m := range list {
			for _, data := range [][]byte{m.Data, m.Scales} {
				for len(data) > 0 {
					n := min(len(data), warmPiece)
					pieces, data = append(pieces, data[:n]), data[n:]
				}
			}
		}
	}
	add(&c.w.Embed, &c.w.Head)
	for i := range c.w.Layers {
		l := &c.w.Layers[i]
		add(&l.AttnHC.Fn, &l.FFNHC.Fn, &l.Gate)
		if i < c.cold {
			continue
		}
		for _, e := range append([]weights.Expert{l.Shared}, l.Experts...) {
			add(&e.W1, &e.W3, &e.W2)
		}
	}
	var seen atomic.Uint32 // what is not used is not read
	var g errgroup.Group
	g.SetLimit(warmers)
	for _, p := range pieces {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return c.w.Read(func() error {
				sum := uint32(0)
				for at := 0; at < len(p); at += page {
					sum += uint32(p[at])
				}
				seen.Add(sum)
				return nil
			})
		})
	}
	return g.Wait()
}
