package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/pages"
	"github.com/vkmla/vkmla/pipeline/model"
)

const opSave = "pipeline: save session"

// A snapshot is, all numbers little-endian,
//
//	snapshotHeader
//	for each pool of the engine: snapshotPool
//	for each pool, for each layer that has it, for each of the pool's stores: its slots, one after
//	the other, in the order of their positions
//	SHA-256 of all that
//
// Pages leave no trace: engines with pages of other sizes write the same and read it. Length and
// Floor decide all of the rest but the slots, so a session has one snapshot only.
type snapshotHeader struct {
	snapshotMark
	snapshotMeta
}

// snapshotMark begins a snapshot of any version.
type snapshotMark struct {
	Magic   [8]byte
	Version uint64
}

type snapshotMeta struct {
	Model  Fingerprint
	Length uint64 // tokens
	Floor  uint64 // see pages.Sequence.Floor
	Pools  uint64
}

// snapshotPool describes the section of a pool.
type snapshotPool struct {
	Name   [model.MaxPoolName]byte // padded with zeros
	First  uint64                  // the first slot that is there
	Beyond uint64                  // the one after the last
	Bytes  uint64                  // of a slot in all layers
}

const snapshotVersion = 4

var snapshotMagic = [8]byte{'v', 'k', 'm', 'l', 'a', 's', 'e', 's'}

// snapshot is the head of a snapshot.
type snapshot struct {
	snapshotHeader
	pools []snapshotPool // as pages.Pools.All
}

func (p *snapshotPool) slots() int { return int(p.Beyond - p.First) }

// entries returns the range of a table's entries that hold the slots, in pages of `page` slots.
func (p *snapshotPool) entries(page int) (first, end int) {
	return int(p.First) / page, ceilDiv(int(p.Beyond), page)
}

// Save writes the session's tokens, as the caches hold them, to w. It reads some megabytes at a
// time, for which it waits as Engine.Begin does; in between steps can begin, w may be slow, and the
// session may be changed or closed: Save writes what it was at first, and holds its pages as a fork
// does. What was written after an error, or if w panics, is not a snapshot. The engine's
// Fingerprint is part of it.
//
// Errors: vk.ErrArgument for a nil w; those of w, the context's, vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Save(ctx context.Context, w io.Writer) error {
	if w == nil {
		return badArgument(opSave, "w", "nil", "a writer")
	}
	if err := s.save(ctx, w); err != nil {
		return fmt.Errorf("%s: %w", opSave, err)
	}
	return nil
}

// save is Save without arguments to check.
func (s *Session) save(ctx context.Context, w io.Writer) error {
	lock := lease{e: s.e}
	defer lock.give()
	if err := lock.take(ctx); err != nil {
		return err
	}
	return s.saveNow(ctx, w, &lock)
}

// leaseBytes is the amount that a snapshot moves before a step may run: it takes about as long as a
// step of one token.
const leaseBytes = 4 << 20

// lease is the step lock, given back now and then for steps to run.
type lease struct {
	e     *Engine
	taken bool
	moved int // bytes since it was taken
}

// take takes it, unless it is taken.
func (l *lease) take(ctx context.Context) error {
	if l.taken {
		return nil
	}
	if err := l.e.lockStep(ctx); err != nil {
		return err
	}
	l.taken, l.moved = true, 0
	return nil
}

// give gives it back, if it is taken.
func (l *lease) give() {
	if l.taken {
		l.taken = false
		l.e.unlockStep()
	}
}

// saveNow writes what the session is now. The lease is taken; afterwards it may be given back.
func (s *Session) saveNow(ctx context.Context, w io.Writer, lock *lease) error {
	return s.viewing(ctx, func(v *Session) error { return v.write(ctx, w, lock) })
}

