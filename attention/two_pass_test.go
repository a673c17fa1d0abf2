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
	"github.com/vkmla/vkmla/internal/opkit"
)

func TestTwoPass(t *testing.T) { testkit.TestOp(t, "xpu_sparse_decode") }

// Without the XPU path's zero rows both strategies have one definition.
func TestTwoPassRef(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	win, comp := set(t, 64, 2, normal(rng, 9*cache.D)), set(t, 2, 2, normal(rng, 5*cache.D))
	win.Indices[3], comp.Indices[0], win.Lens[1] = -1, 1<<30, 4
	q, sink := normal(rng, 2*3*cache.D), []float32{0, 1, inf(-1)}
	out, lse, err := attention.DecodeRef(q, 3, win, comp, sink, attention.DefaultScale)
	require.NoError(t, err)
	two, twoLSE, err := attention.TwoPassRef(q, 3, win, comp, sink, attention.DefaultScale, false)
	require.NoError(t, err)
	assert.True(t, slices.Equal(out, two) && slices.Equal(lse, twoLSE), "the references of the two strategies differ")
	zero, _, err := attention.TwoPassRef(q, 3, win, comp, sink, attention.DefaultScale, true)
	require.NoError(t, err)
	assert.False(t, slices.Equal(out, zero), "masked entries as rows of zeros make no difference")
}

// The formula of the scratch size, and the first pass without a compressed set.
func TestTwoPassScratch(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*attention.TwoPass](t)(attention.NewTwoPass(dev, attention.TwoPassConfig{
		DecoderConfig: attention.DecoderConfig{Heads: 4, WindowPage: 64, CompressedPage: 2, Splits: 1, Variant: opkit.Base}}))
	// 3*(128+61)*1024, 3*192*4 and 3*4, each rounded up to 256.
	assert.Equal(t, uint64(580608+2304+256), op.ScratchBytes(3, 128, 61), "ScratchBytes")
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	s := step{4, normal(rng, 3*4*cache.D), set(t, 64, 3, normal(rng, 17*cache.D)), nil, nil}
	for _, v := range variants(t, dev, 4) {
		out, lse := s.decode(t, dev, s.config(v))
		s.check(t, v, out, lse)
	}
}

// Tokens that go in pieces give the same bits as all at once, in less memory.
func TestTwoPassPieces(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	const tokens, heads = 70, 2 // two pieces where lengths are bound at multiples of 256 bytes
	s := step{heads, normal(rng, tokens*heads*cache.D), set(t, 64, tokens, normal(rng, 7*cache.D)),
		set(t, 2, tokens, normal(rng, 5*cache.D)), []float32{0, 1}}
	for i := range tokens {
		s.win.Lens[i], s.comp.Indices[i*5] = int32(i%8), int32(i%6+5)-int32(i%2*20)
	}
	for _, v := range variants(t, dev, heads) {
		if !strings.HasPrefix(v, opkit.TwoPass) {
			continue
		}
		t.Run(v, func(t *testing.T) {
			cfg := s.config(v)
			cfg.Splits = 1
			out, lse := s.decode(t, dev, cfg)
			s.check(t, v, out, lse)
			whole := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg)).ScratchBytes(tokens, 7, 5)
			cfg.Workspace = 1
			less := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg)).ScratchBytes(tokens, 7, 5)
			assert.Less(t, less, whole)
			pieces, pieceLSE := s.decode(t, dev, cfg)
			assert.True(t, slices.Equal(out, pieces) && slices.Equal(lse, pieceLSE), "other bits in pieces")
		})
	}
}
