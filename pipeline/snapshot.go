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

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opSave    = "pipeline: save session"
	opRestore = "pipeline: restore session"
)

// ErrSnapshot is matched by the error for data that no session can be restored from: not
// of Session.Save, of another version or model, damaged, or cut short.
var ErrSnapshot = errors.New("not a usable snapshot")

// A snapshot is, all numbers little-endian,
//
//	snapshotHeader
//	for each layer, in the engine's order: for each sort of pages that it has, and each
//	of its pools of that sort: the pages in the order of their positions
//	SHA-256 of all that
//
// Slots that no token has, and what pads a page, are zeros.
type snapshotHeader struct {
	Magic       [8]byte
	Version     uint64
	Model       [sha256.Size]byte // of what has to agree
	Length      uint64            // tokens
	Floor       uint64            // see Session.floor
	FirstPage   [poolCount]uint64 // of each sort, the first that is there
	BeyondPages [poolCount]uint64 // and the first after those
}

const snapshotVersion = 1

var snapshotMagic = [8]byte{'v', 'k', 'm', 'l', 'a', 's', 'e', 's'}

// fingerprint is a hash of what caches mean: the model, the layers, how pages look.
func (e *Engine) fingerprint() [sha256.Size]byte {
	h, c := sha256.New(), e.cfg
	c.Quantization = "" // of weights
	c.MaxPositions = 0
	fmt.Fprintf(h, "%+v %v %v", c, e.opts.Keys, e.opts.Hadamard)
	for _, l := range e.layers {
		fmt.Fprintf(h, " %d", l.w.Layer)
		for sort := range poolCount {
			for k := range l.pools(sort) {
				fmt.Fprintf(h, " %d:%d:%d", sort, e.pools[sort].page, l.stride(sort, k))
			}
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Save writes the session's tokens, as the caches hold them, to w. Steps can begin
// meanwhile, of this session, too, and it may be changed or closed: what is written is what
// it was at first. Only to read some megabytes at a time it waits for a step in progress,
// and steps for it; w may be slow. The weights are not part of it, nor is anything that
// tells which they were.
//
// Until Save returns it holds the session's pages, as a fork does.
//
// Errors: vk.ErrArgument for a nil w; those of w, the context's, vk.ErrClosed, vk.ErrDeviceLost.
func (s *Session) Save(ctx context.Context, w io.Writer) error {
	e := s.e
	if w == nil {
		return &vk.ArgumentError{Op: opSave, Arg: "w", Got: "nil", Want: "a writer"}
	}
	turn := turns{e: e}
	defer turn.give()
	err := turn.take(ctx)
	if err == nil {
		err = s.save(ctx, w, &turn)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opSave, err)
	}
	return nil
}

// turnBytes is how much a snapshot moves before others have their turn: about as long as
// a step of one token takes.
const turnBytes = 4 << 20

// turns is a turn that is given to others now and then.
type turns struct {
	e     *Engine
	taken bool
	moved int // bytes since it was taken
}

// take takes the turn, unless it is taken.
func (t *turns) take(ctx context.Context) error {
	if t.taken {
		return nil
	}
	if err := t.e.enter(ctx); err != nil {
		return err
	}
	t.taken, t.moved = true, 0
	return nil
}

// give gives it to others. It does nothing if it was not taken.
func (t *turns) give() {
	if t.taken {
		t.taken = false
		t.e.leave()
	}
}

// view returns a fork that has no row: it keeps the pages while they are read.
func (s *Session) view() (*Session, error) {
	if err := s.free(); err != nil {
		return nil, err
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	v := &Session{e: s.e, at: &seat{length: s.at.length}, floor: s.lowest()}
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		var err error
		if v.tables[i], err = t.Fork(); err != nil {
			return nil, errors.Join(err, v.cut(0))
		}
	}
	return v, nil
}

// save writes what the session is now. The turn is taken, and need not be at the end.
func (s *Session) save(ctx context.Context, w io.Writer, turn *turns) error {
	e := s.e
	var v *Session
	err := e.device(func() (err error) {
		// What other sessions left in a page that was to be copied has no place here.
		if err = e.copyPages(ctx); err == nil {
			v, err = s.view()
		}
		return err
	})
	if err != nil {
		return err
	}
	err = v.write(ctx, w, turn)
	e.mu.Lock()
	defer e.mu.Unlock()
	return errors.Join(err, v.cut(0))
}

// header describes a session.
func (s *Session) header() snapshotHeader {
	h := snapshotHeader{Magic: snapshotMagic, Version: snapshotVersion, Model: s.e.fingerprint(), Length: uint64(s.at.length), Floor: uint64(s.floor)}
	for i, t := range s.tables {
		if t == nil {
			continue
		}
		first := 0
		for first < t.Entries() && t.Entry(first) < 0 {
			first++
		}
		h.FirstPage[i], h.BeyondPages[i] = uint64(first), uint64(t.Entries())
	}
	return h
}

// write writes a view, and gives the turn away whenever it does.
func (s *Session) write(ctx context.Context, w io.Writer, turn *turns) error {
	e, h, sum := s.e, s.header(), sha256.New()
	var data bytes.Buffer
	if err := binary.Write(&data, binary.LittleEndian, h); err != nil {
		return err
	}
	flush := func() error {
		turn.give()
		sum.Write(data.Bytes())
		n, err := w.Write(data.Bytes())
		if err == nil && n < data.Len() {
			err = io.ErrShortWrite
		}
		data.Reset()
		return err
	}
	err := e.eachRun(s, &h, func(l *engineLayer, sort, k int, run pageRun) error {
		if err := turn.take(ctx); err != nil {
			return err
		}
		at, n := data.Len(), run.n*l.stride(sort, k)
		data.Write(make([]byte, n))
		pages := data.Bytes()[at:]
		if err := e.device(func() error { return l.pools(sort)[k].Rows(run.page, run.page+run.n).Download(ctx, pages) }); err != nil {
			return err
		}
		l.blank(sort, k, pages, run.entry, s.tables[sort].Len(), e.pools[sort].page)
		if turn.moved += n; turn.moved >= turnBytes {
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

// device does what needs the device, so that Close waits for it.
func (e *Engine) device(do func() error) error {
	e.run.Lock()
	defer e.run.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	return e.note(do())
}

// pageRun is n entries of a table, from one on, whose pages follow each other.
type pageRun struct{ entry, page, n int }

// maxRun bounds how many pages are moved at once, and with it host memory.
const maxRun = 64

// eachRun calls f for all pages of a session in the order of a snapshot.
func (e *Engine) eachRun(s *Session, h *snapshotHeader, f func(l *engineLayer, sort, k int, run pageRun) error) error {
	for _, l := range e.layers {
		for sort := range poolCount {
			t := s.tables[sort]
			for k := range l.pools(sort) {
				for at, end := int(h.FirstPage[sort]), int(h.BeyondPages[sort]); at < end; {
					run := pageRun{at, int(t.Entry(at)), 1}
					for at++; at < end && run.n < maxRun && int(t.Entry(at)) == run.page+run.n; at++ {
						run.n++
					}
					if err := f(l, sort, k, run); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// blank clears what of some pages, from entry on, belongs to no slot below length: other
// sessions' tokens may have been there.
func (l *engineLayer) blank(sort, k int, pages []byte, entry, length, slots int) {
	stride := l.stride(sort, k)
	for ; len(pages) > 0; pages, entry = pages[stride:], entry+1 {
		used := min(max(length-entry*slots, 0), slots)
		at := 0
		for _, bytes := range l.slotParts(sort, k) {
			clear(pages[at+used*bytes : at+slots*bytes])
			at += slots * bytes
		}
		clear(pages[at:stride])
	}
}

// stride is the bytes of a page.
func (l *engineLayer) stride(sort, k int) int {
	c := &l.caches
	switch {
	case sort == poolWindow:
		return c.Window.Layout.Stride
	case sort == poolC4AState && k == 1:
		return c.IndexState.Layout.Stride
	case sort == poolC4AState || sort == poolC128AState:
		return c.State.Layout.Stride
	case sort == poolC4A && k == 1:
		return c.Keys.Layout.Stride
	}
	return c.Compressed.Layout.Stride
}

// slotParts are the bytes of a slot's parts: a page has the first part of all its slots,
// then the second.
func (l *engineLayer) slotParts(sort, k int) []int {
	switch {
	case sort == poolC4AState && k == 1:
		return []int{l.caches.IndexState.Layout.SlotBytes()}
	case sort == poolC4AState || sort == poolC128AState:
		return []int{l.caches.State.Layout.SlotBytes()}
	case sort == poolC4A && k == 1:
		return []int{l.caches.Keys.Layout.Format.RowBytes(), cache.IndexScaleBytes}
	}
	return []int{cache.RowBytes, cache.ScaleBytes}
}

// Restore makes a session of what Session.Save wrote, by an engine of the same model,
// layers and options of indexer keys; that the weights are the same is for the caller to
// see to. Where this engine's Rewind is less, the session can be truncated by no more than
// that. All of it is read and checked, in host memory, before anything is done on the
// device; steps can begin between any megabytes that go there.
//
// Errors: vk.ErrArgument for a nil r; ErrSnapshot; ErrSequenceFull for more tokens than MaxTokens; those of r, but
// that its end is ErrSnapshot; ErrTooManySessions, cache.ErrPoolFull; the context's,
// vk.ErrClosed, vk.ErrDeviceLost; those of vk.Device.NewBuffer. Then nothing has changed.
func (e *Engine) Restore(ctx context.Context, r io.Reader) (*Session, error) {
	if r == nil {
		return nil, &vk.ArgumentError{Op: opRestore, Arg: "r", Got: "nil", Want: "a reader"}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	h, data, err := e.readSnapshot(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	s, err := e.restore(ctx, &h, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRestore, err)
	}
	return s, nil
}

func unusable(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrSnapshot, fmt.Sprintf(format, a...))
}

// snapshotPages are a session's pages by the pool where they go, in the order of their
// positions. Pools are only named here: while a snapshot is read, they may be replaced
// by larger ones.
type snapshotPages map[*tensor.Tensor][]byte

// readSnapshot reads a snapshot and checks all of it.
func (e *Engine) readSnapshot(r io.Reader) (h snapshotHeader, data snapshotPages, err error) {
	sum, data := sha256.New(), snapshotPages{}
	raw := make([]byte, binary.Size(h))
	if err = readAll(r, raw, sum); err != nil {
		return h, nil, err
	}
	if err = binary.Read(bytes.NewReader(raw), binary.LittleEndian, &h); err != nil {
		return h, nil, err
	}
	if err = e.checkHeader(&h); err != nil {
		return h, nil, err
	}
	gone := e.trim(&h)
	for _, l := range e.layers {
		for sort := range poolCount {
			for k, t := range l.pools(sort) {
				stride := l.stride(sort, k)
				if _, err = io.CopyN(sum, r, int64(gone[sort]*stride)); err == nil {
					data[t], err = readPages(r, int(h.BeyondPages[sort]-h.FirstPage[sort])*stride, sum)
				}
				if err != nil {
					return h, nil, cutShort(err)
				}
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

func readAll(r io.Reader, to []byte, sum hash.Hash) error {
	if _, err := io.ReadFull(r, to); err != nil {
		return cutShort(err)
	}
	if sum != nil {
		sum.Write(to)
	}
	return nil
}

// readPages reads n bytes into memory that grows with what comes: n is what a header
// says, whose checksum is at the end.
func readPages(r io.Reader, n int, sum hash.Hash) ([]byte, error) {
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

// trim makes of a header what a session of the engine has: of one that could be truncated
// further than Rewind allows here, the first pages are left out. It returns how many.
func (e *Engine) trim(h *snapshotHeader) (gone [poolCount]int) {
	floor := max(int(h.Floor), int(h.Length)-e.opts.Rewind)
	h.Floor = uint64(floor)
	for i, p := range e.pools {
		if p == nil || p.keep == 0 {
			continue
		}
		first := max(int(h.FirstPage[i]), (floor-p.keep)/p.page)
		gone[i] = first - int(h.FirstPage[i])
		h.FirstPage[i] = uint64(first)
	}
	return gone
}

// checkHeader demands that a session of the engine can look like this.
func (e *Engine) checkHeader(h *snapshotHeader) error {
	switch {
	case h.Magic != snapshotMagic:
		return unusable("it does not begin like one")
	case h.Version != snapshotVersion:
		return unusable("version %d, not %d", h.Version, snapshotVersion)
	case h.Model != e.fingerprint():
		return unusable("of another model, layers or options")
	case h.Length > uint64(e.opts.MaxTokens):
		return fmt.Errorf("%w: %d tokens, of at most %d", ErrSequenceFull, h.Length, e.opts.MaxTokens)
	case h.Floor > h.Length:
		return unusable("truncatable to %d of %d tokens", h.Floor, h.Length)
	}
	for i, p := range e.pools {
		first, end := h.FirstPage[i], h.BeyondPages[i]
		if p == nil {
			if end != 0 || first != 0 {
				return unusable("pages of no layer")
			}
			continue
		}
		length := int(h.Length) / p.ratio
		most := 0 // the first page may be this one
		if p.keep > 0 {
			most = max(0, int(h.Floor)-p.keep) / p.page
		}
		if end != uint64(ceilDiv(length, p.page)) || first > uint64(most) {
			return unusable("pages %d to %d for %d tokens", first, end, h.Length)
		}
	}
	return nil
}

// restore makes a session of pages. Nobody knows it before they are all there.
func (e *Engine) restore(ctx context.Context, h *snapshotHeader, data snapshotPages) (s *Session, err error) {
	turn := turns{e: e}
	if err = turn.take(ctx); err != nil {
		return nil, err
	}
	defer turn.give()
	err = e.device(func() (err error) {
		s, err = e.reserveRestored(ctx, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = e.eachRun(s, h, func(l *engineLayer, sort, k int, run pageRun) error {
		if err := turn.take(ctx); err != nil {
			return err
		}
		t, n := l.pools(sort)[k], run.n*l.stride(sort, k)
		pages := data[t][:n]
		data[t] = data[t][n:]
		err := e.device(func() error { return t.Rows(run.page, run.page+run.n).Upload(ctx, pages) })
		if turn.moved += n; turn.moved >= turnBytes {
			turn.give()
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

// reserveRestored makes a session with the pages of a snapshot, that are still to be filled.
func (e *Engine) reserveRestored(ctx context.Context, h *snapshotHeader) (*Session, error) {
	// A copy that is pending may go to a page that was given up since.
	if err := e.copyPages(ctx); err != nil {
		return nil, err
	}
	var pages [poolCount]int
	for i := range pages {
		pages[i] = int(h.BeyondPages[i] - h.FirstPage[i])
	}
	s, err := e.open()
	if err != nil {
		return nil, err
	}
	err = e.ensure(ctx, pages)
	s.at.length, s.floor = int(h.Length), int(h.Floor)
	for i, t := range s.tables {
		if t != nil && err == nil {
			err = t.Resume(s.at.length/e.pools[i].ratio, int(h.FirstPage[i]))
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.drop())
	}
	return s, nil
}
