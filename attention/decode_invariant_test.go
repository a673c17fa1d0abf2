package attention_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// A token of an invariant decoder has the same bits in steps of any number of tokens, also of so
// many that they go in pieces. Otherwise it has others, so that this test can fail.
func TestDecodeInvariant(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 12))
	const heads, tokens = 5, 150
	s := step{heads, normal(rng, tokens*heads*cache.D), set(t, 64, tokens, normal(rng, 131*cache.D)), nil, make([]float32, heads)}
	for i := 0; i < tokens; i += 2 { // the others have all 131 rows: a short one may be one part in any step
		s.win.Lens[i] = int32(rng.IntN(132))
	}
	part := func(from, to int) step {
		win := *s.win
		win.Indices, win.Lens = win.Indices[from*win.Width:to*win.Width], win.Lens[from:to]
		return step{heads, s.q[from*heads*cache.D : to*heads*cache.D], &win, nil, s.sink}
	}
	for _, v := range variants(t, dev, heads) {
		if strings.HasPrefix(v, opkit.TwoPass) {
			continue
		}
		t.Run(v, func(t *testing.T) {
			differ := map[bool]int{}
			for _, invariant := range []bool{true, false} {
				cfg := s.config(v)
				cfg.Invariant = invariant
				out, lse := s.decode(t, dev, cfg)
				for _, n := range []int{1, 3, 70} {
					from := rng.IntN(tokens - n + 1)
					o, l := part(from, from+n).decode(t, dev, cfg)
					for i, x := range o {
						if x != out[from*heads*cache.D+i] {
							differ[invariant]++
						}
					}
					for i, x := range l {
						if x != lse[from*heads+i] {
							differ[invariant]++
						}
					}
				}
			}
			assert.Zero(t, differ[true], "numbers that depend on the tokens of the step")
			assert.Positive(t, differ[false], "the same where they may")
		})
	}
	_, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: heads, WindowPage: 64, Invariant: true,
		Variant: opkit.TwoPass + opkit.Base})
	assert.ErrorIs(t, err, vk.ErrArgument)
}
