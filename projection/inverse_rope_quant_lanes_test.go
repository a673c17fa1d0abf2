package projection_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

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
