package projection_test

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestInverseRopeQuant(t *testing.T) { testkit.TestOp(t, "fused_inv_rope_fp8_quant") }

// A known group of 8 heads: its scales, the checksum of its codes, and some of them.
func TestInverseRopeQuantVector(t *testing.T) {
	dev := testkit.Device(t)
	const heads = 8
	var o []uint16
	for h := range heads {
		for d := range cache.D {
			o = append(o, numfmt.BF16Encode(float32(math.Ldexp(float64((131*h+37*d)%113-56)/32, d/128-1))))
		}
	}
	table := make([]float32, cache.RopeDim)
	for i := range cache.RopeDim / 2 {
		table[i], table[cache.RopeDim/2+i] = float32(i+1)/64, float32(32-i)/64
	}
	check := func(who string, codes []byte, packed func(h int) uint32) {
		assert.Equal(t, uint32(0x66f630d6), crc32.ChecksumIEEE(codes), "%s: checksum", who)
		assert.Equal(t, "fef2717ef2707df4 f5ec6969ec7575e1",
			hex.EncodeToString(codes[:8])+" "+hex.EncodeToString(codes[448:456]), "%s: codes", who)
		for h := range heads {
			assert.Equal(t, uint32(0x79787776), packed(h), "%s: scales of head %d", who, h)
		}
	}
	codes, scales := make([]byte, len(o)), make([]byte, heads*projection.HeadBlocks)
	require.NoError(t, projection.InverseRopeQuantRef(o, 1, heads, []int32{0}, table, codes, scales))
	check("reference", codes, func(h int) uint32 {
		s := scales[h*4:]
		return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
	})
	op := must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, projection.InverseRopeQuantConfig{Groups: 1, Heads: heads, Scales: projection.ScalePacked}))
	a := quantArgs(t, dev, projection.ScalePacked, o, 1, heads, 1, table)
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	words := download[uint32](t, a.Scales)
	check(op.Variant(), download[byte](t, a.Codes), func(h int) uint32 { return words[4*h] })
}

// quantArgs are arguments for o of `tokens` tokens; the outputs are poison.
func quantArgs(t *testing.T, dev *vk.Device, l projection.ScaleLayout, o []uint16, groups, heads, tokens int, table []float32) projection.InverseRopeQuantArgs {
	padded := projection.PaddedTokens(tokens)
	a := projection.InverseRopeQuantArgs{
		O: upload(t, dev, tensor.BF16, o, tokens, groups*heads, cache.D), Positions: upload(t, dev, tensor.I32, make([]int32, tokens), tokens),
		Table: upload(t, dev, tensor.F32, table, len(table)/cache.RopeDim, cache.RopeDim),
		Codes: upload(t, dev, tensor.U8, bytes.Repeat([]byte{0xA5}, len(o)), groups, tokens, heads*cache.D),
	}
	if l == projection.ScalePacked {
		a.Scales = upload(t, dev, tensor.I32, bytes.Repeat([]byte{0xA5}, 4*groups*heads*padded), groups, heads, padded)
	} else {
		a.Scales = upload(t, dev, tensor.F32, bytes.Repeat([]byte{0xA5}, 16*groups*heads*padded), groups, heads*projection.HeadBlocks, padded)
	}
	return a
}

func TestInverseRopeQuantArguments(t *testing.T) {
	dev := testkit.Device(t)
	good := projection.InverseRopeQuantConfig{Groups: 2, Heads: 3}
	for name, change := range map[string]func(*projection.InverseRopeQuantConfig){
		"no groups": func(c *projection.InverseRopeQuantConfig) { c.Groups = 0 }, "no heads": func(c *projection.InverseRopeQuantConfig) { c.Heads = 0 },
		"heads": func(c *projection.InverseRopeQuantConfig) { c.Heads = 1 << 16 }, "layout": func(c *projection.InverseRopeQuantConfig) { c.Scales = 2 },
		"variant": func(c *projection.InverseRopeQuantConfig) { c.Variant = "cm" },
		"size": func(c *projection.InverseRopeQuantConfig) {
			c.Variant, c.MaxBytes = "base", dev.Caps().MaxStorageBufferRange+1
		},
	} {
		cfg := good
		change(&cfg)
		_, err := projection.NewInverseRopeQuant(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	for _, l := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
		cfg := good
		cfg.Scales = l
		op := must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, cfg))
		args := quantArgs(t, dev, l, make([]uint16, 5*6*cache.D), 2, 3, 5, make([]float32, cache.RopeDim))
		other := quantArgs(t, dev, 1-l, make([]uint16, 5*6*cache.D), 2, 3, 5, make([]float32, cache.RopeDim))
		type change = func(*projection.InverseRopeQuantArgs)
		for arg, spoil := range map[string][]change{
			"O heads":   {func(a *projection.InverseRopeQuantArgs) { a.O.Shape = []int{5, 5, 512} }},
			"Positions": {func(a *projection.InverseRopeQuantArgs) { a.Positions.Shape = []int{4} }},
			"Codes":     {func(a *projection.InverseRopeQuantArgs) { a.Codes.Shape = []int{5, 2, 1536} }},
			"Scales":    {func(a *projection.InverseRopeQuantArgs) { a.Scales = other.Scales }, func(a *projection.InverseRopeQuantArgs) { a.Scales.Shape = append([]int{}, 2, a.Scales.Shape[1], 5) }},
		} {
			for _, s := range spoil {
				a := args
				s(&a)
				refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
			}
		}
		none := args
		none.O.Shape, none.Positions.Shape, none.Codes.Shape = []int{0, 6, 512}, []int{0}, []int{2, 0, 1536}
		none.Scales.Shape = []int{2, none.Scales.Shape[1], 0}
		do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
	}
	err := projection.InverseRopeQuantRef(make([]uint16, cache.D), 1, 1, []int32{0}, make([]float32, 64),
		make([]byte, 512), make([]byte, 3))
	assert.ErrorIs(t, err, vk.ErrArgument, "reference with few scales")
	assert.Equal(t, "f32packedScaleLayout(7)",
		projection.ScaleF32.String()+projection.ScalePacked.String()+projection.ScaleLayout(7).String())
}

// Whether maxima are passed on inside subgroups or through shared memory does not change
// a bit, whatever the numbers are.
func TestInverseRopeQuantLanes(t *testing.T) {
	dev, sizes := lanesDevice(t)
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
		var codes []byte
		var scales []uint32
		for _, size := range append([]int{-1}, sizes...) {
			for _, v := range opkit.Builds("proj_inverse_rope_quant") {
				if dev.Caps().Missing(v.Requires) != nil {
					continue
				}
				op := must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, projection.InverseRopeQuantConfig{
					Groups: groups, Heads: heads, Scales: l, Variant: v.Name, Subgroup: size}))
				a := quantArgs(t, dev, l, o, groups, heads, tokens, table)
				do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
				c, s := download[byte](t, a.Codes), download[uint32](t, a.Scales)
				if codes == nil {
					codes, scales = c, s
				}
				assert.True(t, bytes.Equal(c, codes) && slices.Equal(s, scales),
					"%v, %s, subgroups of %d: other bits", l, v.Name, size)
			}
		}
	}
}
