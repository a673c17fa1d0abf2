package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/pages"
)

const (
	opSaveSpans    = "pipeline: save spans"
	opRestoreSpans = "pipeline: restore spans"
)

// SaveSpans is for stores of prefixes, such as package pipeline/prefix: it saves a session in
// pieces that other sessions with the same first tokens can share. Span i is what stays of tokens
// at[i] to at[i+1]: the compressed entries and index keys that they complete. With state the last
// one also has what else the next token needs: windows, and states of compressors. Spans that
// follow on each other from 0, the last one with state, are a session for RestoreSpans.
//
// put gets the spans in turn, and may keep them. Meanwhile steps can begin, and the session may be
// changed, as with Save. The bytes name neither their tokens nor their engine, and have no
// checksum: put has to add these.
//
// Errors: vk.ErrArgument for an at that is not ascending or goes beyond Len, a nil put, or a
// session of another engine; ErrRewind for a state to which the session could not be truncated;
// put's, the context's; vk.ErrClosed, vk.ErrDeviceLost.
func (e *Engine) SaveSpans(ctx context.Context, s *Session, at []int, state bool, put func(i int, data []byte) error) error {
	err := checkSpans(opSaveSpans, at)
	switch {
	case err != nil:
	case put == nil:
		err = badArgument(opSaveSpans, "put", "nil", "a function")
	case s == nil || s.e != e:
		err = badArgument(opSaveSpans, "s", "another", "a session of this engine")
	}
	if err != nil {
		return wrap(opSaveSpans, err)
	}
	lock := lease{e: e}
	defer lock.give()
	if err = lock.take(ctx); err == nil {
		err = s.viewing(ctx, func(v *Session) error {
			switch end := at[len(at)-1]; {
			case end > v.seq.Seat.Length:
				return badArgument(opSaveSpans, "at", end, "at most the %d tokens of the session", v.seq.Seat.Length)
			case state && end < v.seq.Floor():
				return fmt.Errorf("%w: the state at %d of %d tokens, there are those from %d on", ErrRewind, end, v.seq.Seat.Length,
					v.seq.Floor())
			}
			return v.writeSpans(ctx, &lock, at, state, put)
		})
	}
	if err != nil {
		return wrap(opSaveSpans, err)
	}
	return nil
}

func checkSpans(op string, at []int) error {
	if len(at) < 2 || at[0] < 0 || !slices.IsSorted(at) {
		return badArgument(op, "at", fmt.Sprintf("%d", at), "two or more numbers of tokens, ascending")
	}
	return nil
}

// span describes the slots of a span as sections of a snapshot.
func (e *Engine) span(from, to int, state bool) *snapshot {
	h := &snapshot{pools: make([]snapshotPool, len(e.pages.All))}
	for i, p := range e.pages.All {
		first, beyond := 0, 0
		switch {
		case p.KeepsAll():
			first, beyond = p.Slots(from), p.Slots(to)
		case state:
			first, beyond = p.Needs(to), p.Slots(to)
		}
		if first < beyond { // else no page is touched
			h.pools[i] = snapshotPool{First: uint64(first), Beyond: uint64(beyond), Bytes: p.SlotBytes}
		}
	}
	return h
}

// bytes returns the number of bytes of slots that follow a head.
func (h *snapshot) bytes() (sum int) {
	for i := range h.pools {
		sum += h.pools[i].slots() * int(h.pools[i].Bytes)
	}
	return sum
}

// writeSpans reads as many spans at a time as a lease allows.
func (s *Session) writeSpans(ctx context.Context, lock *lease, at []int, state bool, put func(i int, data []byte) error) error {
	last := len(at) - 2
	for i := 0; i <= last; {
		j := i + 1
		for j <= last && s.e.span(at[i], at[j+1], state && j == last).bytes() <= leaseBytes {
			j++
		}
		spans, err := s.readSpans(ctx, lock, at[i:j+1], state && j > last)
		if err != nil {
			return err
		}
		lock.give()
		for k, data := range spans {
			if err := put(i+k, data); err != nil {
				return err
			}
		}
		i = j
	}
	return nil
}

