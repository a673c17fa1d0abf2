package attention_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// bothLayouts runs f as it is on the device and, where that makes a difference, as on one
// whose matrices lie in lanes in another way.
func bothLayouts(t *testing.T, cfg attention.DecoderConfig, f func(t *testing.T)) {
	t.Helper()
	if attention.InLanes(must[*attention.Decoder](t)(attention.NewDecoder(testkit.Device(t), cfg))) {
		t.Run("in lanes", f)
	}
	attention.WithoutLanes(func() { t.Run("without", f) })
}

// Workgroups with as many heads as fit give the result: with more rows than are found at
// once, masked ones among them, heads that do not fill the last workgroup, whole rows and
// parts, and scores that outgrow the first ones.
func TestDecodeManyHeads(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	const heads = 39
	s := step{heads, normal(rng, 2*heads*cache.D), set(t, 64, 2, normal(rng, 141*cache.D)), set(t, 2, 2, normal(rng, 61*cache.D)), make([]float32, heads)}
	for i := range s.q[:heads*cache.D] { // of the first token
		s.q[i] = numfmt.BF16Encode(numfmt.BF16Decode(s.q[i]) * float32(1+i/cache.D/2))
	}
	s.win.Lens[1], s.comp.Indices[3], s.win.Indices[17] = 2, -1, math.MaxInt32
	for _, v := range variants(t, dev, s.heads) {
		for _, n := range []int{1, 2} {
			t.Run(subtest(v, n), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = n, 1
				bothLayouts(t, cfg, func(t *testing.T) {
					out, lse := s.decode(t, dev, cfg)
					s.check(t, v, out, lse)
				})
			})
		}
	}
}

// Heads that have no room beside a tile of two matrices' rows take one of one matrix's, so that a
// workgroup has all of them, and give the result: of both records, where lanes load rows
// themselves, whole rows and parts.
func TestDecodeHalfTile(t *testing.T) {
	a := *testkit.Device(t).Adapter()
	if testkit.LeftOut(opkit.CM) || a.Type != vk.TypeCPU || attention.CanDecode(&a, opkit.CM, 64) != nil {
		t.Skip("no processor with matrices of f16")
	}
	a.Caps.SharedMemory = 24 << 10 // room for 32 heads with 16 rows, for 64 with 8
	dev := must[*vk.Device](t)(a.Open(vk.DeviceOptions{Profile: "rdna4"}))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 10))
	const heads, tokens = 61, 2
	s := step{heads, normal(rng, tokens*heads*cache.D), recordSet(t, cache.RecordFP8, 64, tokens, normal(rng, 69*cache.D)),
		recordSet(t, cache.RecordFP4, 64, tokens, normal(rng, 41*cache.D)), make([]float32, heads)}
	for i := range s.q[:heads*cache.D] { // of the first token: scores outgrow the first ones
		s.q[i] = numfmt.BF16Encode(numfmt.BF16Decode(s.q[i]) * float32(1+i/cache.D/4))
	}
	s.win.Lens[1], s.comp.Indices[3] = 2, -1
	for _, splits := range []int{1, 3} {
		t.Run(subtest(splits), func(t *testing.T) {
			cfg := s.config(opkit.CM)
			cfg.Splits, cfg.Workgroups, cfg.OnDemand = splits, 1, true
			cfg.WindowRecord, cfg.CompressedRecord = cache.RecordFP8, cache.RecordFP4
			attention.ByRows(func() {
				out, lse := s.decode(t, dev, cfg)
				s.check(t, opkit.CM, out, lse)
			})
		})
	}
	k := dev.Kernels()[0]
	assert.Equal(t, "attn_decode_cm", k.Name())
	assert.Equal(t, []uint32{64, 8}, k.Constants()[2:4], "heads and rows at a time")
	assert.EqualValues(t, 2, k.Constants()[10], "how rows lie")
}

// Scores of any size end, and one of the largest wins alone.
func TestDecodeHugeScores(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 9))
	large := func(n int, by float32) []uint16 {
		v := normal(rng, n*cache.D)
		for i := range v {
			v[i] = numfmt.BF16Encode(min(max(numfmt.BF16Decode(v[i]), -4), 4) * by)
		}
		return v
	}
	s := step{9, large(9, 14000), set(t, 64, 1, large(40, 12000)), nil, nil} // some 2^28, where f32 has steps of 32
	for _, v := range variants(t, dev, s.heads) {
		t.Run(v, func(t *testing.T) {
			cfg := s.config(v)
			cfg.Workgroups = 1
			bothLayouts(t, cfg, func(t *testing.T) {
				out, lse := s.decode(t, dev, cfg)
				s.check(t, v, out, lse)
			})
		})
	}
}

// A NaN code anywhere in a row is a NaN there in all heads of a token that attends it, and
// in nothing of others.
func TestDecodeNaNCode(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 10))
	const heads, rows = 33, 7
	dims := []int{0, 9, 130, 255, 383, 384, 447}
	s := step{heads, normal(rng, (len(dims)+1)*heads*cache.D), set(t, 64, len(dims)+1, normal(rng, (len(dims)+rows)*cache.D)), nil, nil}
	for i, d := range dims { // row i is NaN in dims[i], and only token i attends it
		s.win.Pool[s.win.Layout.RowOffset(int64(5+i))+int64(d)] = 0x7F | byte(i%2)<<7
		s.win.Indices[i*s.win.Width] = int32(5 + i)
	}
	for token := range s.win.Lens {
		first := s.win.Indices[token*s.win.Width:][:s.win.Width]
		for j := range first {
			if j > 0 || token == len(dims) {
				first[j] = int32(5 + len(dims) + j%rows)
			}
		}
	}
	for _, v := range variants(t, dev, s.heads) {
		t.Run(v, func(t *testing.T) {
			cfg := s.config(v)
			cfg.Workgroups = 1
			bothLayouts(t, cfg, func(t *testing.T) {
				out, _ := s.decode(t, dev, cfg)
				for i, x := range out {
					token := i / (heads * cache.D)
					nan := math.IsNaN(float64(numfmt.BF16Decode(x)))
					if token < len(dims) && i%cache.D == dims[token] && !nan || token == len(dims) && nan {
						t.Fatalf("token %d, head %d, dim %d: %#x", token, i/cache.D%heads, i%cache.D, x)
					}
				}
			})
		})
	}
}
