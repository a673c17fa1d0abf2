package pipeline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// draftSessions is an engine of two layers that draft, with pages of 4 tokens.
func draftSessions(t *testing.T, o options) *drafting {
	t.Helper()
	testkit.WithoutMatrices(t)
	c := fakemodel.V41().WithDrafts(1)
	c.Window = 9
	x := &drafting{rng: rand.New(rand.NewPCG(testkit.Seed(t), 43))}
	x.m = fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})
	var layers []*model.DeviceLayer
	x.c, layers = draftLayers(t, x.m, c)
	x.c = fakemodel.Paged(x.c, map[string]int{"draft": 4})
	o.MaxTokens, o.MaxStep = 40, 16
	x.e = engine(t, testkit.Device(t), x.c, layers, o)
	return x
}

// sameBits demands equal results or snapshots.
func sameBits[T any](t *testing.T, want, got T, what string, a ...any) {
	t.Helper()
	require.True(t, reflect.DeepEqual(want, got), "%s: not the same bits", fmt.Sprintf(what, a...))
}

// session is a session with some tokens.
func (x *drafting) session(t *testing.T, tokens int) *pipeline.Session {
	t.Helper()
	s := must[*pipeline.Session](t)(x.e.Open())
	if tokens > 0 {
		must[[]pipeline.Appended](t)(s.Append(t.Context(), x.whole(tokens)))
	}
	return s
}

// TestDraftFull drafts where there is no page for the block: the session is as it was.
func TestDraftFull(t *testing.T) {
	page := draftSessions(t, options{}).e.SpareBytes()
	x := draftSessions(t, options{MaxSessions: 2, CacheBytes: 4 * page, MaxCacheBytes: 4 * page})
	s, other := x.session(t, 4), x.session(t, 7)
	was, block := saved(t, s), x.hidden(x.c.DraftBlock)
	_, err := x.e.Begin(t.Context(), x.block(s))
	require.ErrorIs(t, err, cache.ErrPoolFull)
	sameBits(t, was, saved(t, s), "a full pool")
	require.NoError(t, other.Truncate(0))
	x.draft(t, s, block)
	sameBits(t, was, saved(t, s), "a full pool")
}

// TestDraftPages drafts where other layers' pages are full, or shared with a fork: a block takes
// none of them, and leaves no table to be brought up to date but those of layers that draft.
func TestDraftPages(t *testing.T) {
	testkit.WithoutMatrices(t)
	const tokens = 9 // of a page of the other layers
	pages := map[string]int{"window": tokens, "ratio1": tokens, "draft": 16}
	o := options{MaxTokens: 4 * tokens, MaxSessions: 3, MaxStep: 16, Rewind: 3}
	x := newDrafting(t, fakemodel.Paged(draftingModel(), pages), o)
	block := x.hidden(x.c.DraftBlock)
	s := x.session(t, tokens-1)
	want := x.draft(t, s, block)
	x.updates(t, s, 0, 0)

	f := must[*pipeline.Session](t)(s.Fork())
	_, free := x.e.Pages()
	for entries := range 2 { // of the copy of the page that the block shared
		st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), x.block(f)))
		tables, sent := st.Updates()
		assert.Equal(t, []int{1, 1 - entries}, []int{tables, sent})
		_, left := x.e.Pages()
		assert.Equal(t, []int{free[0], free[1], free[2] - 1}, left[:3])
		require.NoError(t, st.Abort())
		sameBits(t, want, x.draft(t, f, block), "a fork")
	}

	o.MaxCacheBytes = x.e.PageBytes(pipeline.PageCounts{2, 2, 2})
	o.CacheBytes = o.MaxCacheBytes
	full := *x
	full.e = engine(t, testkit.Device(t), x.c, x.layers, o)
	right := x.whole(1)
	for _, s := range []*pipeline.Session{s, f} {
		must[[]pipeline.Appended](t)(s.Append(t.Context(), right))
	}
	was := saved(t, s)
	want = x.draft(t, s, block)
	for range 2 {
		f = must[*pipeline.Session](t)(full.e.Restore(t.Context(), bytes.NewReader(was)))
	}
	sameBits(t, want, full.draft(t, f, block), "full pools")
	sameBits(t, was, saved(t, f), "full pools")
}

