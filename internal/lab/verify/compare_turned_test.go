package verify

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// fusedPair finds a pair and a turn of which the even number, rounded to bf16, depends on
// whether product and difference are fused: plain and fused are its two results, which ok
// has to like.
func fusedPair(t *testing.T, rng *rand.Rand, ok func(plain, fused uint16) bool) (even, odd uint16, c, s float32, plain, fused uint16) {
	t.Helper()
	for range 1 << 20 {
		even, odd = numfmt.BF16Encode(float32(0.5+rng.Float64()/2)), numfmt.BF16Encode(float32(rng.Float64()/4))
		x, y := float64(numfmt.BF16Decode(even)), float64(numfmt.BF16Decode(odd))
		// The even number becomes about the middle between two of bf16.
		middle := math.Ldexp(float64(257+2*rng.IntN(128)), -9)
		s = float32(rng.Float64())
		c = float32((middle + y*float64(s)) / x)
		a, b := float32(x*float64(c)), float32(y*float64(s))
		plain, fused = numfmt.BF16Encode(a-b), numfmt.BF16Encode(float32(x*float64(c)-float64(b)))
		if plain != fused && ok(plain, fused) {
			return even, odd, c, s, plain, fused
		}
	}
	t.Fatal("no pair")
	return
}

// A recorded kernel may fuse what turns a number; a random case's reference may not, and
// nobody may round what is decided another way.
func TestTurnedRows(t *testing.T) {
	even, odd, c, s, _, fused := fusedPair(t, rand.New(rand.NewPCG(1, 1)), func(uint16, uint16) bool { return true })
	op, _ := Lookup("fused_qnorm_rope_kv_insert")
	kv, table := make([]uint16, cache.D), make([]float32, cache.RopeDim)
	for i := range table {
		table[i] = 0.25
	}
	for d := range kv {
		kv[d] = numfmt.BF16Encode(float32(d%7) + 1)
	}
	kv[cache.NopeDim], kv[cache.NopeDim+1], table[0], table[cache.RopeDim/2] = even, odd, c, s
	in := Case{Op: op.Name, Name: "fused", Source: "a folder", Params: map[string]any{"eps": 1e-6, "block_size": 1},
		In: Arrays{"q": vectors.FromU16(kv, 1, 1, cache.D), "kv": vectors.FromU16(kv, 1, cache.D), "slot_mapping": vectors.FromI64([]int64{0}, 1),
			"positions": vectors.FromI64([]int64{0}, 1), "cos_sin_rows": vectors.FromF32(table, 1, cache.RopeDim),
			"cache_before": vectors.Filled(0xA5, vectors.U8, 1, cache.RecordV4.SlotBytes())}}
	got, err := op.Ref(in)
	require.NoError(t, err)
	with := func(at int, v uint16) Arrays {
		a := got["cache_after"].Clone()
		binary.LittleEndian.PutUint16(a.Data[at:], v)
		return Arrays{"q_out": got["q_out"], "cache_after": a}
	}
	want := with(cache.NopeDim, fused)
	require.False(t, bytes.Equal(want["cache_after"].Data, got["cache_after"].Data), "the reference fuses")
	r := op.Compare(in, got, want)
	assert.True(t, r.Pass, "a number that was fused: %+v", r)
	next := binary.LittleEndian.Uint16(got["cache_after"].Data[cache.NopeDim+2:]) + 1
	assert.False(t, op.Compare(in, with(cache.NopeDim+2, next), want).Pass, "a decided number that is rounded up passes")
	in.Source = "random"
	assert.False(t, op.Compare(in, got, want).Pass, "a random case with a fused reference passes")
}

func TestTurnedQueries(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for name, f := range map[string]blockFormat{"fused_indexer_q_rope_quant_fp8": blockE4M3, "fused_indexer_q_rope_quant_mxfp4": blockE2M1} {
		// The block's largest is the code format's, so that the scale is 1.
		largest := map[string]float32{"fused_indexer_q_rope_quant_fp8": 448, "fused_indexer_q_rope_quant_mxfp4": 6}[name]
		even, odd, c, s, plain, fused := fusedPair(t, rng, func(a, b uint16) bool {
			return f.encode(numfmt.BF16Decode(a)) != f.encode(numfmt.BF16Decode(b))
		})
		q, table := make([]uint16, cache.IndexDim), make([]float32, cache.RopeDim)
		for i := range cache.RopeDim / 2 {
			table[i] = 1
		}
		q[64], q[65], table[0], table[cache.RopeDim/2] = even, odd, c, s
		q[0], q[70] = numfmt.BF16Encode(largest), numfmt.BF16Encode(largest)
		op, _ := Lookup(name)
		in := Case{Op: name, Name: "fused", Source: "a folder", Params: map[string]any{"softmax_scale": 1, "head_scale": 1},
			In: Arrays{"q": vectors.FromU16(q, 1, 1, cache.IndexDim), "positions": vectors.FromI64([]int64{0}, 1),
				"weights": vectors.FromBF16([]float32{1}, 1, 1), "cos_sin_rows": vectors.FromF32(table, 1, cache.RopeDim)}}
		got, err := op.Ref(in)
		require.NoError(t, err)
		codes := map[bool]string{true: "q_fp8", false: "q_packed"}[f.sign == 0x80]
		with := func(d int, code byte) Arrays {
			a := Arrays{}
			for n, x := range got {
				a[n] = x.Clone()
			}
			if f.sign == 0x80 {
				a[codes].Data[d] = code
			} else {
				a[codes].Data[d/2] = a[codes].Data[d/2]&^(15<<(4*(d%2))) | code<<(4*(d%2))
			}
			return a
		}
		require.True(t, bytes.Equal(with(64, f.encode(numfmt.BF16Decode(plain)))[codes].Data, got[codes].Data),
			"%s: the reference does not turn as the test does", name)
		want := with(64, f.encode(numfmt.BF16Decode(fused)))
		r := op.Compare(in, got, want)
		assert.True(t, r.Pass && r.Class == ClassBoundary, "%s: a number that was fused: %+v", name, r)
		assert.False(t, op.Compare(in, with(0, f.encode(largest)-1), want).Pass, "%s: a code that is decided passes", name)
		in.Source = "random"
		assert.False(t, op.Compare(in, got, want).Pass, "%s: a random case with a fused reference passes", name)
	}
}
