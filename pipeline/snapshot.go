package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
)

const (
	opSave    = "pipeline: save session"
	opRestore = "pipeline: restore session"
)

// A snapshot is, all numbers little-endian,
//
//	snapshotHeader
//	for each pool of the engine: snapshotPool
//	for each pool, for each layer that has it, for each of the pool's stores: its slots, one after
//	the other, in the order of their positions
//	SHA-256 of all that
//
// Pages leave no trace: engines with pages of other sizes write the same and read it.
type snapshotHeader struct {
	Magic   [8]byte
	Version uint64
	Model   [sha256.Size]byte // of what has to agree
	Length  uint64            // tokens
	Floor   uint64            // see Session.floor
	Pools   uint64
}

// snapshotPool describes the section of a pool.
type snapshotPool struct {
	Name   [model.MaxPoolName]byte // padded with zeros
	First  uint64                  // the first slot that is there
	Beyond uint64                  // the one after the last
	Bytes  uint64                  // of a slot in all layers
}

const snapshotVersion = 3

var snapshotMagic = [8]byte{'v', 'k', 'm', 'l', 'a', 's', 'e', 's'}

// snapshot is the head of a snapshot.
type snapshot struct {
	snapshotHeader
	pools []snapshotPool // as Engine.pools
}

func (p *snapshotPool) slots() int { return int(p.Beyond - p.First) }

// entries are the entries of a table with the slots, in pages of so many.
func (p *snapshotPool) entries(page int) (first, end int) {
	return int(p.First) / page, ceilDiv(int(p.Beyond), page)
}

// fingerprint is a hash of what caches mean: the model, the layers, how slots look.
func (e *Engine) fingerprint() [sha256.Size]byte {
	h, c := sha256.New(), e.cfg
	c.Quantization = "" // of weights
	c.MaxPositions = 0
	c.Layers = slices.Clone(c.Layers)
	for i := range c.Layers {
		pools := slices.Clone(c.Layers[i].Pools)
		for k := range pools {
			pools[k].Page = 0
		}
		c.Layers[i].Pools = pools
	}
	fmt.Fprintf(h, "%+v %v %v", c, e.opts.Keys, e.opts.Hadamard)
	for _, l := range e.layers {
		fmt.Fprintf(h, " %d", l.w.Layer)
	}
	for _, c := range e.caches {
		fmt.Fprintf(h, " %s:%d:%d", c.pool.Name, c.store, c.slotBytes())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Save writes the session's tokens, as the caches hold them, to w. Meanwhile steps can begin, and
// the session may be changed or closed: Save writes what it was at first, and holds its pages as a
// fork does. It reads some megabytes at a time between steps; w may be slow. The snapshot does not
// tell which weights made it.
//
// Errors: vk.ErrArgument for a nil w; those of w, the context's, vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Save(ctx context.Context, w io.Writer) error {
	s = s.orNone()
	e := s.e
	if w == nil {
		return badArgument(opSave, "w", "nil", "a writer")
	}
	lock := lease{e: e}
	defer lock.give()
	err := lock.take(ctx)
	if err == nil {
		err = s.save(ctx, w, &lock)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opSave, err)
	}
	return nil
}

// leaseBytes is how much a snapshot moves before a step may run: it takes about as long as a step
// of one token.
const leaseBytes = 4 << 20

// lease is the step lock, given up now and then for steps to run.
type lease struct {
	e     *Engine
	taken bool
	moved int // bytes since it was taken
}

// take takes the lock, unless it is taken.
func (l *lease) take(ctx context.Context) error {
	if l.taken {
		return nil
	}
	if err := l.e.enter(ctx); err != nil {
		return err
	}
	l.taken, l.moved = true, 0
	return nil
}

// give gives it back, if it is taken.
func (l *lease) give() {
	if l.taken {
		l.taken = false
		l.e.leave()
	}
}

