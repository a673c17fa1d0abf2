package commands

import "context"

// Fill gives each chunk of a step its rows, in the order of their sessions' rows in the block
// tables, as kernels expect, and writes the metadata of the step. bySeat has for every row of the
// block tables the index of its part, or -1. It returns the number of pieces in which rows are
// gathered; blocks of drafts read pages in place.
func (b *Size) Fill(ctx context.Context, bySeat []int, parts []Part, draft bool) (pieces int, err error) {
	d := &b.staged
	start, lens, request, positions, valid := d.queryStart, d.seqLens, d.request, d.positions, d.valid
	at := 0
	for seat, i := range bySeat {
		length := 0
		le.PutUint32(start[4*seat:], uint32(at))
		if i >= 0 {
			x := &parts[i]
			x.First, length = at, x.Length
			for range x.N {
				le.PutUint32(request[4*at:], uint32(seat))
				le.PutUint32(positions[4*at:], uint32(length))
				valid[at] = 1
				length++
				at++
			}
		}
		le.PutUint32(lens[4*seat:], uint32(length))
	}
	le.PutUint32(start[4*len(bySeat):], uint32(at))
	for ; at < b.Tokens; at++ {
		le.PutUint32(request[4*at:], 0)
		le.PutUint32(positions[4*at:], 0)
		valid[at] = 0
	}
	if !draft {
		pieces = b.planRows(bySeat, parts)
	}
	n, err := b.z.cfg.Pages.Updates(ctx, d.updates)
	if err != nil {
		return 0, err
	}
	b.Updates = n
	// The list of updates is the end of what was staged.
	copy(b.host.arena.Whole().Buffer.Mapped(), d.all[:int(b.host.updates.Offset)+4+8*n])
	return pieces, nil
}
