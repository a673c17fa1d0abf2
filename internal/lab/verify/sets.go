package verify

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// RotateBytes counts the bytes that all sets of operands touch together: past the last-level cache
// of every GPU that we know of.
const RotateBytes = 256 << 20

// Spread says how the numbers of pages of a case become those of a set.
type Spread int

const (
	SpreadSets   Spread = iota // each set has a copy of all pages
	SpreadPages                // each number becomes that of a page that no other number has
	SpreadRandom               // each number becomes that of a random copy; neighbours in a page stay together
)

// Pages say how a pool is used.
type Pages struct {
	Page int // slots of a page
	Spread
	Numbers int // SpreadPages: how many a set has
	Slots   int // SpreadRandom: of all copies together
}

// Pool is pages in device memory.
type Pool struct {
	tensor.Tensor
	Pages
	pages  int     // of the case; the tensor has several copies of them
	before int     // pages before those of the case, in a rig of NewFarRig
	copies int     // 0: the rig checks
	order  [][]int // SpreadPages: for each page its copies in random order
	next   []int   // of these the next one
	rng    *rand.Rand
}

// sets is the memory of a rig that times. Place is called once for each set, and asks for the
// same tensors in the same order each time.
type sets struct {
	number, set int
	slow        bool
	rng         *rand.Rand

	calls  []call // of the first set
	at     int    // the next one
	arenas []*tensor.Arena
	room   uint64 // of the last arena
	large  []tensor.Tensor
	poison []poisoned // results of the last set
	given  []operand  // operands of the last set, and shared ones
}

// call holds the result of a method for the first set.
type call struct {
	t tensor.Tensor
	p *Pool
}

type poisoned struct {
	t    tensor.Tensor
	byte byte
}

type operand struct {
	t    tensor.Tensor
	data []byte
}

// Sets is an operation with several sets of operands.
type Sets struct {
	Launches []Launch
	r        *Rig
}

// NewSets places a number of sets of operands. A slow device gets few copies of pools. Close frees
// them, after an error, too.
func NewSets(ctx context.Context, dev *vk.Device, b Bound, number int, slow bool, seed uint64) (*Sets, error) {
	r := &Rig{ctx: ctx, dev: dev, sets: &sets{number: number, slow: slow, rng: rand.New(rand.NewPCG(seed, 5))}}
	s := &Sets{r: r}
	for i := range number {
		r.sets.set, r.sets.at = i, 0
		s.Launches = append(s.Launches, b.Place(r))
		if r.err != nil {
			return s, r.err
		}
	}
	return s, nil
}

// Close frees the operands.
func (s *Sets) Close() { s.r.Close() }

// Check runs the last set, after filling its results with what no kernel writes, and holds the
// pieces of the case against the reference. Operands that become results are as they were.
func (s *Sets) Check(op Op, c Case, variant string) (Result, error) {
	last := s.Launches[len(s.Launches)-1]
	c.Op, c.Source = op.Name, "random"
	for _, t := range last.Out {
		t = s.own(t)
		for _, x := range s.r.sets.given {
			if x.t.Buffer == t.Buffer && x.t.Offset == t.Offset && s.r.err == nil {
				s.r.Fail(x.t.Upload(s.r.ctx, x.data))
			}
		}
	}
	s.r.Do(func(rec *vk.Recorder) error {
		for _, p := range s.r.sets.poison {
			word := uint32(p.byte) * 0x01010101
			if err := rec.Fill(p.t.View(), word); err != nil {
				return err
			}
		}
		return last.Record(rec)
	})
	if s.r.err != nil {
		return Result{}, s.r.err
	}
	var worst *Result
	for _, piece := range op.Pieces(c) {
		got, err := s.read(last, piece)
		if err == nil {
			got, err = op.after(piece.Case, variant, got)
		}
		if err == nil {
			piece.Case.Want, err = op.Ref(piece.Case)
		}
		if err != nil {
			return Result{}, err
		}
		r := op.Compare(piece.Case, got, piece.Case.Want)
		if worst == nil || worst.Pass && (!r.Pass || r.Error*worst.Bound > worst.Error*r.Bound) {
			worst = &r
		}
	}
	return *worst, nil
}

