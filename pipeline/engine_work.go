package pipeline

import (
	"context"
	"errors"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/vk"
)

// pageWork has to be done to pages of a pool, in every layer, before the next step: a copy, for
// which the page that it comes from is held until then, or zeros.
type pageWork struct {
	pool *enginePool
	blocks.PageCopy
	zeros [2]int // slots of the pool, the first and the one after the last; none: a copy
}

// workPages does the pending work, in its order: a page may have changed hands between two of them.
func (e *Engine) workPages(ctx context.Context) error {
	if len(e.pending) == 0 {
		return nil
	}
	err := e.runOnce(ctx, func(rec *vk.Recorder) error {
		for _, x := range e.pending {
			for _, c := range x.pool.caches {
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
	for _, x := range e.pending {
		if x.zeros == [2]int{} {
			err = errors.Join(err, x.pool.ids.Release(x.From))
		}
	}
	e.pending = e.pending[:0]
	return err
}

// dropCopies forgets copies to pages without a holder, the last first: it may hold the page of an
// earlier one.
func (e *Engine) dropCopies() (err error) {
	for i := len(e.pending) - 1; i >= 0; i-- {
		x := e.pending[i]
		if x.zeros == [2]int{} && x.pool.ids.Refs(x.To) == 0 {
			err = errors.Join(err, x.pool.ids.Release(x.From))
			e.pending = slices.Delete(e.pending, i, i+1)
		}
	}
	return err
}

func (x *pageWork) record(rec *vk.Recorder, c *layerCache) error {
	t := c.memory()
	if x.zeros == [2]int{} {
		from, to := int(x.From), int(x.To)
		return rec.Copy(t.Rows(to, to+1).View(), t.Rows(from, from+1).View())
	}
	page := x.pool.Page
	first, end := x.zeros[0], x.zeros[1]/page
	if slot := first % page; slot > 0 {
		v := t.Rows(first/page, first/page+1).View()
		for _, bytes := range c.parts {
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

// blank makes zeros of the session's slots from those of token `from` on, to the end of its last
// pages. Its tables have those slots, in pages that no fork shares.
func (s *Session) blank(from int) {
	for _, t := range s.tables {
		p := t.pool
		at := p.slots(from)
		if at == p.slots(s.at.length) {
			continue // its last page may be shared
		}
		for i := at / p.Page; i < t.Entries(); i++ {
			if t.Entry(i) >= 0 {
				base := int(t.Entry(i)) * p.Page
				s.e.zero(p, base+max(0, at-i*p.Page), base+p.Page)
			}
		}
	}
}

// zero puts slots of a pool, up to the end of a page, on the list of work.
func (e *Engine) zero(p *enginePool, first, end int) {
	if n := len(e.pending); n > 0 {
		if last := &e.pending[n-1]; last.pool == p && last.zeros[1] == first && first > 0 {
			last.zeros[1] = end
			return
		}
	}
	e.pending = append(e.pending, pageWork{pool: p, zeros: [2]int{first, end}})
}
