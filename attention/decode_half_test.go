package attention_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// Where a device's shared memory does not hold the tile of attn_decode_cm, half of it serves, and
// prompts are not gathered where prefill's two tiles do not fit either.
func TestDecodeHalfTile(t *testing.T) {
	dev := testkit.Device(t)
	if len(dev.Caps().Missing([]string{"coopmat.f16.f32"})) > 0 || testkit.LeftOut(attention.VariantCM) {
		t.Skip("no matrices")
	}
	a := dev.Adapter()
	little := knowncaps.Device{Name: "16 KiB of shared memory", Type: a.Type, Caps: *dev.Caps()}
	little.Caps.SharedMemory = 16384
	dev = testkit.As(t, little)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 21))
	s := step{7, normal(rng, 2*7*attention.D), set(t, 64, 2, normal(rng, 45*attention.D)), set(t, 2, 2, normal(rng, 13*attention.D)), make([]float32, 7)}
	s.comp.Indices[3] = -1
	cfg := s.config(attention.VariantCM)
	cfg.Splits = 1
	attention.WithoutLanes(func() {
		out, lse := s.decode(t, dev, cfg)
		s.check(t, attention.VariantCM, out, lse)
	})
	for _, k := range dev.Kernels() {
		if k.Name() == "attn_decode_cm" {
			assert.Equal(t, little.Caps.CoopMat[0].M, k.Constants()[3], "rows of a tile")
		}
	}
	assert.False(t, attention.Gathers(dev, 1<<16, 1))
	assert.True(t, attention.Gathers(testkit.Device(t), 1<<16, 1))
}
