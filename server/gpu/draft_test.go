package gpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// TestDrafts compares what a draft block keeps of tokens, and the drafts of two blocks, with what
// the processor makes of them.
func TestDrafts(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(13, 14))
	for _, f := range []formats{released, {routed: weights.FP8, shared: weights.BF16, gate: weights.F32, ends: weights.F32}} {
		w := smallDrafts(rng, f)
		w.Draft.MarkovIn = scaled(w.Draft.MarkovIn, 40) // drafts follow each other
		g, c := opened(t, dev, w, Options{MaxStep: 8})
		const T = 6
		d, s, ids := w.Config.Hidden, &cpu.Streams{}, tokenIDs(rng, T, w.Config.Vocab)
		step(t, g, ids)
		upload(t, g, g.step, []uint32{T, 0, T / 3})
		poison(t, g, g.streams, g.mix, g.parts, g.headX.plain, g.draft.states.plain, g.draft.x.plain, g.draft.sums, g.draft.drafts)
		c.Embed(s, ids)
		states, want := make([]float32, T*d), make([]float32, T*d)
		c.State(s, states, 0, d)
		c.Context(states, want)
		run(t, g, func(rec *vk.Recorder) error {
			if err := g.leave(rec, 8, g.embedding(), &g.layers[1].attnHC); err != nil {
				return err
			}
			if err := g.keepState(rec, 8, 0); err != nil {
				return err
			}
			return g.context(rec, 8, g.routedH.plain)
		})
		assert.Equal(t, states, unplaced(download(t, g, g.draft.states.plain), d, T), "states")
		var got []float32
		for _, word := range download(t, g, g.routedH.plain)[:T*d/2] {
			got = append(got, math.Float32frombits(word<<16), math.Float32frombits(word&0xFFFF0000))
		}
		assert.Less(t, off(got, want), 4e-3, "what is kept of tokens")

		run(t, g, func(rec *vk.Recorder) error { return g.follow(rec, 8, g.embedding()) })
		logits := numbers(t, g, g.headY)[:T*w.Config.Vocab] // of the device: others have others largest
		all := make([]float32, len(logits))
		c.Head(s, true, []int{0, 1, 2, 3, 4, 5}, all)
		assert.Less(t, off(logits, all), 8e-3, "logits")
		alone := 0
		for r, want := range c.Follow(ids, logits, 3) {
			assert.Equal(t, want, g.Drafts(3*r))
			for i, id := range want {
				row := logits[(3*r+i)*w.Config.Vocab:][:w.Config.Vocab]
				for _, v := range row {
					if v > row[id] {
						alone++
						break
					}
				}
			}
		}
		require.NotZero(t, alone, "drafts that the one before decides")
	}
}

// scaled multiplies the numbers of a matrix, as f32.
func scaled(m weights.Matrix, by float32) weights.Matrix {
	out, row := weights.Matrix{Format: weights.F32, N: m.N, K: m.K}, make([]float32, m.K)
	for n := range m.N {
		m.Row(row, n)
		for _, v := range row {
			out.Data = append(out.Data, bytesOf(v*by)...)
		}
	}
	return out
}

func bytesOf(v float32) []byte {
	b := math.Float32bits(v)
	return []byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)}
}
