package pages

import (
	"context"
	"encoding/binary"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/tensor"
)

var le = binary.LittleEndian

// Claim asks for the pages of the next N tokens of a sequence; with Draft in the pools of layers
// that draft alone.
type Claim struct {
	Sequence *Sequence
	N        int
	Draft    bool
}

// claim is a table that a claim is about.
type claim struct {
	s *Sequence
	t *Table
}

// Entries returns the most entries of block tables that claims of some tokens in all change: for
// each pool those that the tokens fill, and for each sequence the page that they begin in, which a
// copy may replace, and the page that they end in.
func (ps *Pools) Entries(tokens int) int {
	n := 0
	for _, p := range ps.All {
		n += ceilDiv(tokens, p.Page*p.Tokens) + 2*min(tokens, ps.cfg.MaxSequences)
	}
	return n
}

// Take takes the pages of claims, and does what is pending in pages. It grows the caches if need
// be. The claims of sequences whose length stays within Seat.Quiet may be left out.
func (ps *Pools) Take(ctx context.Context, claims []Claim) error {
	clear(ps.need)
	for _, x := range claims {
		x.Sequence.need(x.Sequence.tables(x.Draft), x.N, ps.need)
	}
	if err := ps.ensure(ctx, ps.need); err != nil {
		return err
	}
	ps.changed = ps.changed[:0]
	var err error
	for _, x := range claims {
		s, tables := x.Sequence, x.Sequence.tables(x.Draft)
		for i := range tables {
			if t := &tables[i]; s.due(t, x.N) {
				t.before = t.synced
				ps.changed = append(ps.changed, claim{s, t})
			}
		}
		if err = s.reserve(tables, x.N); err != nil {
			break
		}
	}
	if err == nil {
		err = ps.Work(ctx)
	}
	if err != nil {
		ps.Undo()
	}
	return err
}

// Updates writes to list the entries of block tables that the device does not have: their number,
// and for each the word in Tables and the page, all u32. If there are more than the list has room
// for, after a fork for instance, they are uploaded now. It returns how many it wrote.
func (ps *Pools) Updates(ctx context.Context, list []byte) (n int, err error) {
	room := len(list) / 8
	for _, x := range ps.changed {
		s, t, p := x.s, x.t, x.t.Pool
		from := t.synced
		t.synced = t.Entries()
		for from < t.Entries() && t.Entry(from) < 0 {
			from++ // recycled: no kernel looks at it
		}
		if t.Entries()-from > room-n {
			if err := ps.cfg.Wait(func() error { return p.upload(ctx, s.Number, from, t.Table) }); err != nil {
				return 0, err
			}
			continue
		}
		word := int(p.Table.Offset/4) + s.Number*p.Width
		for ; from < t.Entries(); from++ {
			le.PutUint32(list[4+8*n:], uint32(word+from))
			le.PutUint32(list[8+8*n:], uint32(t.Entry(from)))
			n++
		}
	}
	le.PutUint32(list, uint32(n))
	return n, nil
}

// upload writes the entries of a table from one on to a row of the block table.
func (p *Pool) upload(ctx context.Context, row, from int, t *blocks.Table) error {
	data := make([]byte, 0, 4*(t.Entries()-from))
	for i := from; i < t.Entries(); i++ {
		data = le.AppendUint32(data, uint32(t.Entry(i)))
	}
	at := p.Table.Offset + 4*uint64(row*p.Width+from)
	return tensor.Of(p.Table.Buffer.View(at, uint64(len(data))), tensor.I32, len(data)/4).Upload(ctx, data)
}

// Changed returns how many tables the last claims were about.
func (ps *Pools) Changed() int { return len(ps.changed) }

// Undo takes back what Take changed. The device may not have seen it.
func (ps *Pools) Undo() {
	for _, x := range ps.changed {
		x.t.synced = x.t.before
	}
	ps.GiveBack()
}

// GiveBack gives back the pages of the last claims.
func (ps *Pools) GiveBack() {
	for _, x := range ps.changed {
		x.s.cutIn(x.t, x.s.Seat.Length)
	}
	ps.dropCopies()
}

// Grown gives back the pages that sequences need no more, now that Seat.Length counts what they
// claimed: after a long claim its own first pages may be among them.
func (ps *Pools) Grown(claims []Claim) {
	for _, x := range claims {
		if x.Sequence.Seat.Length > x.Sequence.Seat.Quiet {
			x.Sequence.recycle()
		}
	}
}

// Advance lengthens a sequence by n tokens that no layer has seen: all that caches hold of them is
// zeros. After an error it may have got some of them.
func (s *Sequence) Advance(ctx context.Context, n int) (err error) {
	ps, from := s.ps, s.Seat.Length
	need := make(counts, len(ps.All))
	for n > 0 && err == nil {
		part := min(n, ps.cfg.MaxStep)
		clear(need)
		s.need(s.Tables, part, need)
		if err = ps.ensure(ctx, need); err != nil {
			break
		}
		if err = s.reserve(s.Tables, part); err != nil {
			break
		}
		s.Seat.Length += part
		n -= part
		s.recycle()
	}
	s.wake() // the device has none of the new entries
	s.blank(from)
	if err == nil {
		err = ps.Work(ctx)
	}
	return err
}
