package cache

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/vk"
)

// Strides are those that vLLM allocates, and every byte of the used part of a page belongs to
// exactly one slot.
func TestRecordLayout(t *testing.T) {
	for _, c := range []struct {
		record             Record
		page, slot, stride int
	}{{RecordV4, 64, 584, 37440}, {RecordV4, 2, 584, 1728}, {RecordV4, 1, 584, 1152}, {RecordV4, 3, 584, 2304},
		{RecordV4, 16, 584, 9792}, {RecordFP8, 32, 528, 16896}, {RecordFP8, 64, 528, 33792}, {RecordFP8, 3, 528, 2048},
		{RecordFP4, 64, 288, 18432}, {RecordFP4, 32, 288, 9216}, {RecordFP4, 1, 288, 512}} {
		assert.Equal(t, c.slot, c.record.SlotBytes(), "%s", c.record)
		l, err := NewRecordLayout(c.record, c.page, 0)
		require.NoError(t, err)
		assert.Equal(t, Layout{c.page, c.stride, c.record}, l)
		assert.Equal(t, c.stride, c.record.DefaultStride(c.page))
		owners := make([]int, l.Stride)
		for s := range int64(c.page) {
			for i := range l.Record.RowBytes() {
				owners[l.RowOffset(s)+int64(i)]++
			}
			for i := range l.Record.ScaleBytes() {
				owners[l.ScaleOffset(s)+int64(i)]++
			}
		}
		for i, n := range owners {
			if want := min(max(c.page*c.slot-i, 0), 1); n != want {
				t.Fatalf("%s, page of %d: byte %d has %d owners, want %d", c.record, c.page, i, n, want)
			}
		}
	}
	for _, bad := range []Layout{{0, 0, RecordV4}, {-1, 584, RecordV4}, {64, 37375, RecordV4}, {64, 37376 - 8, RecordV4},
		{64, 37380, RecordV4}, {maxPage + 1, 0, RecordV4}, {1, 1 << 31, RecordV4},
		{2, 1168, 3}, {2, 1048, RecordFP8}, {2, 576 - 8, RecordFP4}, {2, 580, RecordFP4},
		{2, 1056 + 8, RecordFP8}, {2, 576 + 8, RecordFP4}, {2, 1168 + 4, RecordV4}} {
		_, err := NewRecordLayout(bad.Record, bad.Page, bad.Stride)
		assert.ErrorIs(t, err, vk.ErrArgument, "%v", bad)
	}
	for _, good := range []Layout{{2, 1056 + 16, RecordFP8}, {2, 576 + 16, RecordFP4}, {2, 1168 + 8, RecordV4}} {
		l, err := NewRecordLayout(good.Record, good.Page, good.Stride)
		assert.NoError(t, err)
		assert.Equal(t, good, l)
	}
	l, err := NewLayout(64, 37376)
	require.NoError(t, err)
	assert.Equal(t, int64(3*37376+5*576), l.RowOffset(64*3+5), "RowOffset")
	assert.Equal(t, int64(3*37376+64*576+5*8), l.ScaleOffset(64*3+5), "ScaleOffset")
	assert.Equal(t, int64(200000*37376), l.RowOffset(64*200000), "beyond 32 bits")
	assert.Zero(t, Record(9).SlotBytes()-RecordFP4.SlotBytes(), "an unknown record does not panic")
}

// TestRecordShaders holds that kernels know each record by its number, and its bytes from a file.
func TestRecordShaders(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile("../shaders/lib/" + name)
		require.NoError(t, err)
		return string(text)
	}
	list := read("kv_record.glsl")
	assert.Len(t, regexp.MustCompile(`RECORD_\w+ = \d+u`).FindAllString(list, -1), len(records))
	for i, row := range records {
		name := strings.ToUpper(row.name)
		assert.Contains(t, list, fmt.Sprintf("RECORD_%s = %du", name, i))
		assert.Contains(t, list, fmt.Sprintf("RECORD_%s_##NAME", name))
		file := read("kv_record_" + row.name + ".glsl")
		if Record(i) != RecordV4 { // its numbers have names of kv_page.glsl
			assert.Contains(t, file, fmt.Sprintf("RECORD_%s_ROW = %du, RECORD_%s_SCALES = %du, RECORD_%s_BLOCK = %du;",
				name, row.row, name, row.scales, name, D/row.scales))
		}
	}
}