// read brings the outputs of a piece to the host.
func (s *Sets) read(last Launch, piece Piece) (Arrays, error) {
	got := Arrays{}
	for name, t := range last.Out {
		t, along := s.own(t), piece.Out[name]
		if len(along) > 0 && along[0] != nil { // of the first axis only what is needed comes back
			got[name] = Array{Type: stored[t.DType], Shape: slices.Clone(t.Shape)}
			a := got[name]
			a.Shape[0] = len(along[0])
			for _, i := range along[0] {
				row := t.Rows(i, i+1)
				data := make([]byte, row.Bytes())
				if s.r.err == nil {
					s.r.Fail(row.Download(s.r.ctx, data))
				}
				a.Data = append(a.Data, data...)
			}
			got[name] = Take(a, append([][]int{nil}, along[1:]...))
			continue
		}
		a := Array{Type: stored[t.DType], Shape: slices.Clone(t.Shape), Data: make([]byte, t.Bytes())}
		if s.r.err == nil {
			s.r.Fail(t.Download(s.r.ctx, a.Data))
		}
		got[name] = Take(a, along)
	}
	return got, s.r.err
}

// own returns the last set's copy where a result is a pool and each set has one.
func (s *Sets) own(t tensor.Tensor) tensor.Tensor {
	for _, c := range s.r.sets.calls {
		if c.p != nil && c.p.Spread == SpreadSets && c.p.Buffer == t.Buffer && c.p.Offset == t.Offset {
			return t.Rows(s.r.sets.set*c.p.pages, (s.r.sets.set+1)*c.p.pages)
		}
	}
	return t
}

// Spoil overwrites all operands but pools with a word: a check must not pass then.
func (s *Sets) Spoil(word uint32) error {
	s.r.Do(func(rec *vk.Recorder) error {
		for i, a := range s.r.sets.arenas {
			used := a.Whole()
			if i == len(s.r.sets.arenas)-1 {
				used.Size -= s.r.sets.room
			}
			if err := rec.Fill(used, word); err != nil {
				return err
			}
		}
		return nil
	})
	return s.r.err
}

func (m *sets) close(r *Rig) {
	if m == nil {
		return
	}
	for _, a := range m.arenas {
		a.Close()
	}
	for _, t := range m.large {
		t.Close()
	}
	m.arenas, m.large = nil, nil
}

// once returns what the first set got; all sets share it.
func (m *sets) once(make func() tensor.Tensor) tensor.Tensor {
	at := m.at
	m.at++
	if m.set > 0 {
		return m.calls[at].t
	}
	m.calls = append(m.calls, call{})
	t := make()
	m.calls[at].t = t
	return t
}

// in returns an operand that every set has for itself: a copy of the first set's.
func (m *sets) in(r *Rig, a Array, dt tensor.DType) tensor.Tensor {
	first := m.once(func() tensor.Tensor { return m.upload(r, a, dt) })
	if m.set == 0 || r.err != nil {
		return first
	}
	t := m.memory(r, dt, a.Shape)
	if m.set == m.number-1 {
		m.given = append(m.given, operand{t, a.Data})
	}
	if t.Bytes() > 0 {
		r.Do(func(rec *vk.Recorder) error { return rec.Copy(t.View(), first.View()) })
	}
	return t
}

func (m *sets) upload(r *Rig, a Array, dt tensor.DType) tensor.Tensor {
	t := m.memory(r, dt, a.Shape)
	if r.err == nil && len(a.Data) > 0 {
		r.Fail(t.Upload(r.ctx, a.Data))
		m.given = append(m.given, operand{t, a.Data})
	}
	return t
}

func (m *sets) out(r *Rig, poison byte, dt tensor.DType, shape []int) tensor.Tensor {
	t := m.memory(r, dt, shape)
	// Results that all sets share are made for the first one.
	if r.err == nil && t.Bytes() > 0 && (m.set == m.number-1 || m.set == 0) {
		m.poison = append(m.poison, poisoned{t, poison})
	}
	return t
}

