package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/vkmla/vkmla/pipeline/internal/pages"
)

const opRestore = "pipeline: restore session"

// Restore makes a session of what Session.Save wrote, in an engine with the same Fingerprint: pages
// may be of other sizes. If this engine's Rewind is less, the session can be truncated by no more
// than that. Everything is read into host memory, about as much as there is to read, and checked
// before the device is used; then steps can run between megabytes.
//
// r has to end where the snapshot does: in front of other data it is an io.LimitReader or an
// io.SectionReader. A program that writes snapshots one after the other has to write their lengths,
// too.
//
// Errors: vk.ErrArgument for a nil r; ErrSnapshot, also for data that ends early or goes on,
// ErrSnapshotVersion and ErrSnapshotModel; other errors of r; ErrSequenceFull for more than
// MaxTokens tokens; ErrTooManySessions, cache.ErrPoolFull; the context's, which is looked at
// between reads; vk.ErrClosed, vk.ErrDeviceLost; those of vk.Device.NewBuffer. After an error, or
// if r panics, nothing has changed.
func (e *Engine) Restore(ctx context.Context, r io.Reader) (*Session, error) {
	if r == nil {
		return nil, badArgument(opRestore, "r", "nil", "a reader")
	}
	s, err := e.restore(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	return s, nil
}

// restore is Restore without arguments to check.
func (e *Engine) restore(ctx context.Context, r io.Reader) (*Session, error) {
	if err := alive(ctx); err != nil {
		return nil, err
	}
	h, data, err := e.readSnapshot(contextReader{ctx, r})
	if err != nil {
		return nil, err
	}
	return e.resume(ctx, h, data)
}

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func unusable(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrSnapshot, fmt.Sprintf(format, a...))
}

// snapshotSlots are a session's slots by the cache where they go.
type snapshotSlots map[*pages.Cache]*slotQueue

// slotQueue has slots in the order of their positions, in pieces as they arrived.
type slotQueue [][]byte

// take fills part with what is first in the queue.
func (q *slotQueue) take(part []byte) {
	for len(part) > 0 {
		n := copy(part, (*q)[0])
		part = part[n:]
		if (*q)[0] = (*q)[0][n:]; len((*q)[0]) == 0 {
			(*q)[0] = nil // its memory is needed no more
			*q = (*q)[1:]
		}
	}
}

// readSnapshot reads a snapshot and checks all of it. It uses no device.
func (e *Engine) readSnapshot(r io.Reader) (h *snapshot, data snapshotSlots, err error) {
	sum := sha256.New()
	summed := io.TeeReader(r, sum)
	if h, err = e.readHead(summed); err != nil {
		return nil, nil, cutShort(err)
	}
	data = snapshotSlots{}
	gone := e.trim(h)
	for i, p := range e.pages.All {
		for _, c := range p.Caches {
			if _, err = io.CopyN(io.Discard, summed, int64(gone[i]*c.SlotBytes())); err == nil {
				data[c], err = readSlots(summed, h.pools[i].slots()*c.SlotBytes())
			}
			if err != nil {
				return nil, nil, cutShort(err)
			}
		}
	}
	want := make([]byte, sha256.Size)
	if _, err = io.ReadFull(r, want); err != nil {
		return nil, nil, cutShort(err)
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, nil, unusable("its checksum is wrong")
	}
	switch _, err := io.ReadFull(r, want[:1]); err {
	case io.EOF:
		return h, data, nil
	case nil:
		return nil, nil, unusable("it goes on behind its end")
	default:
		return nil, nil, err
	}
}

// readHead reads the head of a snapshot and checks it.
func (e *Engine) readHead(r io.Reader) (*snapshot, error) {
	h := &snapshot{pools: make([]snapshotPool, len(e.pages.All))}
	if err := binary.Read(r, le, &h.snapshotMark); err != nil {
		return nil, err
	}
	switch {
	case h.Magic != snapshotMagic:
		return nil, unusable("it does not begin like one")
	case h.Version != snapshotVersion:
		return nil, fmt.Errorf("%w: version %d, this package reads version %d", ErrSnapshotVersion, h.Version, snapshotVersion)
	}
	if err := binary.Read(r, le, &h.snapshotMeta); err != nil {
		return nil, err
	}
	if err := e.checkHeader(&h.snapshotMeta); err != nil {
		return nil, err
	}
	if err := binary.Read(r, le, h.pools); err != nil {
		return nil, err
	}
	return h, e.checkPools(h)
}

