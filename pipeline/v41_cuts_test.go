package pipeline_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestCutsV41 takes a sequence in odd parts: pieces of a prompt of any length, drafts with each
// number of them rejected, forks that are cut inside a group of two, and sessions that are saved
// and restored in pages of other sizes. Outputs, picks and what is kept have the bits that one pass
// gives, in records that the seed chooses. With VKMLA_TEST_FULL=1 that holds for 100 random models,
// from VKMLA_TEST_SEED on, too.
func TestCutsV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	first, models := testkit.Seed(t), uint64(0)
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		models = 100
	}
	t.Run("small", func(t *testing.T) {
		c := draftedLayers()
		cutModel(t, rand.New(rand.NewPCG(first, 44)), 70, c, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8}))
	})
	for seed := first; seed < first+models; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 45))
			c, m, err := fakemodel.RandomV41(rng)
			require.NoError(t, err)
			cutModel(t, rng, 120, c, m)
		})
	}
}

func cutModel(t *testing.T, rng *rand.Rand, tokens int, c model.Config, m *fakemodel.Model) {
	var list []int
	for i := range c.Layers {
		list = append(list, i)
	}
	_, layers := opened(t, testkit.Device(t), m, list...)
	x := &cutting{drafting: &drafting{c: c, m: m, layers: layers, first: len(layers), rng: rng}, t: t, did: map[string]int{}}
	for x.first > 0 && c.Layers[x.first-1].Block {
		x.first--
	}
	x.run([]model.Records{model.RecordsV41, model.RecordsV4}[rng.IntN(2)], tokens+rng.IntN(40))
}

const (
	mostCut = 6           // drafts of a step, and tokens that a fork takes
	cutRest = 2 + mostCut // tokens after which no session was longer than it is
)

// cutting is a sequence in odd parts.
type cutting struct {
	*drafting
	t       *testing.T
	engines [2]*pipeline.Engine
	now     int // of engines, which has the session
	rewind  int
	right   [][]float32         // hidden states of all tokens, by layer
	want    []pipeline.Appended // what one pass gave
	s       *pipeline.Session
	floor   int   // see Session.Truncate
	drafts  []int // patterns: each number of them, with each number accepted
	did     map[string]int
}

func (x *cutting) run(records model.Records, tokens int) {
	t, rng := x.t, x.rng
	x.rewind = mostCut + rng.IntN(5)
	o := options{MaxTokens: tokens + mostCut + x.c.DraftBlock, MaxSessions: 3, MaxStep: max(mostCut+1+rng.IntN(40), x.c.DraftBlock),
		Rewind: x.rewind, Invariant: true, KeepTopK: true, Records: records, CacheBytes: 1 << 20}
	for i := range x.engines {
		o.Pages = x.pages()
		x.engines[i] = engine(t, testkit.Device(t), x.c, x.layers, o)
	}
	x.e = x.engines[0]
	for range x.layers {
		x.right = append(x.right, fakemodel.RandomHidden(rng, tokens, x.c.Hidden))
	}
	plain := must[*pipeline.Session](t)(x.e.Open())
	x.want = must[[]pipeline.Appended](t)(plain.Append(t.Context(), x.right))
	x.s = must[*pipeline.Session](t)(x.e.Open())
	x.drafts = rng.Perm((mostCut + 1) * (mostCut + 2) / 2)
	for end := tokens - cutRest; x.s.Len() < end; {
		x.part(end)
	}
	x.take(x.s, cutRest, cutRest)
	t.Logf("%v, %d tokens, %d patterns of drafts left, %v", records, tokens, len(x.drafts), x.did)
	if x.first < len(x.layers) {
		block := x.hidden(x.c.DraftBlock)
		got := x.draft(t, x.s, block)
		x.e = x.engines[0]
		sameBits(t, x.draft(t, plain, block), got, "a block")
	}
	sameBits(t, saved(t, plain), saved(t, x.s), "what is kept")
}

// part does something with the session, which gets no more than so many tokens.
func (x *cutting) part(end int) {
	left := end - x.s.Len()
	switch x.rng.IntN(9) {
	case 0:
		n := 1 + x.rng.IntN(min(left, 33))
		x.take(x.s, n, n)
	case 1, 2:
		x.fork(end)
	case 3:
		x.restore()
	case 4:
		if x.first < len(x.layers) {
			x.draft(x.t, x.s, x.hidden(x.c.DraftBlock))
		}
	default:
		if len(x.drafts) == 0 {
			x.take(x.s, 1, 1)
			return
		}
		n, accepted := 0, x.drafts[0]
		for accepted > n {
			accepted, n = accepted-n-1, n+1
		}
		if 1+accepted <= left {
			x.take(x.s, 1+n, 1+accepted)
			x.did["drafts"]++
		}
		x.drafts = x.drafts[1:]
	}
}

// pages are sizes of pages of the model's pools, those of keys multiples of 16.
func (x *cutting) pages() map[string]int {
	few := func(most int) int { return 1 + x.rng.IntN(1+x.rng.IntN(most)) }
	all := map[string]int{"window": few(40), "ratio2": 16 * few(4), "ratio2.state": few(9), "ratio1": 16 * few(6), "draft": few(20)}
	names := poolNames(x.c)
	maps.DeleteFunc(all, func(name string, _ int) bool { return !slices.Contains(names, name) })
	return all
}

// take appends n tokens to a session, of which only the accepted ones are right and stay.
func (x *cutting) take(s *pipeline.Session, n, accepted int) {
	x.drafting.take(x.t, s, x.right, x.want, n, accepted)
	if s == x.s {
		x.floor = max(x.floor, s.Len()-accepted+n-x.rewind)
	}
}

// fork takes wrong tokens with a copy of the session, cuts it, and goes on with one of them.
func (x *cutting) fork(end int) {
	f := must[*pipeline.Session](x.t)(x.s.Fork())
	n := 1 + x.rng.IntN(mostCut)
	must[[]pipeline.Appended](x.t)(f.Append(x.t.Context(), x.all(n)))
	floor := max(x.floor, f.Len()-x.rewind)
	at := max(x.s.Len()-x.rng.IntN(4), floor, 0)
	if x.rng.IntN(2) == 0 || at > x.s.Len() {
		at = max(floor, 0) // all that is allowed
	}
	if at > x.s.Len() {
		at, floor = 0, 0
	}
	require.NoError(x.t, f.Truncate(at))
	if more := min(1+x.rng.IntN(5), end-at); more > 0 {
		x.take(f, more, more)
		floor = max(floor, f.Len()-x.rewind)
	}
	if x.rng.IntN(2) == 0 {
		f, x.s, x.floor = x.s, f, floor
	}
	require.NoError(x.t, f.Close())
	if at%2 == 1 {
		x.did["cut inside a group"]++
	}
	x.did["forks"]++
}

// restore goes on with what was saved in the other engine.
func (x *cutting) restore() {
	data := saved(x.t, x.s)
	require.NoError(x.t, x.s.Close())
	x.now = 1 - x.now
	x.e = x.engines[x.now]
	x.s = must[*pipeline.Session](x.t)(x.e.Restore(x.t.Context(), bytes.NewReader(data)))
	assert.True(x.t, bytes.Equal(data, saved(x.t, x.s)), "saved at once")
	x.did["restored"]++
}
