package cache_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/vk"
)

func TestCompress(t *testing.T) {
	for _, op := range []string{"compressor_main_kv", "compressor_indexer_k_fp8", "compressor_indexer_k_mxfp4"} {
		t.Run(op, func(t *testing.T) { testkit.TestOp(t, op) })
	}
}

// knownStep is 8 tokens of one request, whose states are saved.
func knownStep(t *testing.T) cache.CompressHost {
	const channels = 256
	var kvScore, norm, cosSin []float32
	for p := range 8 {
		for c := range channels {
			kvScore = append(kvScore, float32((53*p+17*c)%97-48)/32)
		}
		for c := range channels {
			kvScore = append(kvScore, float32((7*p+3*c)%5-2)*0.5)
		}
	}
	ape := make([]float32, 4*channels)
	for i := range ape {
		ape[i] = float32((5*(i/channels)+i%channels)%3-1) * 0.25
	}
	for c := range cache.IndexDim {
		norm = append(norm, 1+0.25*float32(c%4))
	}
	for range 2 { // positions 0 and 4 turn alike
		for i := range 32 {
			cosSin = append(cosSin, float32(i+1)/64)
		}
		for i := range 32 {
			cosSin = append(cosSin, float32(32-i)/64)
		}
	}
	l := must[cache.StateLayout](t)(cache.NewStateLayout(cache.C4Index, 4, 0))
	in := cache.CompressHost{Compression: cache.C4Index, RopeStep: 4, Positions: []int32{0, 1, 2, 3, 4, 5, 6, 7}, TokenToReq: make([]int32, 8),
		StateSlots: []int64{0, 1, 2, 3, 4, 5, 6, 7}, Slots: []int64{-1, -1, -1, 0, -1, -1, -1, 1}, State: make([]byte, 2*l.Stride), Layout: l,
		StateTable: []int32{0, 1}, Width: 2, Norm: norm, CosSin: cosSin}
	require.NoError(t, cache.SaveStateRef(in.State, l, cache.C4Index, kvScore, ape, in.Positions, in.StateSlots))
	return in
}

// Rotating a key twice gives it back, up to rounding; a unit vector becomes a row of
// signs.
func TestCompressHadamardRef(t *testing.T) {
	in := knownStep(t)
	plain := must[[]cache.CompressedEntry](t)(in.Entries())
	in.Hadamard = true
	turned := must[[]cache.CompressedEntry](t)(in.Entries())
	for e := range plain {
		x, y := plain[e].Value, turned[e].Value
		var xx, yy float64
		for i := range x {
			b := float64(numfmt.BF16Round(float32(x[i])))
			xx, yy = xx+b*b, yy+y[i]*y[i]
		}
		assert.False(t, math.Abs(xx-yy) > 1e-9*xx, "entry %d: the square length %g became %g", e, xx, yy)
		sum := 0.0 // y_0 is the plain sum
		for i := range x {
			sum += float64(numfmt.BF16Round(float32(x[i])))
		}
		assert.False(t, math.Abs(y[0]-(sum/math.Sqrt(128))) > 1e-12,
			"entry %d: value 0 is %g, want %g", e, y[0], sum/math.Sqrt(128))
	}
}

func TestCompressArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, cache.NewCompress, map[string]cache.CompressConfig{
		"nothing":        {},
		"dim":            {Compression: cache.Compression{Dim: 256, Ratio: 4}, StatePage: 4, Page: 64},
		"ratio 0":        {Compression: cache.Compression{Dim: 512}, StatePage: 4, Page: 64},
		"ratio":          {Compression: cache.Compression{Dim: 512, Ratio: cache.MaxRatio + 1}, StatePage: 4, Page: 64},
		"state page":     {Compression: cache.C4Main, Page: 64},
		"page":           {Compression: cache.C4Main, StatePage: 4, Page: -1},
		"format missing": {Compression: cache.C4Index, StatePage: 4, Page: 64},
		"format unasked": {Compression: cache.C4Main, StatePage: 4, Page: 64, Keys: cache.IndexKeyFP8},
		"rotated K":      {Compression: cache.C128Main, StatePage: 8, Page: 2, Hadamard: true},
		"eps":            {Compression: cache.C4Main, StatePage: 4, Page: 64, Eps: -1},
		"eps nan":        {Compression: cache.C4Main, StatePage: 4, Page: 64, Eps: float32(math.NaN())},
		"rope step":      {Compression: cache.C4Main, StatePage: 4, Page: 64, RopeStep: 3},
		"invocations":    {Compression: cache.C128Main, StatePage: 8, Page: 2, Invocations: 384},
		"too many":       {Compression: cache.C128Main, StatePage: 8, Page: 2, Invocations: 2048},
		"c4 invocations": {Compression: cache.C4Main, StatePage: 4, Page: 64, Invocations: 256},
	})
	main, index := newSequence(t, dev, compressors[0], 9), newSequence(t, dev, compressors[1], 9)
	mc, ic := main.newCaches(1), index.newCaches(1)
	type compressArgs = cache.CompressArgs
	good := func(s *sequence, c *caches) compressArgs {
		return compressArgs{Positions: s.positions, TokenToReq: s.toReq, StateSlots: s.stateSlots, Slots: s.slots, State: c.state,
			StateTable: s.table, Norm: s.norm, CosSin: s.cosSin, Cache: c.kv, Keys: c.keys}
	}
	testkit.Changes[compressArgs]{
		"Slots":        {func(a *compressArgs) { a.Slots.Shape = []int{3} }},
		"State.Layout": {func(a *compressArgs) { a.State = ic.state }},
		"Stride":       {func(a *compressArgs) { a.State.Layout.Stride += 8 }},
		"State.Pool": {func(a *compressArgs) {
			a.State.Pool.Offset, a.State.Pool.Shape = 8, []int{1, a.State.Layout.Stride}
		}},
		"StateTable":        {func(a *compressArgs) { a.StateTable.Shape = []int{1, 0} }},
		"CosSin":            {func(a *compressArgs) { a.CosSin.Shape = []int{0, 64} }},
		"Cache.Layout.Page": {func(a *compressArgs) { a.Cache.Layout.Page = 2 }},
	}.Refuse(t, dev, main.compress.Record, good(main, mc))
	testkit.Changes[compressArgs]{
		"Keys.Layout": {func(a *compressArgs) { a.Keys.Layout.Format = cache.IndexKeyMXFP4 }, func(a *compressArgs) { a.Keys.Layout.Page = 16 }},
		"Keys.Pool":   {func(a *compressArgs) { a.Keys.Layout.Stride = 8448 }},
		"Stride":      {func(a *compressArgs) { a.Keys.Layout.Stride = 8432 }},
	}.Refuse(t, dev, index.compress.Record, good(index, ic))
	// No tokens: nothing to do, and that is no error.
	none := good(main, mc)
	none.StateSlots.Shape = []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return main.compress.Record(rec, none) })
}
