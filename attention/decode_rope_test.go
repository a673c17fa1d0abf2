package attention_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// The attention undoes RoPE with the bits of a launch of its own.
func TestDecodeInverseRope(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	const heads, tokens, rows = 21, 3, 40
	s := step{heads, normal(rng, tokens*heads*cache.D), set(t, 16, tokens, normal(rng, 61*cache.D)), set(t, 2, tokens, normal(rng, 40*cache.D)), nil}
	s.win.Lens[1], s.comp.Lens[1] = 0, 0 // 0 stays 0
	positions, table := []int32{rows - 1, 3, rows + 7}, make([]float32, rows*64)
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	for _, v := range variants(t, dev, heads) {
		for _, c := range []struct{ splits, workgroups int }{{1, 1}, {1, 1000}, {2, 0}, {7, 0}} { // 1000: in small groups
			t.Run(subtest(v, c), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = c.splits, c.workgroups
				want, _ := s.decode(t, dev, cfg)
				require.NoError(t, projection.InverseRopeRef(want, heads, positions, table))
				op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := attention.DecodeArgs{Q: r.In(vectors.FromU16(s.q, tokens, heads, cache.D), tensor.BF16), Window: slotSet(r, s.win),
					Compressed: slotSet(r, s.comp), Out: r.Out(tensor.BF16, tokens, heads, cache.D)}
				if n := op.ScratchBytes(tokens, s.win.Width, s.comp.Width); n > 0 {
					a.Scratch = r.Out(tensor.F32, int(n+3)/4).View()
				}
				a.InverseRope = attention.InverseRope{Positions: r.In(vectors.FromI32(positions, tokens), tensor.I32), Table: r.In(vectors.FromF32(table, rows, 64), tensor.F32)}
				parts := func(rec *vk.Recorder) error { // who joins them undoes RoPE
					_, err := op.RecordParts(rec, a)
					return err
				}
				if c.splits == 1 {
					refuses(t, dev, "Q", parts)
				} else if !strings.HasPrefix(v, opkit.TwoPass) {
					refuses(t, dev, "InverseRope", parts)
				}
				if !op.InvertsRope(tokens, s.win.Width, s.comp.Width) {
					refuses(t, dev, "InverseRope", func(rec *vk.Recorder) error { return op.Record(rec, a) })
					return
				}
				bad := a
				bad.InverseRope.Positions = tensor.Tensor{}
				refuses(t, dev, "InverseRope.Positions", func(rec *vk.Recorder) error { return op.Record(rec, bad) })
				r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
				got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))
				assert.True(t, slices.Equal(got["out"].U16(), want), "other bits than those of two launches")
			})
		}
	}
}
