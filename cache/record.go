package cache

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/opkit"
)

// Record names a storage format of the 512 numbers of a slot. Records of different models may have
// the same width, so that a record is always named and never told from its bytes.
type Record uint8

// Records.
const (
	// RecordV4 is 448 E4M3 codes with a UE8M0 scale per 64, 64 bf16 numbers, and a pad byte of 0:
	// 584 bytes. Source: the fp8_ds_mla layout of vLLM's DeepSeek-V4 K cache.
	RecordV4 Record = iota
	// RecordFP8 is 512 E4M3 codes with a UE8M0 scale per 32: 528 bytes, DeepSeek-V4.1's rows of the
	// window. Source: V41 of FlashMLA's csrc/kernels/kv_cache_format.h.
	RecordFP8
	// RecordFP4 is 512 E2M1 codes, two a byte, the even number in the low half, with an E4M3 scale
	// per 16: 288 bytes, DeepSeek-V4.1's compressed entries. Source: V41_FP4, likewise.
	RecordFP4
)

// A record is a row in a file record_NAME.go of its own, with the definition of its bytes, and a
// file shaders/lib/kv_record_NAME.glsl.
type recordRow struct {
	name              string
	row, scales, page int // bytes of a slot's data and of its scales; what pages are multiples of
	align             uint64
	encode            func(row, scales []byte, x []uint16)
	decode            func(x []uint16, row, scales []byte)
}

var records = [...]recordRow{RecordV4: recordV4, RecordFP8: recordFP8, RecordFP4: recordFP4}

// of returns a record's row; that of the last for one that does not exist.
func (r Record) of() *recordRow { return &records[min(int(r), len(records)-1)] }

// String is "v4", "fp8" or "fp4".
func (r Record) String() string {
	if int(r) < len(records) {
		return records[r].name
	}
	return fmt.Sprintf("record(%d)", uint8(r))
}

// RowBytes is the data bytes of a slot: 576, 512 or 256.
func (r Record) RowBytes() int { return r.of().row }

// ScaleBytes is the scale bytes of a slot: 8, 16 or 32.
func (r Record) ScaleBytes() int { return r.of().scales }

// SlotBytes is the bytes of a slot: 584, 528 or 288.
func (r Record) SlotBytes() int { return r.RowBytes() + r.ScaleBytes() }

// Align returns the bytes that the offset of a pool and the stride of its pages are multiples of: 8
// for RecordV4, 16 for the others.
func (r Record) Align() uint64 { return r.of().align }

// DefaultStride is the bytes of a page of page slots, rounded up to a multiple of 576 (RecordV4) or
// 512, as the upstream allocators have it.
func (r Record) DefaultStride(page int) int {
	return opkit.RoundUp(page*r.SlotBytes(), r.of().page)
}

func (r Record) check(op string) error {
	if int(r) >= len(records) {
		return pkg.Wrong(op, "Record", r, "RecordV4, RecordFP8 or RecordFP4")
	}
	return nil
}
