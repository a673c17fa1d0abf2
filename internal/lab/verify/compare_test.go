package verify

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
)

var inf, nan = float32(math.Inf(1)), float32(math.NaN())

func f32(v ...float32) Array { return vectors.FromF32(v, len(v)) }

func TestExact(t *testing.T) {
	want := vectors.FromI32([]int32{1, 2, 3, 4}, 2, 2)
	got := want.Clone()
	r := NewComparison(ClassExact).Exact("x", got, want).Result()
	assert.True(t, r.Pass && r.Error == 0 && r.Bound == 0 && r.Class == "E", "equal: %+v", r)
	got.Data[12] = 9
	r = NewComparison(ClassExact).Exact("x", got, want).Result()
	assert.False(t, r.Pass || r.Error != 1 || !strings.Contains(r.Detail, "[1, 1]: got 9, want 4"), "one differs: %+v", r)
	for name, got := range map[string]Array{"absent": {}, "other shape": vectors.FromI32([]int32{1, 2, 3, 4}, 4), "other type": f32(1, 2, 3, 4)} {
		r := NewComparison(ClassExact).Exact("x", got, want).Result()
		assert.False(t, r.Pass || !math.IsInf(r.Error, 1), "%s: %+v", name, r)
	}
	assert.False(t, NewComparison(ClassExact).Exact("x", Array{}, Array{}).Result().Pass,
		"a case that wants nothing must not pass")
	assert.False(t, NewComparison(ClassExact).Result().Pass, "a comparison of nothing must not pass")
}

// What a case lacks is said in one way by all, and once.
func TestNotSaid(t *testing.T) {
	none, tol := Array{}, Tolerance{Abs: 1, Rel: 1}
	for name, compare := range map[string]func(c *Comparison) *Comparison{
		"exact":     func(c *Comparison) *Comparison { return c.Exact("x", f32(1), none) },
		"close":     func(c *Comparison) *Comparison { return c.Close("x", f32(1), none, tol) },
		"calc diff": func(c *Comparison) *Comparison { return c.CalcDiff("x", f32(1), none, 1) },
		"steps":     func(c *Comparison) *Comparison { return c.BF16Steps("x", f32(1), none, 1) },
		"weighted":  func(c *Comparison) *Comparison { return c.CloseWeighted("x", f32(1), none, tol, 1, nil) },
	} {
		r := compare(compare(NewComparison(ClassExact))).Result()
		assert.False(t, r.Pass || r.Detail != "x: the case does not say what is wanted", "%s: %+v", name, r)
	}
}

func TestClose(t *testing.T) {
	tol := Tolerance{1e-3, 0.01, 5e-6}
	for _, c := range []struct {
		name      string
		got, want Array
		pass      bool
		err       float64
	}{
		{"equal", f32(1, 2, 3), f32(1, 2, 3), true, 0},
		{"absolute saves", f32(0.0009, 1), f32(0, 1), true, 0.0009},
		{"relative saves", f32(100.1), f32(100), true, 0.001},
		{"neither", f32(1.02, 100), f32(1, 100), false, 0.02},
		{"cosine", f32(1.004, 1.004, -1.004, 1.004), f32(1, 1, -1, 1), false, 8e-6},
		{"infinities", f32(inf, -inf, nan), f32(inf, -inf, nan), true, 0},
		{"sign of infinity", f32(inf, 1), f32(-inf, 1), false, math.Inf(1)},
		{"infinity for a number", f32(inf, 1), f32(1, 1), false, math.Inf(1)},
		{"NaN for a number", f32(1, nan), f32(1, 1), false, math.Inf(1)},
		{"number for NaN", f32(1, 1), f32(1, nan), false, math.Inf(1)},
		{"shape", f32(1, 1), f32(1), false, math.Inf(1)},
		{"absent", Array{}, f32(1), false, math.Inf(1)},
		{"zeros", f32(0, 0), f32(0, 0), true, 0},
		{"poison", vectors.Filled(poisonFloat, vectors.F32, 1), f32(0), false, math.Inf(1)},
		{"empty", f32(), f32(), true, 0},
	} {
		r := NewComparison(ClassTolerance).Close("x", c.got, c.want, tol).Result()
		assert.False(t, r.Pass != c.pass || math.Abs(r.Error-c.err) > 1e-4*(1+c.err) && r.Error != c.err,
			"%s: %+v", c.name, r)
		assert.False(t, r.Pass && r.Error > r.Bound || !r.Pass && r.Error < r.Bound,
			"%s: error and bound contradict the verdict: %+v", c.name, r)
	}
}

