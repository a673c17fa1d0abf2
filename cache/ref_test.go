package cache

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
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

func TestInsertRefKnownRow(t *testing.T) {
	l, err := NewLayout(64, 0)
	require.NoError(t, err)
	pool := bytes.Repeat([]byte{0xFF}, 2*l.Stride)
	const slot = 64 + 17
	k := append(make([]uint16, D), knownRow()...) // row 0 is all zeros
	require.NoError(t, InsertRef(pool, l, k, []int64{3, slot}))
	row, scales := pool[l.RowOffset(slot):][:rowBytes], pool[l.ScaleOffset(slot):][:scaleBytes]
	assert.Equal(t, "f5e76b77f05c73f4e26ef8ed6374f2da", hex.EncodeToString(row[:16]), "first codes")
	assert.Equal(t, "603f4c401cc000be", hex.EncodeToString(row[NopeDim:][:8]), "first rope bytes")
	assert.Equal(t, "7778797a7b777800", hex.EncodeToString(scales), "scales")
	assert.Equal(t, uint32(0xfbeb5dfa), crc32.ChecksumIEEE(row), "CRC-32 of the data")
	assert.Equal(t, uint32(0x8919d77d), crc32.ChecksumIEEE(scales), "CRC-32 of the scales")
	got := pool[l.RowOffset(3):][:rowBytes]
	assert.True(t, bytes.Equal(got, make([]byte, rowBytes)), "a row of zeros has data that is not 0")
	assert.Equal(t, "6969696969696900", hex.EncodeToString(pool[l.ScaleOffset(3):][:scaleBytes]),
		"scales of a row of zeros")
	written := 0
	for _, b := range pool {
		if b != 0xFF {
			written++
		}
	}
	assert.LessOrEqual(t, written, 2*slotBytes, "bytes written, at most")
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

func TestGatherRefTouchesOnlyItsRows(t *testing.T) {
	l, err := NewLayout(2, 0)
	require.NoError(t, err)
	pool := make([]byte, 4*l.Stride)
	k := slices.Concat(knownRow(), knownRow(), knownRow())
	require.NoError(t, InsertRef(pool, l, k, []int64{6, 7, 2}))
	const rows = 6
	out := slices.Repeat([]uint16{0xFFFF}, rows*D)
	require.NoError(t, GatherRef(out, rows, pool, l, []int32{3}, []int32{2}, []int32{3, 1}, 2, 1))
	want := slices.Repeat([]uint16{0xFFFF}, rows*D)
	require.NoError(t, GatherSlotsRef(want[D:3*D], pool, l, []int32{7, 2}))
	assert.True(t, slices.Equal(out, want), "rows 1 and 2 should be slots 7 and 2, the rest untouched")
}

// The example of vLLM's test_indexer_deepseek_v4_slot_mapping.
func TestSlotMappingRefExample(t *testing.T) {
	slots := make([]int64, 43)
	require.NoError(t, SlotMappingRef(slots, []int32{0, 40}, []int32{280}, []int32{5, 7}, 2, 64, 4))
	want := slices.Repeat([]int64{-1}, 43)
	for i, s := range []int64{380, 381, 382, 383, 448, 449, 450, 451, 452, 453} {
		want[3+4*i] = s // positions 243, 247, ..
	}
	assert.True(t, slices.Equal(slots, want), "got  %v\nwant %v", slots, want)
	// Ratio 1: position 130 of pages 3, 9, 4 is in the third page.
	require.NoError(t, SlotMappingRef(slots[:1], []int32{0, 1}, []int32{131}, []int32{3, 9, 4}, 3, 64, 1))
	assert.Equal(t, int64(258), slots[0])
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