// viewing calls f with a view of what the session is now. The lease is taken.
func (s *Session) viewing(ctx context.Context, f func(v *Session) error) error {
	e := s.e
	v := &Session{e: e}
	err := e.device(func() (err error) {
		// A page that is still to be copied holds what other sessions left there.
		if err = e.pages.Work(ctx); err == nil {
			err = s.usable()
		}
		if err == nil {
			v.seq = s.seq.View()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer func() { // also where f panics
		e.mu.Lock()
		defer e.mu.Unlock()
		v.seq.Cut(0)
	}()
	return f(v)
}

// head describes a session.
func (e *Engine) head(length, floor int) *snapshot {
	h := &snapshot{snapshotHeader: snapshotHeader{snapshotMark{snapshotMagic, snapshotVersion},
		snapshotMeta{e.print, uint64(length), uint64(floor), uint64(len(e.pages.All))}}}
	for _, p := range e.pages.All {
		x := snapshotPool{First: uint64(p.Oldest(floor)), Beyond: uint64(p.Slots(length)), Bytes: p.SlotBytes}
		copy(x.Name[:], p.Name)
		h.pools = append(h.pools, x)
	}
	return h
}

// encode is the head as it is written.
func (h *snapshot) encode() ([]byte, error) {
	data, err := binary.Append(nil, le, h.snapshotHeader)
	if err != nil {
		return nil, err
	}
	return binary.Append(data, le, h.pools)
}

// write writes a view, and gives the lock back whenever it calls w.
func (s *Session) write(ctx context.Context, w io.Writer, lock *lease) error {
	h, sum := s.e.head(s.seq.Seat.Length, s.seq.Floor()), sha256.New()
	var data bytes.Buffer
	var raw []byte
	head, err := h.encode()
	if err != nil {
		return err
	}
	data.Write(head)
	flush := func() error {
		lock.give()
		sum.Write(data.Bytes())
		n, err := w.Write(data.Bytes())
		if err == nil && n < data.Len() {
			err = io.ErrShortWrite
		}
		data.Reset()
		return err
	}
	err = s.eachRun(h, func(c *pages.Cache, run pageRun) error {
		var err error
		if raw, err = s.readRun(ctx, lock, c, run, raw); err != nil {
			return err
		}
		eachPart(c, raw, run.entry, &h.pools[c.Pool.Index], func(part []byte) { data.Write(part) })
		if lock.moved >= leaseBytes {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err == nil {
		_, err = w.Write(sum.Sum(nil))
	}
	return err
}

// readRun reads pages of a cache, into memory that it makes larger if need be.
func (s *Session) readRun(ctx context.Context, lock *lease, c *pages.Cache, run pageRun, raw []byte) ([]byte, error) {
	if err := lock.take(ctx); err != nil {
		return nil, err
	}
	n := run.n * c.Stride
	raw = slices.Grow(raw[:0], n)[:n]
	lock.moved += n
	return raw, s.e.device(func() error {
		from := c.Memory().Rows(run.page, run.page+run.n)
		return s.e.await(func() error { return from.Download(ctx, raw) })
	})
}

// device does what may need the device.
func (e *Engine) device(do func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	return e.note(do())
}

// pageRun is n entries of a table with consecutive pages.
type pageRun struct{ entry, page, n int }

// runBytes bounds the pages that are moved at once, and so the host memory for them. A larger page
// is moved alone.
const runBytes = leaseBytes / 2

// eachRun calls f for all pages of a session in the order of a snapshot.
func (s *Session) eachRun(h *snapshot, f func(c *pages.Cache, run pageRun) error) error {
	for i, t := range s.seq.Tables {
		for _, c := range t.Pool.Caches {
			most := max(1, runBytes/c.Stride)
			for at, end := h.pools[i].entries(t.Pool.Page); at < end; {
				run := pageRun{at, int(t.Entry(at)), 1}
				for at++; at < end && run.n < most && int(t.Entry(at)) == run.page+run.n; at++ {
					run.n++
				}
				if err := f(c, run); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// eachPart calls f for the parts of the slots of a snapshot that lie in some pages of a cache, from
// entry on.
func eachPart(c *pages.Cache, data []byte, entry int, p *snapshotPool, f func(part []byte)) {
	slots := c.Pool.Page
	for ; len(data) > 0; data, entry = data[c.Stride:], entry+1 {
		first, end := max(int(p.First)-entry*slots, 0), min(int(p.Beyond)-entry*slots, slots)
		for slot := first; slot < end; slot++ {
			at := 0
			for _, bytes := range c.Parts {
				f(data[at+slot*bytes:][:bytes])
				at += slots * bytes
			}
		}
	}
}