// view returns a fork without a row, which keeps the pages while they are read.
func (s *Session) view() (*Session, error) {
	if err := s.free(); err != nil {
		return nil, err
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	v := &Session{e: s.e, at: &rowState{length: s.at.length}, floor: s.lowest()}
	for _, t := range s.tables {
		shared, err := t.Fork()
		if err != nil {
			return nil, errors.Join(err, v.cut(0))
		}
		v.tables = append(v.tables, sessionTable{Table: shared, pool: t.pool})
	}
	return v, nil
}

// save writes what the session is now. The lock is taken; afterwards it may be given back.
func (s *Session) save(ctx context.Context, w io.Writer, lock *lease) (err error) {
	e := s.e
	var v *Session
	err = e.device(func() (err error) {
		// A page that is still to be copied holds what other sessions left there.
		if err = e.workPages(ctx); err == nil {
			v, err = s.view()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer func() { // also where w panics
		e.mu.Lock()
		defer e.mu.Unlock()
		err = errors.Join(err, v.cut(0))
	}()
	return v.write(ctx, w, lock)
}

// head describes a session.
func (s *Session) head() *snapshot {
	h := &snapshot{snapshotHeader: snapshotHeader{Magic: snapshotMagic, Version: snapshotVersion, Model: s.e.fingerprint(),
		Length: uint64(s.at.length), Floor: uint64(s.floor), Pools: uint64(len(s.tables))}}
	for _, t := range s.tables {
		p := snapshotPool{First: uint64(t.pool.oldest(s.floor)), Beyond: uint64(t.Len()), Bytes: t.pool.slot}
		copy(p.Name[:], t.pool.Name)
		h.pools = append(h.pools, p)
	}
	return h
}

// write writes a view, and gives the lock back whenever it calls w.
func (s *Session) write(ctx context.Context, w io.Writer, lock *lease) error {
	e, h, sum := s.e, s.head(), sha256.New()
	var data bytes.Buffer
	var pages []byte
	if err := errors.Join(binary.Write(&data, le, h.snapshotHeader), binary.Write(&data, le, h.pools)); err != nil {
		return err
	}
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
	err := s.eachRun(h, func(c *layerCache, run pageRun) error {
		if err := lock.take(ctx); err != nil {
			return err
		}
		n := run.n * c.stride
		pages = slices.Grow(pages[:0], n)[:n]
		err := e.device(func() error {
			from := c.memory().Rows(run.page, run.page+run.n)
			return e.await(func() error { return from.Download(ctx, pages) })
		})
		if err != nil {
			return err
		}
		c.eachPart(pages, run.entry, &h.pools[c.pool.index], func(part []byte) { data.Write(part) })
		if lock.moved += n; lock.moved >= leaseBytes {
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
func (s *Session) eachRun(h *snapshot, f func(c *layerCache, run pageRun) error) error {
	for i, t := range s.tables {
		for _, c := range t.pool.caches {
			most := max(1, runBytes/c.stride)
			for at, end := h.pools[i].entries(t.pool.Page); at < end; {
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

// eachPart calls f for the parts of the slots of a snapshot that lie in some pages, from entry on.
func (c *layerCache) eachPart(pages []byte, entry int, p *snapshotPool, f func(part []byte)) {
	slots := c.pool.Page
	for ; len(pages) > 0; pages, entry = pages[c.stride:], entry+1 {
		first, end := max(int(p.First)-entry*slots, 0), min(int(p.Beyond)-entry*slots, slots)
		for slot := first; slot < end; slot++ {
			at := 0
			for _, bytes := range c.parts {
				f(pages[at+slot*bytes:][:bytes])
				at += slots * bytes
			}
		}
	}
}

// Restore makes a session of what Session.Save wrote, in an engine with the same model, layers and
// options of indexer keys; its pages may be of other sizes. That the weights are the same is up to
// the caller. If this engine's Rewind is less, the session can be truncated by no more than that.
// Everything is read into host memory and checked before the device is used; then steps can run
// between megabytes.
//
// Errors: vk.ErrArgument for a nil r; ErrSnapshot, also for data that ends early, and
// ErrSnapshotVersion; other errors of r; ErrSequenceFull for more than MaxTokens tokens;
// ErrTooManySessions, cache.ErrPoolFull; the context's; vk.ErrClosed, vk.ErrDeviceLost; those of
// vk.Device.NewBuffer. After an error nothing has changed.
func (e *Engine) Restore(ctx context.Context, r io.Reader) (*Session, error) {
	if r == nil {
		return nil, badArgument(opRestore, "r", "nil", "a reader")
	}
	err := alive(ctx)
	if e = e.orNone(); e == noEngine {
		err = e.usable()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	h, data, err := e.readSnapshot(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	s, err := e.restore(ctx, h, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	return s, nil
}

func unusable(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrSnapshot, fmt.Sprintf(format, a...))
}

// snapshotSlots are a session's slots by the cache where they go, in the order of their positions.
type snapshotSlots map[*layerCache][]byte

// readSnapshot reads a snapshot and checks all of it.
func (e *Engine) readSnapshot(r io.Reader) (h *snapshot, data snapshotSlots, err error) {
	sum := sha256.New()
	if h, err = e.readHead(r, sum); err != nil {
		return nil, nil, err
	}
	data = snapshotSlots{}
	gone := e.trim(h)
	for i, p := range e.pools {
		for _, c := range p.caches {
			if _, err = io.CopyN(sum, r, int64(gone[i]*c.slotBytes())); err == nil {
				data[c], err = readSlots(r, h.pools[i].slots()*c.slotBytes(), sum)
			}
			if err != nil {
				return nil, nil, cutShort(err)
			}
		}
	}
	want := make([]byte, sha256.Size)
	got := sum.Sum(nil)
	if err = readAll(r, want, nil); err == nil && !bytes.Equal(got, want) {
		err = unusable("its checksum is wrong")
	}
	return h, data, err
}

// readHead reads the head of a snapshot and checks it.
func (e *Engine) readHead(r io.Reader, sum hash.Hash) (*snapshot, error) {
	h := &snapshot{pools: make([]snapshotPool, len(e.pools))}
	read := func(to any) error {
		raw := make([]byte, binary.Size(to))
		if err := readAll(r, raw, sum); err != nil {
			return err
		}
		_, err := binary.Decode(raw, le, to)
		return err
	}
	// The older format begins with the magic and the version, too.
	begin := struct {
		Magic   [8]byte
		Version uint64
	}{}
	if err := read(&begin); err != nil {
		return nil, err
	}
	switch {
	case begin.Magic != snapshotMagic:
		return nil, unusable("it does not begin like one")
	case begin.Version != snapshotVersion:
		return nil, fmt.Errorf("%w: version %d, this package reads version %d", ErrSnapshotVersion, begin.Version, snapshotVersion)
	}
	rest := struct {
		Model                [sha256.Size]byte
		Length, Floor, Pools uint64
	}{}
	if err := read(&rest); err != nil {
		return nil, err
	}
	h.snapshotHeader = snapshotHeader{begin.Magic, begin.Version, rest.Model, rest.Length, rest.Floor, rest.Pools}
	if err := e.checkHeader(&h.snapshotHeader); err != nil {
		return nil, err
	}
	if err := read(h.pools); err != nil {
		return nil, err
	}
	return h, e.checkPools(h)
}

func readAll(r io.Reader, to []byte, sum hash.Hash) error {
	if _, err := io.ReadFull(r, to); err != nil {
		return cutShort(err)
	}
	if sum != nil {
		sum.Write(to)
	}
	return nil
}

// readSlots reads n bytes into memory that grows with what arrives: n comes from a header whose
// checksum is not known yet.
func readSlots(r io.Reader, n int, sum hash.Hash) ([]byte, error) {
	data := make([]byte, 0, min(n, 1<<20))
	for len(data) < n {
		if len(data) == cap(data) {
			data = append(make([]byte, 0, min(n, 2*len(data))), data...)
		}
		from := len(data)
		data = data[:cap(data)]
		if err := readAll(r, data[from:], sum); err != nil {
			return nil, err
		}
	}
	return data, nil
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
	gone := make([]int, len(e.pools))
	for i, p := range e.pools {
		first := max(int(h.pools[i].First), p.oldest(floor))
		gone[i] = first - int(h.pools[i].First)
		h.pools[i].First = uint64(first)
	}
	return gone
}

// checkHeader demands the header of a session that the engine could have.
func (e *Engine) checkHeader(h *snapshotHeader) error {
	switch {
	case h.Model != e.fingerprint() || h.Pools != uint64(len(e.pools)):
		return unusable("it is of another model, other layers or options")
	case h.Length > uint64(e.opts.MaxTokens):
		return fmt.Errorf("%w: %d tokens, of at most %d", ErrSequenceFull, h.Length, e.opts.MaxTokens)
	case h.Floor > h.Length:
		return unusable("truncatable to %d of %d tokens", h.Floor, h.Length)
	}
	return nil
}

// checkPools demands the slots that a session of that length has.
func (e *Engine) checkPools(h *snapshot) error {
	for i, p := range e.pools {
		x := &h.pools[i]
		if name := string(bytes.TrimRight(x.Name[:], "\x00")); name != p.Name || x.Bytes != p.slot {
			return unusable("slots of %.32q of %d bytes, want %q of %d", name, x.Bytes, p.Name, p.slot)
		}
		if x.Beyond != uint64(p.slots(int(h.Length))) || x.First > uint64(p.oldest(int(h.Floor))) {
			return unusable("%s: slots %d to %d for %d tokens", p.Name, x.First, x.Beyond, h.Length)
		}
	}
	return nil
}

// restore makes a session of slots. Nobody else knows it before all of them are there.
func (e *Engine) restore(ctx context.Context, h *snapshot, data snapshotSlots) (s *Session, err error) {
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
	err = s.eachRun(h, func(c *layerCache, run pageRun) error {
		if err := lock.take(ctx); err != nil {
			return err
		}
		n := run.n * c.stride
		pages := make([]byte, n) // with zeros where there is no slot
		c.eachPart(pages, run.entry, &h.pools[c.pool.index], func(part []byte) { data[c] = data[c][copy(part, data[c]):] })
		err := e.device(func() error {
			to := c.memory().Rows(run.page, run.page+run.n)
			return e.await(func() error { return to.Upload(ctx, pages) })
		})
		if lock.moved += n; lock.moved >= leaseBytes {
			lock.give()
		}
		return err
	})
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		return nil, errors.Join(err, s.drop())
	}
	return s, nil
}

// reserveRestored makes a session with pages for the slots of a snapshot.
func (e *Engine) reserveRestored(ctx context.Context, h *snapshot) (*Session, error) {
	// The destination of pending work may have been given up since.
	if err := e.workPages(ctx); err != nil {
		return nil, err
	}
	pages := make(pageCounts, len(e.pools))
	for i := range pages {
		first, end := h.pools[i].entries(e.pools[i].Page)
		pages[i] = end - first
	}
	s, err := e.open()
	if err != nil {
		return nil, err
	}
	err = e.ensure(ctx, pages)
	s.at.length, s.floor = int(h.Length), int(h.Floor)
	for i, t := range s.tables {
		if err == nil {
			first, _ := h.pools[i].entries(t.pool.Page)
			err = t.Resume(t.pool.slots(s.at.length), first)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.drop())
	}
	return s, nil
}
