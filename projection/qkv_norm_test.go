package projection_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestQKVNorm(t *testing.T) { testkit.TestOp(t, "fused_q_kv_rmsnorm") }

// The bits of a token do not depend on which other tokens are in the step.
func TestQKVNormSplit(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, rank = 5, 1032
	rng := rand.New(rand.NewPCG(1, 2))
	x := normal(rng, tokens*(rank+cache.D))
	op := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: rank}))
	all := normArgs(t, dev, rank, tokens)
	testkit.Put(t, all.QR, x)
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, all) })
	q, kv := testkit.Download[uint16](t, all.QROut), testkit.Download[uint16](t, all.KVOut)
	for i := range tokens {
		one := normArgs(t, dev, rank, 1)
		testkit.Put(t, one.QR, x[i*(rank+cache.D):][:rank+cache.D])
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, one) })
		for j, b := range append(testkit.Download[uint16](t, one.QROut), testkit.Download[uint16](t, one.KVOut)...) {
			want := append(append([]uint16{}, q[i*rank:][:rank]...), kv[i*cache.D:][:cache.D]...)[j]
			if b != want {
				t.Fatalf("token %d alone: value %d is 0x%04x, not 0x%04x", i, j, b, want)
			}
		}
	}
}

// Whether sums are passed on inside subgroups or through shared memory, and how memory is
// reached, does not change a bit.
func TestQKVNormLanes(t *testing.T) {
	testkit.WithoutMatrices(t)
	const tokens = 7
	rng := rand.New(rand.NewPCG(3, 4))
	for _, rank := range []int{8, 1032, 1536, 4096} {
		x, w := normal(rng, tokens*(rank+cache.D)), normal(rng, rank+cache.D)
		for i := range rank + cache.D { // of rows 1 to 4
			x[rank+cache.D+i] = uint16(rng.Uint32())
			x[2*(rank+cache.D)+i] = 0x7F00
			x[3*(rank+cache.D)+i] = uint16(i%2) << 15
		}
		x[4*(rank+cache.D)+3], w[rank-1], w[rank+7] = 0x7F80, 0x7F80, 0xFFC0
		for _, f32 := range []bool{false, true} {
			inLanes(t, "proj_qkv_norm", func(dev *vk.Device, variant string, subgroup int) []byte {
				cfg := projection.QKVNormConfig{Rank: rank, Variant: variant, Subgroup: subgroup}
				op := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, cfg))
				a := normArgs(t, dev, rank, tokens)
				testkit.Put(t, a.QR, x)
				testkit.Put(t, a.KVWeight, w[rank:])
				if testkit.Put(t, a.QRWeight, w[:rank]); f32 {
					a.QRWeight = testkit.Upload(t, dev, tensor.F32, numfmt.BF16DecodeSlice(nil, w[:rank]), rank)
				}
				do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
				return bytesOf(t, a.QROut, a.KVOut)
			})
		}
	}
}

// normArgs are arguments of one tensor of rows, all zeros, with weights 1.
func normArgs(t *testing.T, dev *vk.Device, rank, tokens int) projection.QKVNormArgs {
	ones := func(n int) tensor.Tensor {
		return testkit.Upload(t, dev, tensor.BF16, slices.Repeat([]uint16{0x3F80}, n), n)
	}
	zeros := func(columns int) tensor.Tensor { return testkit.Zeros(t, dev, tensor.BF16, tokens, columns) }
	x := zeros(rank + cache.D)
	return projection.QKVNormArgs{QR: x, KV: x, KVAt: rank, QRWeight: ones(rank), KVWeight: ones(cache.D),
		QROut: zeros(rank), KVOut: zeros(cache.D)}
}

func TestQKVNormArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, projection.NewQKVNorm, map[string]projection.QKVNormConfig{
		"no rank": {}, "odd rank": {Rank: 12}, "long rank": {Rank: 8200}, "eps": {Rank: 64, Eps: -1},
		"infinite eps": {Rank: 64, Eps: float32(math.Inf(1))}, "no eps": {Rank: 64, Eps: float32(math.NaN())},
	})
	op := must[*projection.QKVNorm](t)(projection.NewQKVNorm(dev, projection.QKVNormConfig{Rank: 64}))
	good := normArgs(t, dev, 64, 3)
	type normArgs = projection.QKVNormArgs
	testkit.Changes[normArgs]{
		"QR": {func(a *normArgs) { a.QRAt = 4 }, func(a *normArgs) { a.QRAt = -8 }, func(a *normArgs) { a.QRAt = 520 },
			func(a *normArgs) { a.QR.Shape = []int{2, 572} }},
		"KV":       {func(a *normArgs) { a.KVAt = 72 }, func(a *normArgs) { a.KV.Shape = []int{3 * 576} }},
		"QRWeight": {func(a *normArgs) { a.QRWeight = a.KVWeight }},
	}.Refuse(t, dev, op.Record, good)
	none := good
	none.QR.Shape, none.KV.Shape, none.QROut.Shape, none.KVOut.Shape = []int{0, 576}, []int{0, 576}, []int{0, 64}, []int{0, 512}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
}