// readBytes is the most memory that is made before there are bytes to fill it: the header that says
// how many follow has a checksum that is not known yet.
const readBytes = 1 << 20

func readSlots(r io.Reader, n int) (*slotQueue, error) {
	var q slotQueue
	for n > 0 {
		piece := make([]byte, min(n, readBytes))
		if _, err := io.ReadFull(r, piece); err != nil {
			return nil, err
		}
		q, n = append(q, piece), n-len(piece)
	}
	return &q, nil
}

// cutShort tells the end of the data from a reader's other errors.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return unusable("it is cut short")
	}
	return err
}

// trim leaves out the first slots of a snapshot that a session of the engine would not have:
// those that only serve to truncate it further than Rewind allows here. It returns how many of
// each pool.
func (e *Engine) trim(h *snapshot) []int {
	floor := max(int(h.Floor), int(h.Length)-e.opts.Rewind)
	h.Floor = uint64(floor)
	gone := make([]int, len(e.pages.All))
	for i, p := range e.pages.All {
		first := max(int(h.pools[i].First), p.Oldest(floor))
		gone[i] = first - int(h.pools[i].First)
		h.pools[i].First = uint64(first)
	}
	return gone
}

// checkHeader demands the header of a session that the engine could have.
func (e *Engine) checkHeader(h *snapshotMeta) error {
	differs := h.Model.differs(&e.print)
	switch {
	case differs != "":
		return fmt.Errorf("%w: %s", ErrSnapshotModel, differs)
	case h.Pools != uint64(len(e.pages.All)):
		return unusable("%d pools, want %d", h.Pools, len(e.pages.All))
	case h.Length > uint64(e.opts.MaxTokens):
		return fmt.Errorf("%w: %d tokens, of at most %d", ErrSequenceFull, h.Length, e.opts.MaxTokens)
	case h.Floor > h.Length:
		return unusable("truncatable to %d of %d tokens", h.Floor, h.Length)
	}
	return nil
}

// checkPools demands the slots that a session of that length has.
func (e *Engine) checkPools(h *snapshot) error {
	for i, want := range e.head(int(h.Length), int(h.Floor)).pools {
		if got := h.pools[i]; got != want {
			return unusable("slots %d to %d of %.32q of %d bytes, want %d to %d of %q of %d for %d tokens", got.First, got.Beyond,
				got.name(), got.Bytes, want.First, want.Beyond, want.name(), want.Bytes, h.Length)
		}
	}
	return nil
}

func (p *snapshotPool) name() string { return string(bytes.TrimRight(p.Name[:], "\x00")) }

// resume makes a session of slots. It is not visible elsewhere before all of them are there.
func (e *Engine) resume(ctx context.Context, h *snapshot, data snapshotSlots) (s *Session, err error) {
	lock := lease{e: e}
	if err = lock.take(ctx); err != nil {
		return nil, err
	}
	defer lock.give()
	err = e.device(func() (err error) {
		s, err = e.reserveRestored(ctx, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.eachRun(h, func(c *pages.Cache, run pageRun) error {
		if err := lock.take(ctx); err != nil {
			return err
		}
		n := run.n * c.Stride
		raw := make([]byte, n) // with zeros where there is no slot
		eachPart(c, raw, run.entry, &h.pools[c.Pool.Index], data[c].take)
		err := e.device(func() error {
			to := c.Memory().Rows(run.page, run.page+run.n)
			return e.await(func() error { return to.Upload(ctx, raw) })
		})
		if lock.moved += n; lock.moved >= leaseBytes {
			lock.give()
		}
		return err
	})
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		s.drop()
		return nil, err
	}
	return s, nil
}

// reserveRestored makes a session with pages for the slots of a snapshot.
func (e *Engine) reserveRestored(ctx context.Context, h *snapshot) (*Session, error) {
	// The destination of pending work may have been given up since.
	if err := e.pages.Work(ctx); err != nil {
		return nil, err
	}
	s, err := e.open()
	if err != nil {
		return nil, err
	}
	first := make([]int, len(h.pools))
	for i, p := range e.pages.All {
		first[i], _ = h.pools[i].entries(p.Page)
	}
	if err = s.seq.Resume(ctx, int(h.Length), int(h.Floor), first); err != nil {
		s.drop()
		return nil, err
	}
	return s, nil
}
