package walk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

// story is a sequence of tokens that sessions follow. All begin as the first one does, so that
// sessions meet again and again in the same past.
type story struct {
	parts int // from here on it has tokens of its own
	salt  uint64
}

// world is what all sessions share: stories, and the inputs of tokens.
type world struct {
	stories []story
	hidden  [][]float32 // of each token
}

const tokenKinds = 61

func newWorld(width int) *world {
	w := &world{stories: []story{{0, 1}, {6, 2}, {45, 3}, {130, 4}, {131, 5}, {250, 6}}}
	rng := rand.New(rand.NewPCG(3, 4))
	for range tokenKinds {
		row := make([]float32, width)
		for i := range row {
			row[i] = float32(rng.NormFloat64())
		}
		w.hidden = append(w.hidden, row)
	}
	return w
}

// token is the token of a story at a position.
func (w *world) token(of, at int) int {
	s := w.stories[of]
	if at < s.parts {
		s = w.stories[0]
	}
	return int(mix(s.salt, uint64(at)) % tokenKinds)
}

// hop is a story that has the same first tokens as another one.
func (w *world) hop(rng *rand.Rand, from, length int) int {
	to := rng.IntN(len(w.stories))
	if w.shares(from, length) && w.shares(to, length) {
		return to
	}
	return from
}

// shares reports whether a story's first tokens are the common ones.
func (w *world) shares(of, length int) bool { return of == 0 || length <= w.stories[of].parts }

// input is what enters a layer for some tokens.
func (w *world) input(layer int, tokens []int) []float32 {
	var v []float32
	for _, t := range tokens {
		v = append(v, w.hidden[(t+7*layer)%tokenKinds]...)
	}
	return v
}

// past says which tokens came, and where bits depend on it in steps of which size: a hash for each
// length of a session, from 0 on.
type past struct {
	pure   bool // of invariant engines only: sizes do not count
	hashes []uint64
}

func newPast(pure bool) past { return past{pure, []uint64{1}} }

func (p *past) length() int { return len(p.hashes) - 1 }

func (p *past) now() uint64 { return p.hashes[p.length()] }

// add appends a token that came in a step of a size; 0: of an invariant engine.
func (p *past) add(token, size int) {
	p.pure = p.pure && size == 0
	p.hashes = append(p.hashes, mix(p.now(), uint64(size)<<32|uint64(token)))
}

func (p *past) cut(n int) { p.hashes = p.hashes[:n+1] }

func (p *past) clone() past { return past{p.pure, slices.Clone(p.hashes)} }

// mix is a hash of a hash and something more.
func mix(h, more uint64) uint64 {
	h = (h ^ more ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>29) * 0x94d049bb133111eb
	return h ^ h>>32
}

// sums are hashes of what tokens gave, of all layers.
type sums []uint64

func (s sums) floats(v []float32) {
	width := len(v) / len(s)
	for i := range s {
		for _, x := range v[i*width:][:width] {
			s[i] = mix(s[i], uint64(math.Float32bits(x)))
		}
	}
}

func (s sums) ints(v []int32) {
	width := len(v) / len(s)
	for i := range s {
		for _, x := range v[i*width:][:width] {
			s[i] = mix(s[i], uint64(uint32(x)))
		}
	}
}

// memory remembers what pasts gave. There are finitely many pure ones, and all are kept; of the
// others the latest.
type memory struct {
	mu              sync.Mutex
	pure, mixed     map[uint64]uint64
	latest          []uint64 // keys of mixed
	next            int
	compared, first int
}

const mixedPasts = 1 << 15

func newMemory() *memory {
	return &memory{pure: map[uint64]uint64{}, mixed: make(map[uint64]uint64, mixedPasts), latest: make([]uint64, mixedPasts)}
}

// same demands what was given before for a key, or remembers it.
func (m *memory) same(pure bool, key, got uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.mixed
	if pure {
		known = m.pure
	}
	want, there := known[key]
	switch {
	case there && want != got:
		return fmt.Errorf("other bits than before: %x, was %x", got, want)
	case there:
		m.compared++
		return nil
	}
	m.first++
	known[key] = got
	if !pure {
		delete(m.mixed, m.latest[m.next])
		m.latest[m.next] = key
		m.next = (m.next + 1) % mixedPasts
	}
	return nil
}

// known reports whether a pure past gave something.
func (m *memory) known(key uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.pure[key]
	return ok
}
