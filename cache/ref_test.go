package cache

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/vk"
)

// A row whose bytes were computed once, outside this project: x_i =
// ((37i + 11) mod 127 - 63)/16 * 2^((i/64) mod 5 - 2).
func knownRow() []uint16 {
	row := make([]uint16, D)
	for i := range row {
		row[i] = numfmt.BF16Encode(float32(math.Ldexp(float64((37*i+11)%127-63)/16, (i/64)%5-2)))
	}
	return row
}

// What comes back differs by at most half a step of E4M3, 16 block scales.
func TestGatherSlotsRefInvertsInsertRef(t *testing.T) {
	l, err := NewLayout(2, 1176)
	require.NoError(t, err)
	pool := bytes.Repeat([]byte{0xFF}, 3*l.Stride)
	k := knownRow()
	require.NoError(t, InsertRef(pool, l, k, []int64{5}))
	out := make([]uint16, 3*D)
	require.NoError(t, GatherSlotsRef(out, pool, l, []int32{5, -1, 6}))
	for d := range NopeDim {
		scale := numfmt.UE8M0Scale(pool[l.ScaleOffset(5)+int64(d/blockDim)])
		if e := numfmt.BF16Decode(out[d]) - numfmt.BF16Decode(k[d]); abs(e) > 16*scale {
			t.Fatalf("value %d is off by %g, more than 16 scales of %g", d, e, scale)
		}
	}
	assert.True(t, slices.Equal(out[NopeDim:D], k[NopeDim:]), "the last 64 values changed")
	assert.True(t, slices.Equal(out[D:], make([]uint16, 2*D)), "slots that do not exist are not zero")
}

func TestRefArguments(t *testing.T) {
	l := Layout{Page: 2, Stride: 1168}
	for name, err := range map[string]error{
		"InsertRef layout":        InsertRef(nil, Layout{Page: 2, Stride: 1160}, nil, nil),
		"InsertRef rows":          InsertRef(nil, l, make([]uint16, D), []int64{0, 1}),
		"InsertRef partial row":   InsertRef(nil, l, make([]uint16, D+1), nil),
		"GatherRef out":           GatherRef(nil, 1, nil, l, []int32{1}, nil, []int32{0}, 1, 0),
		"GatherRef offset":        GatherRef(make([]uint16, D), 1, nil, l, []int32{1}, nil, []int32{0}, 1, 2),
		"GatherRef lens":          GatherRef(make([]uint16, D), 1, nil, l, []int32{1}, []int32{}, []int32{0}, 1, 0),
		"GatherRef table":         GatherRef(make([]uint16, D), 1, nil, l, []int32{1}, nil, []int32{0}, 2, 0),
		"GatherSlotsRef out":      GatherSlotsRef(nil, nil, l, []int32{1}),
		"SlotMappingRef starts":   SlotMappingRef(nil, []int32{0}, []int32{1}, nil, 0, 64, 1),
		"SlotMappingRef table":    SlotMappingRef(nil, []int32{0, 1}, []int32{1}, nil, 1, 64, 1),
		"SlotMappingRef page":     SlotMappingRef(nil, []int32{0}, nil, nil, 0, 0, 1),
		"SlotMappingRef ratio":    SlotMappingRef(nil, []int32{0}, nil, nil, 0, 64, 0),
		"InsertRef page too huge": InsertRef(nil, Layout{Page: maxPage + 1, Stride: 1 << 30}, nil, nil),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}
