package pipeline_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/formula"
	official "github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineGolden41 compares layers with what the official ones gave: prefill in chunks, then
// token by token. With the model's own records all picks are the recorded ones. Where products take
// halves, they are all the definition's with such inputs: rows 5 and 200, 2^-13 of the others, are
// rounded, which moves a number of either's key in layer 4 by a bf16 step to another code. With
// records of V4 up to four keys of a layer differ by a bf16 step before they become FP8, in any
// order of f32 sums: channel 175 of what becomes the latent of entry 22 of layer 4 is 2.4 steps of
// f32 from the middle of two bf16 numbers. Orders only differ in which keys these are, and halves
// move those two. So other picks have to be for such a key, or for a tie of recorded scores: token
// 175 of layer 3 has zeros from its 32nd score to its 34th: the oldest entry is right, and the
// recording has the middle one.
//
// The run with activations of E4M3 has scores of bf16, whose ties are picked in another order:
// outputs are those of tokens with the same picks, and a bf16 step before wo_b is one of E4M3.
func TestEngineGolden41(t *testing.T) {
	dir := testkit.FurtherGolden(t)
	if dir == "" || testing.Short() {
		t.Skip("VKMLA_TEST_GOLDEN is not set, or the tests are short: no recordings of DeepSeek-V4.1")
	}
	testkit.WithoutMatrices(t)
	dev, dir := testkit.Device(t), filepath.Join(filepath.Dir(dir), "golden41")
	v := must[*official.V41](t)(official.OpenV41(dir))
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), dev, nil))
	t.Cleanup(func() { assert.NoError(t, errors.Join(model.CloseLayers(layers), c.Close())) })
	var hidden [][]float32
	for i := range layers {
		hidden = append(hidden, must[[]float32](t)(v.In(fmt.Sprintf("L%d.in", i))))
	}
	tokens := len(hidden[0]) / c.Config.Hidden
	var rounded [][]formula.Rounded
	if takeHalves(t, dev, c.Config) {
		rounded = formula.NewSequence(c.Config, formula.Numerics{Records: model.RecordsV41, Halves: true}, v.Values).Step(hidden)
	}
	for _, x := range []struct {
		run     string
		records model.Records
		few     bool    // activations of few bits
		recall  float64 // of a layer's picks
		layer   float64 // relative error of the outputs of tokens with equal picks
		token   float64 // of a token's
	}{{"v41", model.RecordsV41, false, 1, 5e-3, 1e-2}, {"v4", model.RecordsV4, false, 0.998, 5e-3, 1e-2},
		{"official", model.RecordsV41, true, 0.99, 0.015, 0.06}} {
		t.Run(x.run, func(t *testing.T) {
			e := engine(t, dev, c.Config, layers, options{MaxTokens: tokens, MaxStep: 64, KeepTopK: true, Records: x.records,
				QuantiseActivations: x.few})
			s := must[*pipeline.Session](t)(e.Open())
			got := taken(t, s, c.Config.Hidden, v.Prefill, hidden)
			run := must[*vectors.Archive](t)(v.Run(x.run))
			other := make([][]bool, len(got)) // tokens with other picks than the recorded ones
			for i := range got {
				if name := fmt.Sprintf("L%d.picks", i); run.Has(name) {
					picks := must[vectors.Array](t)(run.Array(name)).Float64s()
					if x.records == model.RecordsV4 && c.Config.Layers[i].Candidates != model.CandidatesUsed {
						most := 4
						if rounded != nil {
							most = 6
						}
						explained(t, e, s, c.Config, run, i, most, got[i].TopK, picks)
					}
					missed, of := 0, 0
					for p := range tokens {
						var recorded []int
						for _, e := range picks[p*c.Config.TopK:][:c.Config.TopK] {
							if e >= 0 {
								recorded = append(recorded, int(e))
							}
						}
						chosen := formula.Picked(got[i].TopK, c.Config.TopK, p)
						require.Len(t, chosen, len(recorded), "layer %d, token %d", i, p)
						wanted := recorded
						if x.run == "v41" && rounded != nil {
							wanted = rounded[i][p].Picks
						}
						missed, of = missed+len(formula.Minus(wanted, chosen)), of+len(wanted)
						other[i] = append(other[i], len(formula.Minus(recorded, chosen)) > 0)
					}
					t.Logf("layer %d: %d of %d picks", i, of-missed, of)
					assert.GreaterOrEqual(t, float64(of-missed)/float64(of), x.recall, "layer %d", i)
				}
				want := must[vectors.Array](t)(run.Array(fmt.Sprintf("L%d.out", i))).BF16()
				var out, as []float32
				from := c.Config.Layers[i].PicksOf
				for p := range tokens {
					if at, to := p*c.Config.Hidden, (p+1)*c.Config.Hidden; other[from] == nil || !other[from][p] {
						require.Less(t, formula.Apart(got[i].Out[at:to], want[at:to]), x.token, "layer %d, token %d", i, p)
						out, as = append(out, got[i].Out[at:to]...), append(as, want[at:to]...)
					}
				}
				t.Logf("layer %d: %.4f of %d tokens", i, formula.Apart(out, as), len(out)/c.Config.Hidden)
				assert.Less(t, formula.Apart(out, as), x.layer, "layer %d", i)
			}
			require.NoError(t, s.Close())
		})
	}
}