// TestWorst shows that the criterion nearest to its bound is the one reported,
// and that a failure is never hidden by another array's larger number.
func TestWorst(t *testing.T) {
	tol := Tolerance{Abs: 1, Rel: 1e-9}
	r := NewComparison(ClassTolerance).
		Close("far", f32(0.9), f32(0), tol).
		Close("near", f32(0.1), f32(0), tol).Result()
	assert.False(t, !r.Pass || !strings.HasPrefix(r.Detail, "far") || math.Abs(r.Error-0.9) > 1e-6 || r.Bound != 1,
		"%+v", r)
	r = NewComparison(ClassTolerance).
		Close("a", f32(0.9), f32(0), tol).
		Exact("b", vectors.FromI32([]int32{1}, 1), vectors.FromI32([]int32{2}, 1)).Result()
	assert.False(t, r.Pass || !strings.HasPrefix(r.Detail, "b"), "%+v", r)
	r = NewComparison(ClassTolerance).Close("a", f32(3), f32(0), tol).Close("b", f32(2), f32(0), tol).Result()
	assert.False(t, r.Pass || r.Error != 3 || !strings.Contains(r.Detail, "; b"), "%+v", r)
}

// Integers are printed as such, whatever their size.
func TestElement(t *testing.T) {
	for want, a := range map[string]Array{
		"-1515870811": vectors.FromI32([]int32{-1515870811}, 1), "-6510615555426900571": vectors.FromI64([]int64{-6510615555426900571}, 1),
		"0x3f80 (1)": vectors.FromU16([]uint16{0x3F80}, 1), "0.5": f32(0.5),
	} {
		assert.Equal(t, want, element(a, 0))
	}
}

func TestCalcDiffAndSteps(t *testing.T) {
	r := NewComparison(ClassTolerance).CalcDiff("x", f32(1, 1.1), f32(1, 1), 1e-2).Result()
	assert.False(t, !r.Pass || r.Error <= 0, "%+v", r)
	r = NewComparison(ClassTolerance).CalcDiff("x", f32(1, 1.1), f32(1, 1), 1e-4).Result()
	assert.False(t, r.Pass, "%+v", r)
	r = NewComparison(ClassTolerance).CalcDiff("x", f32(1, -inf), f32(1, 1), 1).Result()
	assert.False(t, r.Pass, "%+v", r)
	bits := func(v ...uint16) Array { return vectors.FromU16(v, len(v)) }
	for _, c := range []struct {
		got, want Array
		steps     float64
	}{
		{bits(0x3F80), bits(0x3F81), 1}, {bits(0x8001), bits(0x0001), 2}, {bits(0x8000), bits(0), 0}, {bits(1, 7), bits(1, 4), 3},
	} {
		r := NewComparison(ClassTolerance).BF16Steps("x", c.got, c.want, 1).Result()
		require.Equal(t, c.steps, r.Error, "%+v", r)
		assert.Equal(t, c.steps <= 1, r.Pass, "%+v", r)
	}
}

// Recorded picks are held against the logits as computed ones are, in whatever order.
func TestRecordedTopK(t *testing.T) {
	c := Case{Source: "a folder", Params: map[string]any{"k": 2}, In: Arrays{"logits": vectors.FromF32([]float32{5, 1, 4}, 1, 3), "lengths": vectors.FromI32([]int32{3}, 1)}}
	picks := func(a, b int32) Arrays { return Arrays{"topk_indices": vectors.FromI32([]int32{a, b}, 1, 2)} }
	compare := compareBy(ClassSet, fields, compareIndexerTopK)
	r := compare(c, picks(0, 2), picks(2, 0))
	assert.True(t, r.Pass, "%+v", r)
	r = compare(c, picks(0, 2), picks(0, 1))
	assert.False(t, r.Pass ||
		r.Detail != "recorded topk_indices: 1 of 1 rows differ, row 0: selects 1 where 4 is larger", "%+v", r)
}

