package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Kinds of layers that DeepSeek-V4 does not have. They are rows: nothing but this test knows them.
var (
	windows = model.Window.Pools[0]

	// pairs attends all entries of 2 tokens, without an indexer.
	pairs = model.LayerSpec{Name: "pairs", Ratio: 2, Pools: []model.PoolSpec{windows,
		{Name: "pairs", Stores: []model.Store{model.StoreEntries}, Page: 32, Tokens: 2, Keep: model.KeepAll},
		{Name: "pairs.state", Stores: []model.Store{model.StoreState}, Page: 8, Tokens: 1, Keep: 1}}}
	// singles makes an entry of each token and attends those that its indexer picks.
	singles = model.LayerSpec{Name: "singles", Ratio: 1, Picks: model.PickOwn, Pools: []model.PoolSpec{windows,
		{Name: "singles", Stores: []model.Store{model.StoreEntries, model.StoreKeys}, Page: 64, Tokens: 1, Keep: model.KeepAll},
		{Name: "singles.state", Stores: []model.Store{model.StoreState, model.StoreKeyState}, Page: 16, Tokens: 1, Keep: 0}}}
	// again picks anew from the entries of a singles layer.
	again = model.LayerSpec{Name: "again", Ratio: 1, Borrows: true, Picks: model.PickOwn, Pools: []model.PoolSpec{windows}}
	// borrows attends entries of a singles layer, by the picks of that or of another layer.
	borrows = model.LayerSpec{Name: "borrows", Ratio: 1, Borrows: true, Picks: model.PickEarlier, Pools: []model.PoolSpec{windows}}
)

func otherKinds() model.Config {
	c := fakemodel.Config()
	c.Layers = []model.Layer{
		{LayerSpec: pairs},
		{LayerSpec: singles, EntriesOf: 1, PicksOf: 1},
		{LayerSpec: again, EntriesOf: 1, PicksOf: 2},
		{LayerSpec: borrows, EntriesOf: 1, PicksOf: 1},
		{LayerSpec: borrows, EntriesOf: 1, PicksOf: 2},
	}
	return c
}

// TestEngineKinds runs kinds of layers that are rows of this test alone, and compares them with
// the formula: prefill in one step, in chunks, and token by token.
func TestEngineKinds(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	const tokens, prefill = 150, 146 // beyond the window of 128
	c := otherKinds()
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8})
	_, layers := opened(t, dev, m, model.CheckpointOptions{Config: &c})
	e := engine(t, dev, c, layers, pipeline.EngineOptions{MaxTokens: 2, LayerByLayer: true})
	s := must[*pipeline.Session](t)(e.Open())
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
	require.NoError(t, st.ReuseInputs())
	require.ErrorContains(t, st.SubmitLayer(2), "layer: got 2, want 1 first")
	require.NoError(t, st.RunLayer(t.Context(), 1))
	require.NoError(t, st.RunLayer(t.Context(), 2))
	require.NoError(t, st.Abort())
	_, err := pipeline.NewEngine(t.Context(), dev, c, layers[2:], pipeline.EngineOptions{MaxTokens: 2})
	require.ErrorContains(t, err, "layers[0]: got 2, want layer 1 in front of it")
	hidden := normalsOf(rand.New(rand.NewPCG(3, 4)), tokens*c.Hidden)
	for _, chunk := range []int{tokens, 22} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			e := engine(t, dev, c, layers, pipeline.EngineOptions{MaxTokens: tokens, MaxSessions: 2, MaxStep: chunk, KeepTopK: true})
			checkFormula(t, c, m.Values, hidden, division(t, e, c.Hidden, prefill, hidden))
			sameRestored(t, e, c.Hidden, hidden)
		})
	}
}

// eachModel runs a test with layers of DeepSeek-V4, or with small ones of DeepSeek-V4.1 that share
// entries, picks and candidates, in either records: as the seed says, with VKMLA_TEST_FULL=1 with
// all of them.
func eachModel(t *testing.T, v4 model.Config, test func(t *testing.T, c model.Config, records model.Records)) {
	list := []sessionModel{{name: "v4", config: func() model.Config { return v4 }, records: model.RecordsV4},
		{name: "v41", config: fakemodel.TinyV41, records: model.RecordsV41},
		{name: "v41 in v4 records", config: fakemodel.TinyV41, records: model.RecordsV4}}
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		list = list[testkit.Seed(t)%uint64(len(list)):][:1]
	}
	for _, m := range list {
		t.Run(m.name, func(t *testing.T) { test(t, m.config(), m.records) })
	}
}

// sameRestored demands that a session and its snapshot go on alike.
func sameRestored(t *testing.T, e *pipeline.Engine, width int, hidden []float32) {
	t.Helper()
	half := len(hidden) / 2 / width * width
	s := must[*pipeline.Session](t)(e.Open())
	extend(t, s, e.Layers(), hidden[:half])
	var saved bytes.Buffer
	require.NoError(t, s.Save(t.Context(), &saved))
	back, err := e.Restore(t.Context(), &saved)
	require.NoError(t, err)
	want := extend(t, s, e.Layers(), hidden[half:])
	require.True(t, reflect.DeepEqual(want, extend(t, back, e.Layers(), hidden[half:])), "outputs or picks differ")
	require.NoError(t, errors.Join(s.Close(), back.Close()))
}

// checkFormula demands that layers, which get the same hidden states, agree with the formula as far
// as bf16 and quantised caches let them: outputs with the same picks to 0.061 of their length (it
// is about 0.033), single tokens to 0.1, and nine of ten picks.
func checkFormula(t *testing.T, cfg model.Config, values map[string][]float32, hidden []float32, got []pipeline.Appended) {
	t.Helper()
	s := formula.NewSequence(cfg, formula.Numerics{Exact: true}, values)
	_, all := s.Follow(slices.Repeat([][]float32{hidden}, len(got)), got)
	for layer, f := range all {
		t.Logf("layer %d: %.4f, a token %.4f, %d of %d picks missed", layer, f.Whole, slices.Max(f.Apart), f.Missed, f.Picks)
		assert.Less(t, f.Whole, 0.061, "layer %d", layer)
		assert.Less(t, slices.Max(f.Apart), 0.1, "layer %d", layer)
		assert.Zero(t, f.Few, "layer %d: tokens with another number of picks", layer)
		assert.LessOrEqual(t, 10*f.Missed, f.Picks, "layer %d", layer)
	}
}