// takeHalves reports whether the device multiplies activations of a step of many tokens as halves.
func takeHalves(t *testing.T, dev *vk.Device, c model.Config) bool {
	t.Helper()
	op := must[*projection.Linear](t)(projection.NewLinear(dev, projection.LinearConfig{N: c.QRank, K: c.Hidden,
		Weights: projection.FormatFP8x32, Out: tensor.BF16}))
	return op.Variant() == opkit.CM || op.Variant() == opkit.Dot
}

// explained demands that at most `most` keys of a layer have other bytes than the recorded ones,
// and of each token with other picks that an entry of them has such a key; or that the recorded
// scores of both are equal, and the picked one is older; or so near that a code of the query
// decides. Such a step is at most an eighth of one of its 1024 numbers, which moves scores by about
// 1/8/sqrt(1024), 0.004, of their size.
func explained(t *testing.T, e *pipeline.Engine, s *pipeline.Session, c model.Config, run *vectors.Archive, layer, most int,
	got []int32, recorded []float64) {
	t.Helper()
	l := &c.Layers[layer]
	keys := must[vectors.Array](t)(run.Array(fmt.Sprintf("L%d.key_rec", layer)))
	logits := must[vectors.Array](t)(run.Array(fmt.Sprintf("L%d.logits", layer)))
	scores, wide := logits.F32(), logits.Dim(1)
	p, pool := l.Pool(model.StoreKeys), slices.Index(poolNames(c), l.Pool(model.StoreKeys).Name)
	memory, place := places(e.Caches(layer), model.StoreKeys)
	data := testkit.Download[byte](t, memory)
	moved := func(entry int) bool {
		want := keys.Data[entry*keys.Dim(1):][:keys.Dim(1)]
		numbers, scales := place(s.PageOf(pool, entry/p.Page)*p.Page + entry%p.Page)
		n := len(want) - scaleBytes(e.Caches(layer), model.StoreKeys)
		return !slices.Equal(want[:n], data[numbers:][:n]) || !slices.Equal(want[n:], data[scales:][:len(want)-n])
	}
	other := 0
	for entry := range keys.Dim(0) {
		if moved(entry) {
			other++
		}
	}
	t.Logf("layer %d: %d of %d keys are others", layer, other, keys.Dim(0))
	assert.LessOrEqual(t, other, most, "layer %d: keys of other bytes", layer)
	for at := 0; at < len(got); at += c.TopK {
		token, mine, theirs := at/c.TopK, []int{}, []int{}
		for k := range c.TopK {
			if e := got[at+k]; !slices.Contains(recorded[at:at+c.TopK], float64(e)) {
				mine = append(mine, int(e))
			}
			if e := recorded[at+k]; !slices.Contains(got[at:at+c.TopK], int32(e)) {
				theirs = append(theirs, int(e))
			}
		}
		require.Len(t, theirs, len(mine), "layer %d, token %d", layer, token)
		if len(mine) == 0 || slices.ContainsFunc(slices.Concat(mine, theirs), moved) {
			continue
		}
		for k := range mine {
			a, b := scores[token*wide+mine[k]], scores[token*wide+theirs[k]]
			assert.True(t, a == b && mine[k] < theirs[k] || a < b && b-a < 0.004*float32(formula.MeanSize(scores[token*wide:][:wide])),
				"layer %d, token %d: picked %d of score %v, recorded %d of %v", layer, token, mine[k], a, theirs[k], b)
		}
	}
}