func TestTopK(t *testing.T) {
	logits := vectors.FromF32([]float32{5, 1, 4, 4 + 1e-6, 2, -inf}, 1, 6)
	for _, c := range []struct {
		name   string
		length int32
		got    []int32
		pass   bool
	}{
		{"in order", 5, []int32{0, 3, 2}, true},
		{"other order", 5, []int32{2, 0, 3}, true},
		{"a tie decided otherwise", 5, []int32{0, 2}, true},
		{"a smaller value", 5, []int32{0, 4}, false},
		{"all of a short row", 2, []int32{1, 0, -1}, true},
		{"too few", 5, []int32{0, 3, -1}, false},
		{"too many", 2, []int32{0, 1, 2}, false},
		{"twice", 5, []int32{0, 0}, false},
		{"beyond the length", 4, []int32{0, 4}, false},
		{"negative", 5, []int32{0, -7}, false},
		{"minus infinity", 6, []int32{0, 1, 2, 3, 4, 5}, true},
		{"empty row", 0, []int32{-1, -1}, true},
	} {
		r := NewComparison(ClassSet).TopK("x", logits, []int32{c.length}, vectors.FromI32(c.got, 1, len(c.got))).Result()
		require.Equal(t, c.pass, r.Pass, "%s: %+v", c.name, r)
		assert.Equal(t, c.pass, r.Error == 0, "%s: %+v", c.name, r)
	}
	infinite := vectors.FromF32([]float32{1, inf, 2}, 1, 3)
	assert.False(t, NewComparison(ClassSet).TopK("x", infinite, []int32{3}, vectors.FromI32([]int32{2}, 1, 1)).Result().Pass,
		"a number in the place of infinity")
	none := float32(math.NaN())
	mixed := vectors.FromF32([]float32{none, 1, -inf, none}, 1, 4)
	r := NewComparison(ClassSet).TopK("x", mixed, []int32{4}, vectors.FromI32([]int32{0, 1, 2, 3}, 1, 4)).Result()
	assert.True(t, r.Pass, "all of a row with NaNs: %+v", r)
	assert.False(t, NewComparison(ClassSet).TopK("x", mixed, []int32{4}, vectors.FromI32([]int32{0}, 1, 1)).Result().Pass,
		"NaN in the place of a number")
	assert.False(t, NewComparison(ClassSet).TopK("x", logits, nil, vectors.FromI32([]int32{0}, 1, 1)).Result().Pass,
		"no lengths")
}

// fusedPair finds a pair and an angle whose even result, rounded to bf16, depends on whether
// product and difference are fused. plain and fused are the two results, and ok accepts them.
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

// A recorded kernel may fuse the rotation of a number, and a random case's reference may not. Where
// both ways agree, there is one right result.
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

// boundaryCase returns an entry of equal values in the first slot of a pool, and what the
// reference makes of it.
func boundaryCase(t *testing.T, value float64) (cache.Layout, cache.CompressedEntry, Array) {
	t.Helper()
	l := cache.Layout{Page: 2, Stride: 1168}
	e := cache.CompressedEntry{Token: 3, Value: make([]float64, cache.D), Tol: make([]float64, cache.D)}
	k := make([]uint16, cache.D)
	for d := range k {
		e.Value[d], e.Tol[d] = value, math.Abs(value)*turnTolerance
		k[d], _ = e.Rounded(d)
	}
	pool := vectors.Filled(0xFF, vectors.U8, 2, l.Stride)
	require.NoError(t, cache.InsertRef(pool.Data, l, k, []int64{0}))
	return l, e, pool
}

