package pipeline

import "context"

// fill gives each chunk of the step its rows, in the order of their sessions' rows in the block
// tables, as kernels expect, and writes the metadata of the step. It returns the number of pieces
// in which rows are gathered; blocks of drafts read pages in place.
func (b *stepSize) fill(ctx context.Context, draft bool) (pieces int, err error) {
	e, now := b.e, &b.e.now
	d := &b.staged
	start, lens, request, positions, valid := d.queryStart, d.seqLens, d.request, d.positions, d.valid
	at := 0
	for row, i := range now.byRow {
		length := 0
		le.PutUint32(start[4*row:], uint32(at))
		if i >= 0 {
			x := &now.parts[i]
			x.first, length = at, e.pages.Rows[row].Length
			for range x.n {
				le.PutUint32(request[4*at:], uint32(row))
				le.PutUint32(positions[4*at:], uint32(length))
				valid[at] = 1
				length++
				at++
			}
		}
		le.PutUint32(lens[4*row:], uint32(length))
	}
	le.PutUint32(start[4*len(now.byRow):], uint32(at))
	for ; at < b.tokens; at++ {
		le.PutUint32(request[4*at:], 0)
		le.PutUint32(positions[4*at:], 0)
		valid[at] = 0
	}
	if !draft {
		pieces = b.planRows()
	}
	n, err := e.pages.Updates(ctx, d.updates)
	if err != nil {
		return 0, err
	}
	// The list of updates is the end of what was staged.
	copy(b.host.arena.Whole().Buffer.Mapped(), d.all[:int(b.host.updates.Offset)+4+8*n])
	return pieces, nil
}