// readSpans reads spans, the last one with the state.
func (s *Session) readSpans(ctx context.Context, lock *lease, at []int, state bool) ([][]byte, error) {
	n := len(at) - 1
	h, spans, heads := s.e.span(at[0], at[n], state), make([][]byte, n), make([]*snapshot, n)
	for i := range spans {
		heads[i] = s.e.span(at[i], at[i+1], state && i == n-1)
		spans[i] = make([]byte, 0, heads[i].bytes())
	}
	var raw []byte
	to, left := 0, 0 // the span that gets the next bytes of a cache, and how many
	var of *pages.Cache
	err := s.eachRun(h, func(c *pages.Cache, run pageRun) error {
		var err error
		if raw, err = s.readRun(ctx, lock, c, run, raw); err != nil {
			return err
		}
		if lock.moved >= leaseBytes {
			lock.give()
		}
		if c != of {
			of, to, left = c, -1, 0
		}
		eachPart(c, raw, run.entry, &h.pools[c.Pool.Index], func(part []byte) {
			for left == 0 {
				to++
				left = heads[to].pools[c.Pool.Index].slots() * c.SlotBytes()
			}
			spans[to] = append(spans[to], part...)
			left -= len(part)
		})
		return nil
	})
	return spans, err
}

// RestoreSpans makes a session of at[len(at)-1] tokens from spans that SaveSpans wrote, in an
// engine with the same Fingerprint; pages may be of other sizes. at[0] is 0, and the last span has
// the state. load returns all of them; sizes says of how many bytes each has to be. The caller
// vouches for what is in them. The session can be truncated to none of its tokens only.
//
// Errors: vk.ErrArgument for another at or a nil load; ErrSnapshot for spans of other sizes;
// ErrSequenceFull for more than MaxTokens tokens; load's; ErrTooManySessions, cache.ErrPoolFull;
// the context's; vk.ErrClosed, vk.ErrDeviceLost. After an error nothing has changed.
func (e *Engine) RestoreSpans(ctx context.Context, at []int, load func(sizes []int) ([][]byte, error)) (*Session, error) {
	err := checkSpans(opRestoreSpans, at)
	switch {
	case err != nil:
	case load == nil:
		err = badArgument(opRestoreSpans, "load", "nil", "a function")
	case at[0] != 0:
		err = badArgument(opRestoreSpans, "at[0]", at[0], "0")
	case at[len(at)-1] > e.opts.MaxTokens:
		err = fmt.Errorf("%w: %d tokens, of at most %d", ErrSequenceFull, at[len(at)-1], e.opts.MaxTokens)
	default:
		err = alive(ctx)
	}
	if err == nil {
		var s *Session
		if s, err = e.restoreSpans(ctx, at, load); err == nil {
			return s, nil
		}
	}
	return nil, wrap(opRestoreSpans, err)
}

func (e *Engine) restoreSpans(ctx context.Context, at []int, load func(sizes []int) ([][]byte, error)) (*Session, error) {
	length, heads, sizes := at[len(at)-1], make([]*snapshot, len(at)-1), make([]int, len(at)-1)
	for i := range heads {
		heads[i] = e.span(at[i], at[i+1], i == len(at)-2)
		sizes[i] = heads[i].bytes()
	}
	spans, err := load(sizes)
	if err != nil {
		return nil, err
	}
	if len(spans) != len(sizes) {
		return nil, unusable("%d spans, want %d", len(spans), len(sizes))
	}
	h, data := e.head(length, length), snapshotSlots{}
	for _, p := range e.pages.All {
		for _, c := range p.Caches {
			data[c] = &slotQueue{}
			if !p.KeepsAll() { // slots that are never read
				data[c].add(make([]byte, (p.Needs(length)-p.Oldest(length))*c.SlotBytes()))
			}
		}
	}
	for i, span := range spans {
		if len(span) != sizes[i] {
			return nil, unusable("%d bytes of tokens %d to %d, want %d", len(span), at[i], at[i+1], sizes[i])
		}
		for k, p := range e.pages.All {
			for _, c := range p.Caches {
				n := heads[i].pools[k].slots() * c.SlotBytes()
				data[c].add(span[:n])
				span = span[n:]
			}
		}
	}
	return e.resume(ctx, h, data)
}

// add puts a piece at the end of the queue.
func (q *slotQueue) add(piece []byte) {
	if len(piece) > 0 {
		*q = append(*q, piece)
	}
}
