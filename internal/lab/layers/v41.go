package layers

import (
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
)

// v41Config has layers of all roles of DeepSeek-V4.1 but for those that draft.
func v41Config() model.Config {
	c := fakemodel.V41()
	last := len(c.Layers) - 1
	for c.Layers[last].Draft {
		last--
	}
	c.Layers = c.Layers[:last+1]
	return c
}

// v41Lens returns the tokens of two sessions, enough that windows have wrapped and not all entries
// are candidates.
func v41Lens(rng *rand.Rand) []int32 { return []int32{44 + rng.Int32N(8), 36 + rng.Int32N(4)} }

// Bounds of the outputs of layers of DeepSeek-V4.1, as 1 - cos. The definition rounds as the engine
// does, and they are below 1e-5 and 1e-4.
// At most a fiftieth of the picks may be others.
const v41Diff, v41Worst, v41Missed = 2.5e-5, 2e-4, 0.02

// shrink makes every fifth token so small that the epsilon of its norms is seen if it is not the
// model's.
func shrink(hidden []float32, width int) {
	for at := 2 * width; at < len(hidden); at += 5 * width {
		for j := range width {
			hidden[at+j] /= 512
		}
	}
}

// defined returns what layers give by the model's definition, which for DeepSeek-V4 quantises
// nothing.
func (l layerInput) defined() verify.Arrays {
	n, k := l.tokens(), l.cfg.TopK
	out, picks := make([]float32, len(l.layers)*len(l.hidden)), make([]int32, len(l.layers)*n*k)
	at := 0
	for _, tokens := range l.lens {
		hidden := l.hidden[at*l.cfg.Hidden : (at+int(tokens))*l.cfg.Hidden]
		s := formula.NewSequence(l.cfg, formula.Numerics{Exact: l.records == 0, Records: l.records}, l.model.Values)
		inputs := make([][]float32, len(l.layers))
		for i := range inputs {
			inputs[i] = hidden
		}
		all := s.Step(inputs)
		for i := range all {
			for p, r := range all[i] {
				row := i*n + at + p
				copy(out[row*l.cfg.Hidden:], r.Out)
				copy(picks[row*k:], padded(all[l.cfg.Layers[i].PicksOf][p].Picks, k))
			}
		}
		at += int(tokens)
	}
	return l.arrays(out, picks)
}
