package pages

import (
	"context"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/vk"
)

// work is to be done to pages of a pool, in every layer, before they are read: a copy, for
// which the page that it comes from is held until then, or zeros.
type work struct {
	pool *Pool
	blocks.PageCopy
	zeros [2]int // slots of the pool, the first and the one after the last; none: a copy
}

// Work does what is pending, in its order: a page may have changed hands between two of them.
func (ps *Pools) Work(ctx context.Context) error {
	if len(ps.pending) == 0 {
		return nil
	}
	err := ps.cfg.Run(ctx, func(rec *vk.Recorder) error {
		for _, x := range ps.pending {
			for _, c := range x.pool.Caches {
				if err := x.record(rec, c); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, x := range ps.pending {
		if x.zeros == [2]int{} {
			x.pool.IDs.Release(x.From)
		}
	}
	ps.pending = ps.pending[:0]
	return nil
}

// dropCopies forgets copies to pages without a holder, the last first: it may hold the page of an
// earlier one.
func (ps *Pools) dropCopies() {
	for i := len(ps.pending) - 1; i >= 0; i-- {
		x := ps.pending[i]
		if x.zeros == [2]int{} && x.pool.IDs.Refs(x.To) == 0 {
			x.pool.IDs.Release(x.From)
			ps.pending = slices.Delete(ps.pending, i, i+1)
		}
	}
}

func (x *work) record(rec *vk.Recorder, c *Cache) error {
	t := c.Memory()
	if x.zeros == [2]int{} {
		from, to := int(x.From), int(x.To)
		return rec.Copy(t.Rows(to, to+1).View(), t.Rows(from, from+1).View())
	}
	page := x.pool.Page
	first, end := x.zeros[0], x.zeros[1]/page
	if slot := first % page; slot > 0 {
		v := t.Rows(first/page, first/page+1).View()
		for _, bytes := range c.Parts {
			if err := rec.Fill(v.Buffer.View(v.Offset+uint64(slot*bytes), uint64((page-slot)*bytes)), 0); err != nil {
				return err
			}
			v.Offset += uint64(page * bytes)
		}
	}
	if first = ceilDiv(first, page); first == end {
		return nil
	}
	return rec.Fill(t.Rows(first, end).View(), 0)
}

// blank makes zeros of the sequence's slots from those of token `from` on, to the end of its last
// pages. Its tables have those slots, in pages that no fork shares.
func (s *Sequence) blank(from int) {
	for _, t := range s.Tables {
		p := t.Pool
		at := p.Slots(from)
		if at == p.Slots(s.Seat.Length) {
			continue // its last page may be shared
		}
		for i := at / p.Page; i < t.Entries(); i++ {
			if t.Entry(i) >= 0 {
				base := int(t.Entry(i)) * p.Page
				s.ps.zero(p, base+max(0, at-i*p.Page), base+p.Page)
			}
		}
	}
}

// zero puts slots of a pool, up to the end of a page, on the list of work.
func (ps *Pools) zero(p *Pool, first, end int) {
	if n := len(ps.pending); n > 0 {
		if last := &ps.pending[n-1]; last.pool == p && last.zeros[1] == first && first > 0 {
			last.zeros[1] = end
			return
		}
	}
	ps.pending = append(ps.pending, work{pool: p, zeros: [2]int{first, end}})
}
