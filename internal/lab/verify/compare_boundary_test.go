package verify

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// boundaryCase returns an entry of equal values in the first slot of a pool, and what the
// reference makes of it.
func boundaryCase(t *testing.T, value float64) (cache.Layout, cache.CompressedEntry, Array) {
	t.Helper()
	l := cache.Layout{Page: 2, Stride: 1168}
	e := cache.CompressedEntry{Token: 3, Value: make([]float64, cache.D), Tol: make([]float64, cache.D)}
	k := make([]uint16, cache.D)
	for d := range k {
		e.Value[d], e.Tol[d] = value, math.Abs(value)*cache.CompressTolerance
		k[d], _ = e.Rounded(d)
	}
	pool := vectors.Filled(0xFF, vectors.U8, 2, l.Stride)
	require.NoError(t, cache.InsertRef(pool.Data, l, k, []int64{0}))
	return l, e, pool
}

func TestBoundary(t *testing.T) {
	compare := func(l cache.Layout, e cache.CompressedEntry, got, want Array) Result {
		return NewComparison(ClassBoundary).Boundary("pool", got, want, []cache.CompressedEntry{e}, kvEntry(l, 2), kvJudge(l)).Result()
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