// updates demands that the next token of a session looks at `tables` tables, and sends `entries`
// entries to the device.
func (x *drafting) updates(t *testing.T, s *pipeline.Session, tables, entries int) {
	t.Helper()
	st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	looked, sent := st.Updates()
	assert.Equal(t, []int{tables, entries}, []int{looked, sent}, "tables, and entries of them")
	require.NoError(t, st.Abort())
}

// TestDraftErrors demands an error of everything that is no block after a session's tokens.
func TestDraftErrors(t *testing.T) {
	x := draftSessions(t, options{MaxSessions: 2})
	a, b := x.session(t, 1), x.session(t, 36)
	n := x.c.DraftBlock
	for want, chunks := range map[string][]pipeline.Chunk{
		"chunks[0].Tokens: got 4, want 5, a block of drafts":          {{Session: a, Tokens: n - 1, Draft: true}},
		"chunks[0].Tokens: got 10, want 5, a block of drafts":         {{Session: a, Tokens: 2 * n, Draft: true}},
		"chunks[1].Draft: got false, want true, as in chunks[0]":      {x.block(a), {Session: b, Tokens: n}},
		"chunks[1].Draft: got true, want false, as in chunks[0]":      {{Session: a, Tokens: n}, x.block(b)},
		"chunks[1]: got a session twice, want each once":              {x.block(a), x.block(a)},
		"chunks[0]: got a nil session, want a session of this engine": {x.block(nil)},
	} {
		_, err := x.e.Begin(t.Context(), chunks...)
		require.ErrorIs(t, err, vk.ErrArgument)
		assert.ErrorContains(t, err, want)
	}
	_, err := x.e.Begin(t.Context(), x.block(a), x.block(b))
	require.ErrorIs(t, err, pipeline.ErrSequenceFull)

	st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), x.block(a)))
	require.ErrorContains(t, st.Commit(), "layer 0 not run")
	require.ErrorContains(t, st.Submit(), "inputs")
	require.NoError(t, st.Abort())

	// An engine in which other layers come first, and one without any that draft.
	y := newDrafting(t, draftingModel(), options{MaxStep: 8})
	s := must[*pipeline.Session](t)(y.e.Open())
	st = must[*pipeline.Step](t)(y.e.Begin(t.Context(), y.block(s)))
	for _, err := range []error{st.SubmitLayer(0), st.SetInput(0, 0, make([]float32, n*y.c.Hidden)), st.ReadOutput(0, 0, nil)} {
		require.ErrorIs(t, err, vk.ErrArgument)
		assert.ErrorContains(t, err, "layer: got 0, want 2 to 2")
	}
	require.NoError(t, st.Abort())
	dev := testkit.Device(t)
	ck, two := opened(t, dev, y.m, model.CheckpointOptions{Layers: []int{0, len(y.c.Layers) - 1}})
	_, err = pipeline.NewEngine(t.Context(), dev, ck.Config, []*model.DeviceLayer{two[1], two[0]}, options{MaxTokens: 40})
	require.ErrorIs(t, err, vk.ErrArgument)
	require.ErrorContains(t, err, "layers[1]: got 0, of kind window, want layers that draft, behind one that does")
	e := engine(t, dev, ck.Config, two[:1], options{MaxTokens: 40, MaxStep: 8})
	_, err = e.Begin(t.Context(), x.block(must[*pipeline.Session](t)(e.Open())))
	require.ErrorIs(t, err, vk.ErrArgument)
	require.ErrorContains(t, err, "no layer of the engine drafts")
}

// draftingModel has a window layer, one with an indexer, and one that drafts.
func draftingModel() model.Config {
	c := fakemodel.V41()
	c.Layers = model.V41Layers(model.Sources{Entries: []int{1}, Picks: []int{1}, Candidates: -1}, 0, 1)
	return c.WithDrafts(1)
}