// memory returns a tensor whose content is undefined.
func (m *sets) memory(r *Rig, dt tensor.DType, shape []int) tensor.Tensor {
	const chunk = 64 << 20
	need := tensor.Need(dt, shape...)
	if r.err == nil && need > m.room {
		size := max(need, chunk)
		a, err := tensor.NewArena(r.dev, vk.DeviceLocal, "bench inputs", size)
		if err != nil {
			r.Fail(err)
		} else {
			m.arenas, m.room = append(m.arenas, a), size
		}
	}
	if r.err != nil {
		return tensor.Tensor{}
	}
	t, err := m.arenas[len(m.arenas)-1].Alloc(dt, shape...)
	if err != nil {
		r.Fail(err)
	}
	m.room -= need
	return t
}

// pool makes the copies of a case's pages.
func (m *sets) pool(r *Rig, p *Pool, a Array) *Pool {
	at := m.at
	m.at++
	if m.set > 0 {
		return m.calls[at].p
	}
	m.calls = append(m.calls, call{p: p})
	p.rng, p.copies = m.rng, m.number
	switch stride := max(a.Dim(1), 1); p.Spread {
	case SpreadPages:
		want := max(p.Numbers, min(p.Numbers*m.number, m.rotate()/stride))
		p.copies = (want + p.pages - 1) / max(p.pages, 1)
		p.next = make([]int, p.pages)
		for range p.pages {
			p.order = append(p.order, m.rng.Perm(p.copies))
		}
	case SpreadRandom:
		p.copies = max(1, p.Slots/max(p.pages*p.Page, 1))
		if m.slow {
			p.copies = 2
		}
	}
	if r.err != nil {
		return p
	}
	t, err := tensor.New(r.dev, "bench pool", tensor.U8, p.copies*p.pages, a.Dim(1))
	if err != nil {
		r.Fail(err)
		return p
	}
	m.large, p.Tensor = append(m.large, t), t
	r.Fail(Fill(r.ctx, r.dev, t, a.Data))
	if p.Spread == SpreadSets {
		m.given = append(m.given, operand{t.Rows((m.number-1)*p.pages, m.number*p.pages), a.Data})
	}
	return p
}

func (m *sets) rotate() int {
	if m.slow {
		return 8 << 20
	}
	return RotateBytes
}

// spread returns an array of numbers of pages, or slots, for the set that is being placed.
func (m *sets) spread(p *Pool, a Array, slots bool) Array {
	per := 1
	if slots {
		per = p.Page
	}
	last, copy := -1, 0
	move := func(v int64) int64 {
		if v < 0 || v >= int64(p.pages*per) {
			return v
		}
		page := int(v) / per
		switch {
		case p.Spread == SpreadSets:
			copy = m.set
		case p.Spread == SpreadPages:
			copy = p.order[page][p.next[page]%p.copies]
			p.next[page]++
		case page != last:
			copy = p.rng.IntN(p.copies)
		}
		last = page
		return v + int64(copy*p.pages*per)
	}
	return renumbered(a, move)
}

// renumbered returns an array of numbers, each of which move changes.
func renumbered(a Array, move func(int64) int64) Array {
	out := a.Clone()
	for i := range a.Len() {
		if a.Type == vectors.I64 {
			b := out.Data[8*i:]
			binary.LittleEndian.PutUint64(b, uint64(move(int64(binary.LittleEndian.Uint64(b)))))
			continue
		}
		b := out.Data[4*i:]
		binary.LittleEndian.PutUint32(b, uint32(move(int64(int32(binary.LittleEndian.Uint32(b))))))
	}
	return out
}

// Fill writes a pattern into a tensor over and over, from its beginning.
func Fill(ctx context.Context, dev *vk.Device, t tensor.Tensor, pattern []byte) error {
	flat := tensor.Tensor{Buffer: t.Buffer, Offset: t.Offset, DType: tensor.U8, Shape: []int{int(t.Bytes())}}
	total := flat.Shape[0]
	done := min(len(pattern), total)
	if done == 0 {
		return nil
	}
	if err := flat.Rows(0, done).Upload(ctx, pattern[:done]); err != nil {
		return err
	}
	for done < total { // what is there doubles
		n := min(done, total-done)
		if err := do(ctx, dev, func(rec *vk.Recorder) error {
			return rec.Copy(flat.Rows(done, done+n).View(), flat.Rows(0, n).View())
		}); err != nil {
			return err
		}
		done += n
	}
	return nil
}
