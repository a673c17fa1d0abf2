package pipeline

import (
	"context"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/tensor"
)

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
			x.first, length = at, e.rows[row].length
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
	used, err := b.fillUpdates(ctx)
	if err != nil {
		return 0, err
	}
	copy(b.host.arena.Whole().Buffer.Mapped(), d.all[:used])
	return pieces, nil
}

// fillUpdates lists the entries of block tables that the device does not have. If there are more
// than a step itself can change, after a fork for instance, they are uploaded now. It returns
// how much of what was staged is in use: the list is the end of it.
func (b *stepSize) fillUpdates(ctx context.Context) (used int, err error) {
	list := b.staged.updates
	n, room := 0, len(list)/8
	for _, x := range b.e.now.changed {
		s, t, p := x.s, x.t, x.t.pool
		from := t.synced
		t.synced = t.Entries()
		for from < t.Entries() && t.Entry(from) < 0 {
			from++ // recycled: no kernel looks at it
		}
		if t.Entries()-from > room-n {
			if err := b.e.await(func() error { return p.upload(ctx, s.row, from, t.Table) }); err != nil {
				return 0, err
			}
			continue
		}
		word := int(p.table.Offset/4) + s.row*p.width
		for ; from < t.Entries(); from++ {
			le.PutUint32(list[4+8*n:], uint32(word+from))
			le.PutUint32(list[8+8*n:], uint32(t.Entry(from)))
			n++
		}
	}
	le.PutUint32(list, uint32(n))
	return int(b.host.updates.Offset) + 4 + 8*n, nil
}

// upload writes the entries of a table from one on to a row of the block table.
func (p *enginePool) upload(ctx context.Context, row, from int, t *blocks.Table) error {
	data := make([]byte, 0, 4*(t.Entries()-from))
	for i := from; i < t.Entries(); i++ {
		data = le.AppendUint32(data, uint32(t.Entry(i)))
	}
	at := p.table.Offset + 4*uint64(row*p.width+from)
	return tensor.Of(p.table.Buffer.View(at, uint64(len(data))), tensor.I32, len(data)/4).Upload(ctx, data)
}