// Bytes of the row of knownRow, computed once outside this project.
func TestRecordKnownRow(t *testing.T) {
	for _, c := range []struct {
		record               Record
		first, scales        string
		data, scale, decoded uint32
		zero                 byte
	}{
		{RecordFP8, "f5e76b77f05c73f4e26ef8ed6374f2da", "7777787879797a7a7b7b777778787979", 0x7b29f1da, 0xb31fee11, 0x73e4344c, 105},
		{RecordFP4, "bf741de65adf629ef53ce760bf741de6", "222222222a2a2a2a323232323a3a3a3a42424242212222222a2a2a2a32323232",
			0xe32f1b5e, 0xa419c21b, 0x928a72ec, 1},
	} {
		row, scales := encode(c.record, knownRow())
		assert.Equal(t, c.first, hex.EncodeToString(row[:16]), "%s: first codes", c.record)
		assert.Equal(t, c.scales, hex.EncodeToString(scales), "%s: scales", c.record)
		assert.Equal(t, c.data, crc32.ChecksumIEEE(row), "%s: CRC-32 of the data", c.record)
		assert.Equal(t, c.scale, crc32.ChecksumIEEE(scales), "%s: CRC-32 of the scales", c.record)
		x := make([]uint16, D)
		c.record.DecodeRef(x, row, scales)
		assert.Equal(t, c.decoded, crc32.ChecksumIEEE(vectors.FromU16(x, D).Data), "%s: CRC-32 of what is dequantised", c.record)
		row, scales = encode(c.record, make([]uint16, D))
		for _, b := range row {
			require.Zero(t, b, "%s: data of zeros", c.record)
		}
		for _, b := range scales {
			require.Equal(t, c.zero, b, "%s: scales of zeros", c.record)
		}
	}
	codes, scale := QuantiseKeyRef(knownRow()[:IndexDim], IndexKeyMXFP4)
	assert.Equal(t, "ad631cd539be519de42bc540ad631cd5", hex.EncodeToString(codes[:16]))
	assert.Equal(t, "7d7d7e7e", hex.EncodeToString(scale[:]))
	assert.Equal(t, uint32(0xbc05a3e7), crc32.ChecksumIEEE(codes))
}

// Ties, and a maximum beyond six scales.
func TestRecordFP4Ties(t *testing.T) {
	for a, want := range map[float32]string{6: "3807224466a8caec8e", 6.3125: "3807224466a8caec8e", 6.5: "390721436598badc8e"} {
		x := make([]uint16, D)
		minus := float32(math.Copysign(0, -1))
		for i, v := range []float32{a, .25, .75, 1.25, 1.75, 2.5, 3.5, 5, -.25, -.75, -1.25, -1.75, -2.5, -3.5, -5, minus} {
			x[i] = numfmt.BF16Encode(v)
		}
		row, scales := encode(RecordFP4, x)
		assert.Equal(t, want, hex.EncodeToString(append(scales[:1], row[:8]...)), "maximum %g", a)
	}
}

func encode(r Record, x []uint16) (row, scales []byte) {
	row, scales = make([]byte, r.RowBytes()), make([]byte, r.ScaleBytes())
	r.EncodeRef(row, scales, x)
	return row, scales
}

// golden41 is an excerpt of what DeepSeek-V4.1's official layers stored: a layer of windows, one of
// ratio 2 and one of ratio 1. Rows are before quantisation, as stored, and dequantised.
func golden41(t *testing.T) *vectors.Archive {
	a, err := vectors.OpenArchive(filepath.Join("testdata", "golden41.npz"))
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

func TestRecordGolden(t *testing.T) {
	a := golden41(t)
	array := func(name string) vectors.Array {
		x, err := a.Array(name)
		require.NoError(t, err)
		return x
	}
	row16 := func(x vectors.Array, i int) []uint16 { n := x.Dim(1); return x.U16()[i*n : (i+1)*n] }
	row8 := func(x vectors.Array, i int) []byte { n := x.Dim(1); return x.Data[i*n : (i+1)*n] }
	for _, c := range []struct {
		record        Record
		in, rec, back string
	}{
		{RecordFP8, "win_in", "win_rec", "win"}, {RecordV4, "win_in", "win_rec584", ""},
		{RecordFP4, "ent_in2", "ent_rec2", "ent2"}, {RecordV4, "ent_in2", "ent_rec5842", ""},
		{RecordFP4, "ent_in1", "ent_rec1", "ent1"}, {RecordV4, "ent_in1", "ent_rec5841", ""},
	} {
		in, rec := array(c.in), array(c.rec)
		require.Equal(t, c.record.SlotBytes(), rec.Dim(1))
		for i := range in.Dim(0) {
			row, scales := encode(c.record, row16(in, i))
			require.Equal(t, row8(rec, i), append(row, scales...), "%s, row %d", c.rec, i)
			if c.back != "" {
				x := make([]uint16, D)
				c.record.DecodeRef(x, row, scales)
				require.Equal(t, row16(array(c.back), i), x, "%s, row %d", c.back, i)
			}
		}
	}
	for _, r := range []string{"2", "1"} {
		in, back := array("key_in"+r), array("key"+r)
		for name, format := range map[string]IndexKeyFormat{"key_rec": IndexKeyMXFP4, "key_rec132": IndexKeyFP8} {
			rec := array(name + r)
			for i := range in.Dim(0) {
				codes, scale := QuantiseKeyRef(row16(in, i), format)
				require.Equal(t, row8(rec, i), append(codes, scale[:]...), "%s%s, row %d", name, r, i)
				if format == IndexKeyMXFP4 {
					x := make([]uint16, IndexDim)
					DecodeKeyRef(x, format, codes, scale)
					require.Equal(t, row16(back, i), x, "key%s, row %d", r, i)
				}
			}
		}
	}
}
