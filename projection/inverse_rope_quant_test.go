package projection_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestInverseRopeQuant(t *testing.T) { testkit.TestOp(t, "fused_inv_rope_fp8_quant") }

// quantArgs are arguments for o of `tokens` tokens; the outputs are poison.
func quantArgs(t *testing.T, dev *vk.Device, l projection.ScaleLayout, o []uint16, groups, heads, tokens int, table []float32) projection.InverseRopeQuantArgs {
	padded := projection.PaddedTokens(tokens)
	a := projection.InverseRopeQuantArgs{
		O:         testkit.Upload(t, dev, tensor.BF16, o, tokens, groups*heads, cache.D),
		Positions: testkit.Upload(t, dev, tensor.I32, make([]int32, tokens), tokens),
		Table:     testkit.Upload(t, dev, tensor.F32, table, len(table)/cache.RopeDim, cache.RopeDim),
		Codes:     testkit.Upload(t, dev, tensor.U8, bytes.Repeat([]byte{0xA5}, len(o)), groups, tokens, heads*cache.D),
	}
	if l == projection.ScalePacked {
		a.Scales = testkit.Upload(t, dev, tensor.I32, bytes.Repeat([]byte{0xA5}, 4*groups*heads*padded), groups, heads, padded)
	} else {
		a.Scales = testkit.Upload(t, dev, tensor.F32, bytes.Repeat([]byte{0xA5}, 16*groups*heads*padded), groups, heads*projection.HeadBlocks, padded)
	}
	return a
}

func TestInverseRopeQuantArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := projection.InverseRopeQuantConfig{Groups: 2, Heads: 3}
	testkit.Rejects(t, dev, projection.NewInverseRopeQuant, map[string]projection.InverseRopeQuantConfig{
		"no groups": {Heads: 3}, "no heads": {Groups: 2}, "heads": {Groups: 2, Heads: 1 << 16}, "layout": {Groups: 2, Heads: 3, Scales: 2},
	})
	type quantisedArgs = projection.InverseRopeQuantArgs
	for _, l := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
		cfg := good
		cfg.Scales = l
		op := must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, cfg))
		args := quantArgs(t, dev, l, make([]uint16, 5*6*cache.D), 2, 3, 5, make([]float32, cache.RopeDim))
		testkit.Changes[quantisedArgs]{
			"O heads": {func(a *quantisedArgs) { a.O.Shape = []int{5, 5, 512} }},
			"Codes":   {func(a *quantisedArgs) { a.Codes.Shape = []int{5, 2, 1536} }},
			"Scales":  {func(a *quantisedArgs) { a.Scales.Shape = []int{2, a.Scales.Shape[1], 5} }},
		}.Refuse(t, dev, op.Record, args)
		none := args
		none.O.Shape, none.Positions.Shape, none.Codes.Shape = []int{0, 6, 512}, []int{0}, []int{2, 0, 1536}
		none.Scales.Shape = []int{2, none.Scales.Shape[1], 0}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
	}
	assert.Equal(t, "f32packedScaleLayout(7)",
		projection.ScaleF32.String()+projection.ScalePacked.String()+projection.ScaleLayout(7).String())
}

// Whether maxima are passed on inside subgroups or through shared memory does not change
// a bit, whatever the numbers are.
func TestInverseRopeQuantLanes(t *testing.T) {
	const groups, heads, tokens = 3, 3, 5
	rng := rand.New(rand.NewPCG(17, 18))
	o := normal(rng, tokens*groups*heads*cache.D)
	for head := range tokens * groups * heads {
		row := o[head*cache.D:][:cache.D]
		switch head % 9 {
		case 1: // all bit patterns
			for i := range row {
				row[i] = uint16(rng.Uint32())
			}
		case 2: // a NaN, also where numbers are turned
			row[rng.IntN(cache.D)], row[500] = 0x7FC1, 0xFF81
		case 3: // infinities
			row[rng.IntN(cache.D)], row[511] = 0x7F80, 0xFF80
		case 4: // what binary32 flushes
			for i := range row {
				row[i] = uint16(rng.UintN(0x90)) | uint16(i&1)<<15
			}
		case 5: // tiny beside large
			for i := range row {
				if i%3 != 0 {
					row[i] = uint16(rng.UintN(0x4000)) | uint16(i&1)<<15
				}
			}
		case 6: // the largest there are, whose products overflow
			for i := range row {
				row[i] = 0x7F7F ^ uint16(i&1)<<15
			}
		case 7:
			clear(row)
		}
	}
	table := make([]float32, cache.RopeDim)
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	for _, l := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
		inLanes(t, "proj_inverse_rope_quant", func(dev *vk.Device, variant string, subgroup int) []byte {
			op := must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, projection.InverseRopeQuantConfig{
				Groups: groups, Heads: heads, Scales: l, Variant: variant, Subgroup: subgroup}))
			a := quantArgs(t, dev, l, o, groups, heads, tokens, table)
			do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			return bytesOf(t, a.Codes, a.Scales)
		})
	}
}
