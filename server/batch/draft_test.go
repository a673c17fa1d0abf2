package batch

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// guesser drafts for a fake: the most probable tokens but for one in a few.
type guesser struct {
	*fake
	block, wrong int     // wrong 0: none
	failing      []error // of the next drafts
	guesses      int
}

func (g *guesser) Draft(ctx context.Context, chunks ...model.Chunk) (all [][]int32, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.failing) > 0 {
		err, g.failing = g.failing[0], g.failing[1:]
		return nil, err
	}
	for _, c := range chunks {
		require.Len(g.t, c.Tokens, 1)
		tokens := append(slices.Clone(g.known[c.Sequence]), c.Tokens...)
		var drafts []int32
		for range g.block {
			id := next(tokens)
			if g.guesses++; g.wrong > 0 && g.guesses%g.wrong == 0 {
				id = (id + 1) % vocab
			}
			tokens, drafts = append(tokens, id), append(drafts, id)
		}
		all = append(all, drafts)
	}
	return all, nil
}

func (g *guesser) TakeBack(s *model.Sequence, n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	require.LessOrEqual(g.t, n, g.block)
	g.known[s] = g.known[s][:len(g.known[s])-n]
	return nil
}

// TestDrafts demands the same answers with drafts as without them, by every sampler, many at once,
// where memory is short, and where drafting fails: tokens, probabilities, and why they ended. What
// a sequence has when it is kept is what the answer has.
func TestDrafts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var requests []Request
	for i := range 24 {
		r := Request{MaxTokens: 1 + rng.IntN(20), Seed: rng.Uint64(), Logprobs: i%3 == 0, Top: i % 3}
		r.Temperature = []float64{0, 0, .3, 1}[i%4]
		for range 1 + rng.IntN(40) {
			r.Prompt = append(r.Prompt, rng.Int32N(vocab))
		}
		switch i % 6 {
		case 1:
			r.TopK, r.TopP = 5, .9
		case 2:
			r.Stop = []int32{3, 17, 20, 31}
		case 3:
			r.Repetition, r.Frequency, r.Presence = 1.3, .5, .2
		case 4:
			r.Bias = map[int32]float64{7: 2}
		case 5:
			r.Echo = true
		}
		requests = append(requests, r)
	}
	type result struct {
		Tokens []Token
		Reason Reason
	}
	answers := func(g *guesser, o Options) (list []result) {
		o.MaxTokens, o.MaxStep = 100, 16
		s := start(t, g.fake, o)
		var all []*Answer
		for _, r := range requests {
			a, err := s.Submit(t.Context(), r)
			require.NoError(t, err)
			all = append(all, a)
		}
		for _, a := range all {
			var x result
			for x.Reason == "" {
				some, reason, err := a.Next(t.Context())
				require.NoError(t, err)
				x.Tokens, x.Reason = append(x.Tokens, some...), reason
			}
			list = append(list, x)
		}
		return list
	}
	want := answers(&guesser{fake: &fake{room: 1 << 20}}, Options{MaxSessions: 8})
	for _, c := range []struct{ block, most, wrong, room, sessions int }{
		{5, 5, 0, 1 << 20, 8}, {5, 5, 3, 1 << 20, 8}, {5, 2, 4, 1 << 20, 3}, {5, 5, 1, 1 << 20, 1}, {1, 1, 2, 1 << 20, 8},
		{5, 5, 4, 110, 8},
	} {
		g := &guesser{fake: &fake{room: c.room}, block: c.block, wrong: c.wrong,
			failing: []error{cache.ErrPoolFull, vk.ErrStarved}}
		o := Options{MaxSessions: c.sessions, Drafter: g, Drafts: c.most}
		assert.Equal(t, want, answers(g, o), "%+v", c)
		assert.NotZero(t, g.guesses)
	}
}

// TestDraftsGain counts steps: right drafts save them, wrong ones cost none.
func TestDraftsGain(t *testing.T) {
	for _, c := range []struct{ wrong, steps, drafted, refused int }{{0, 3, 10, 0}, {1, 13, 45, 45}} {
		g := &guesser{fake: &fake{room: 1000}, block: 5, wrong: c.wrong}
		s := start(t, g.fake, Options{MaxTokens: 100, MaxSessions: 1, MaxStep: 16, Drafter: g, Drafts: 5})
		a, err := s.Submit(t.Context(), Request{Prompt: []int32{4, 5}, MaxTokens: 13})
		require.NoError(t, err)
		ids, _, err := all(t.Context(), a)
		require.NoError(t, err)
		assert.Equal(t, expected([]int32{4, 5}, 13), ids)
		require.NoError(t, s.Close(t.Context()))
		assert.Len(t, g.sizes, c.steps)
		assert.EqualValues(t, c.drafted, testutil.ToFloat64(s.o.Metrics.drafts))
		assert.EqualValues(t, c.refused, testutil.ToFloat64(s.o.Metrics.refused))
	}
}

// TestDraftsNumbers ends no request for numbers that follow a draft that is not drawn.
func TestDraftsNumbers(t *testing.T) {
	prompt := []int32{4, 5}
	want := expected(prompt, 12)
	bad := int32(1)
	for slices.Contains(want, bad) {
		bad++
	}
	g := &guesser{fake: &fake{room: 1000, bad: bad}, block: 5}
	s := start(t, g.fake, Options{MaxTokens: 100, MaxSessions: 1, MaxStep: 16, Drafter: always{g, bad}, Drafts: 5})
	a, err := s.Submit(t.Context(), Request{Prompt: prompt, MaxTokens: 12})
	require.NoError(t, err)
	ids, _, err := all(t.Context(), a)
	require.NoError(t, err)
	assert.Equal(t, want, ids)
	assert.Positive(t, testutil.ToFloat64(s.o.Metrics.refused))
}

// always drafts one token.
type always struct {
	*guesser
	id int32
}

func (a always) Draft(ctx context.Context, chunks ...model.Chunk) (all [][]int32, err error) {
	for range chunks {
		all = append(all, []int32{a.id, a.id})
	}
	return all, nil
}

// TestDraftsWarm takes steps of drafts beforehand, after as many sequences as there will be.
func TestDraftsWarm(t *testing.T) {
	g := &guesser{fake: &fake{room: 1000}, block: 5}
	s := start(t, g.fake, Options{MaxTokens: 100, MaxSessions: 3, MaxStep: 16, Drafter: g, Drafts: 5, Warm: []int{1, 2, 16}})
	for done := 0; done < 3; done, _ = s.Warming() {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, s.Close(t.Context()))
	assert.Equal(t, []int{1, 2, 16}, g.sizes)
	assert.Equal(t, 5*(1+2+3), g.guesses)
}