func TestBoundary(t *testing.T) {
	compare := func(l cache.Layout, e cache.CompressedEntry, got, want Array) Result {
		return NewComparison(ClassBoundary).BoundaryKV("pool", got, want, []cache.CompressedEntry{e}, l).Result()
	}
	change := func(a Array, at int, b byte) Array {
		a = a.Clone()
		a.Data[at] = b
		return a
	}
	// 1.00390625 is half way between the bf16 values 1 and 1.0078125.
	l, e, want := boundaryCase(t, 1.00390625)
	r := compare(l, e, want, want)
	assert.True(t, r.Pass && r.Error == 0, "equal pools: %+v", r)
	other := want.Data[cache.NopeDim] ^ 1 // the last bit of the first rotated value
	r = compare(l, e, change(want, cache.NopeDim, other), want)
	assert.True(t, r.Pass && r.Error == 1, "a value on the boundary, rounded to the other side: %+v", r)
	many := want.Clone()
	for i := range 32 {
		many.Data[cache.NopeDim+2*i] ^= 1
	}
	r = compare(l, e, many, want)
	assert.False(t, r.Pass, "32 of 584 bytes on the other side pass: %+v", r)
	for what, at := range map[string]int{"a code": 5, "a scale": 2 * cache.RecordV4.RowBytes(), "the pad byte": 2*cache.RecordV4.RowBytes() + 7} {
		r := compare(l, e, change(want, at, want.Data[at]+1), want)
		assert.False(t, r.Pass || !strings.Contains(r.Detail, "got"), "%s off by one passes: %+v", what, r)
		r = compare(l, e, want, change(want, at, want.Data[at]+1))
		assert.False(t, r.Pass || !strings.Contains(r.Detail, "wanted"),
			"%s off by one in what is wanted passes: %+v", what, r)
	}
	r = compare(l, e, change(want, cache.RecordV4.RowBytes()+9, 0), want)
	assert.False(t, r.Pass, "a byte of no entry passes: %+v", r)
	first := "2 bytes that belong to no entry differ, first at [0, 585]: got 0x00, want 0xff"
	r = compare(l, e, change(change(want, l.Stride+3, 0), cache.RecordV4.RowBytes()+9, 0), want)
	assert.False(t, r.Pass || !strings.Contains(r.Detail, first), "two bytes of no entry: %+v, want %s", r, first)

	// Away from a boundary nothing may differ.
	l, e, want = boundaryCase(t, 1.005)
	r = compare(l, e, change(want, cache.NopeDim, want.Data[cache.NopeDim]^1), want)
	assert.False(t, r.Pass, "a step away from no boundary passes: %+v", r)

	// An absolute maximum on the boundary after 448: the bf16 values 448 and 450 have
	// different scales, under which the codes are one or the other.
	l, e, want = boundaryCase(t, 449)
	up := want.Clone()
	scale := 2 * cache.RecordV4.RowBytes()
	for d := range blockDim {
		up.Data[d] = 0x76 // 224 under twice the scale
	}
	up.Data[scale]++
	assert.Empty(t, kvJudge(l)(up.Data, e), "the scale above")
	up.Data[scale]++
	assert.NotEmpty(t, kvJudge(l)(up.Data, e), "two scales above passes")
}

func TestBoundaryKeys(t *testing.T) {
	for _, format := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		l := cache.IndexKeyLayout{Page: 1, Stride: 144, Format: format}
		e := cache.CompressedEntry{Value: make([]float64, cache.IndexDim), Tol: make([]float64, cache.IndexDim)}
		x := make([]uint16, cache.IndexDim)
		for d := range x {
			e.Value[d] = float64(d-60) / 16
			e.Tol[d] = 1e-9
			x[d], _ = e.Rounded(d)
		}
		pool := make([]byte, l.Stride)
		codes, scale := cache.QuantiseKeyRef(x, format)
		copy(pool, codes)
		copy(pool[l.ScaleOffset(0):], scale[:])
		judge := keyJudge(l)
		assert.Empty(t, judge(pool, e), "%v", format)
		for at := range format.RowBytes() + cache.IndexScaleBytes {
			pool[at]++
			if judge(pool, e) == "" {
				t.Errorf("%v: byte %d off by one passes", format, at)
			}
			pool[at]--
		}
	}
}
