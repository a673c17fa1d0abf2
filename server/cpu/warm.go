package cpu

import (
	"context"
	"sync/atomic"

	"github.com/vkmla/vkmla/server/weights"
)

// warmPiece is the bytes that a task of Warm looks at, page of them the smallest of a system's.
const (
	warmPiece = 4 << 20
	page      = 4096
)

// Warm looks at each page of the weights, so that the system has it in memory and in the program's
// tables. Else the first use of an expert costs more than reading it. It takes the disk's time.
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
		for _, e := range append([]weights.Expert{l.Shared}, l.Experts...) {
			add(&e.W1, &e.W3, &e.W2)
		}
	}
	var seen atomic.Uint32 // what is not used is not read
	c.pool.Run(len(pieces), func(i int) {
		if ctx.Err() != nil {
			return
		}
		sum := uint32(0)
		for at := 0; at < len(pieces[i]); at += page {
			sum += uint32(pieces[i][at])
		}
		seen.Add(sum)
	})
	return ctx.Err()
}
