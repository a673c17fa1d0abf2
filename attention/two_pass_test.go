package attention_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestTwoPass(t *testing.T) { testkit.TestOp(t, "xpu_sparse_decode") }

// Without the XPU path's zero rows both strategies have one definition.
func TestTwoPassRef(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	win, comp := set(t, 64, 2, normal(rng, 9*attention.D)), set(t, 2, 2, normal(rng, 5*attention.D))
	win.Indices[3], comp.Indices[0], win.Lens[1] = -1, 1<<30, 4
	q, sink := normal(rng, 2*3*attention.D), []float32{0, 1, inf(-1)}
	out, lse, err := attention.DecodeRef(q, 3, win, comp, sink, attention.DefaultScale)
	if err != nil {
		t.Fatal(err)
	}
	two, twoLSE, err := attention.TwoPassRef(q, 3, win, comp, sink, attention.DefaultScale, false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(out, two) || !slices.Equal(lse, twoLSE) {
		t.Error("the references of the two strategies differ")
	}
	zero, _, err := attention.TwoPassRef(q, 3, win, comp, sink, attention.DefaultScale, true)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(out, zero) {
		t.Error("masked entries as rows of zeros make no difference")
	}
}

// The formula of the scratch size, and the first pass without a compressed set.
func TestTwoPassScratch(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*attention.TwoPass](t)(attention.NewTwoPass(dev, attention.TwoPassConfig{
		DecoderConfig: attention.DecoderConfig{Heads: 4, WindowPage: 64, CompressedPage: 2, Splits: 1, Variant: attention.VariantBase}}))
	// 3*(128+61)*1024, 3*192*4 and 3*4, each rounded up to 256.
	if got, want := op.ScratchBytes(3, 128, 61), uint64(580608+2304+256); got != want {
		t.Errorf("ScratchBytes %d, want %d", got, want)
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	s := step{4, normal(rng, 3*4*attention.D), set(t, 64, 3, normal(rng, 17*attention.D)), nil, nil}
	for _, v := range variants(t, dev, 4) {
		out, lse := s.decode(t, dev, s.config(v))
		s.check(t, v, out, lse)
	}
}