// TestDraftBetween drafts where the caller's commands are between the layers, and where layers run
// one by one, with the same results. Warm leaves nothing to be recorded.
func TestDraftBetween(t *testing.T) {
	testkit.WithoutMatrices(t)
	c := draftingModel().WithDrafts(1)
	var places []string
	between := func(rec *vk.Recorder, at pipeline.Between) error {
		places = append(places, fmt.Sprint(at.Layer, at.Draft, at.Output.IsZero()))
		if at.Output.IsZero() || at.Input.IsZero() {
			return nil
		}
		return rec.Copy(at.Input.View(), at.Output.View())
	}
	// Other programs' turns shall not decide what is recorded.
	x := newDrafting(t, c, options{MaxStep: 8, Between: between})
	x.e.SetBudget(time.Hour)
	require.NoError(t, x.e.Warm(t.Context()))
	assert.Subset(t, places, []string{"0 false true", "1 false false", "2 false false", "3 false false", "4 false false",
		"2 true true", "3 true false", "4 true false"})
	recorded := x.e.Stats().Recorded
	y := *x
	y.e = engine(t, testkit.Device(t), x.c, x.layers, options{MaxTokens: 40, MaxStep: 8, LayerByLayer: true})
	s, u := must[*pipeline.Session](t)(x.e.Open()), must[*pipeline.Session](t)(y.e.Open())
	for _, n := range []int{7, 1, 3} {
		tokens, block := x.whole(n)[0], x.whole(c.DraftBlock)[0]
		got := must[[]pipeline.Appended](t)(s.Append(t.Context(), [][]float32{tokens}))
		sameBits(t, y.chain(t, pipeline.Chunk{Session: u, Tokens: n}, tokens), got[3].Out, "%d tokens", n)
		st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), x.block(s)))
		require.NoError(t, st.SetInput(2, 0, block))
		require.ErrorContains(t, st.SetInput(3, 0, block), "layer: got 3, want 2")
		require.NoError(t, st.Run(t.Context()))
		out := make([]float32, len(block))
		require.NoError(t, st.ReadOutput(3, 0, out))
		require.NoError(t, st.Commit())
		sameBits(t, y.chain(t, y.block(u), block), out, "a block behind %d tokens", s.Len())
	}
	assert.Equal(t, recorded, x.e.Stats().Recorded)
}

// chain runs a chunk through the layers one by one, each with what the one before gave.
func (x *drafting) chain(t *testing.T, c pipeline.Chunk, hidden []float32) []float32 {
	t.Helper()
	st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), c))
	i := 0
	if c.Draft {
		i = x.first
	}
	for ; i < x.e.Layers(); i++ {
		require.NoError(t, st.SetInput(i, 0, hidden))
		require.NoError(t, st.RunLayer(t.Context(), i))
		if i >= x.first && !c.Draft {
			continue
		}
		hidden = make([]float32, len(hidden))
		require.NoError(t, st.ReadOutput(i, 0, hidden))
	}
	require.NoError(t, st.Commit())
	return hidden
}

// TestDraftStaging drafts where hidden states are copied from and to host memory, beside layers
// that do not run, with the bits of a device that maps them.
func TestDraftStaging(t *testing.T) {
	testkit.WithoutMatrices(t)
	m := fake(t, fakemodel.Options{Config: draftingModel().WithDrafts(1), Storage: fakemodel.FP8})
	var want [][]float32
	for _, staging := range []bool{false, true} {
		dev := device(t, vk.DeviceOptions{Staging: staging})
		ck, layers := opened(t, dev, m, model.CheckpointOptions{Layers: []int{0, 2, 3}})
		x := &drafting{c: ck.Config, first: 1, rng: rand.New(rand.NewPCG(7, 44))}
		x.e = engine(t, dev, x.c, layers, options{MaxTokens: 40, MaxStep: 16})
		s := x.session(t, 11)
		got := x.draft(t, s, x.hidden(x.c.DraftBlock))
		if want == nil {
			want = got
		}
		sameBits(t, want, got, "staging %v", staging)
	}
	require.Len(t, want, 2)
}
