package verify

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// boundaryShare is the share of an entry's bytes that may differ because rounding
// was undecided: many times what f32 arithmetic makes likely, and far from what an
// error makes.
const boundaryShare = 0.02

// judge tells what is wrong with an entry's bytes in a pool, "" if nothing is.
type judge func(pool []byte, e cache.CompressedEntry) string

// Boundary compares pools of compressed entries. Bytes must be equal, except for those
// of entries whose exact value, computed in float64, lies so close to a rounding
// boundary of bf16, of a code or of a scale that f32 may fall on either side of it
// (cache.CompressedEntry.Tol: a millionth of the magnitude of the terms). An entry
// that differs is held against the exact values in both arrays, so that neither a
// wrong kernel nor a wrong reference can explain the other.
func (c *Comparison) Boundary(name string, got, want Array, entries []cache.CompressedEntry,
	entryOf func(e cache.CompressedEntry) [][2]int64, valid judge) *Comparison {
	if !c.Same(name, got, want) {
		return c
	}
	differ := map[int64]bool{}
	for i := range want.Data {
		if got.Data[i] != want.Data[i] {
			differ[int64(i)] = true
		}
	}
	undecided, size := len(differ), 0
	for _, e := range entries {
		mine := 0
		for _, r := range entryOf(e) {
			size += int(r[1])
			for at := r[0]; at < r[0]+r[1]; at++ {
				if differ[at] {
					mine++
					delete(differ, at)
				}
			}
		}
		if mine == 0 {
			continue
		}
		for _, side := range []struct {
			name string
			pool []byte
		}{{"got", got.Data}, {"wanted", want.Data}} {
			if why := valid(side.pool, e); why != "" {
				return c.Fail("%s: the entry of token %d in slot %d: %s %s", name, e.Token, e.Slot, side.name, why)
			}
		}
	}
	if len(differ) > 0 {
		at := slices.Min(slices.Collect(maps.Keys(differ)))
		return c.Fail("%s: %d bytes that belong to no entry differ, first at %s: got 0x%02x, want 0x%02x",
			name, len(differ), position(int(at), want.Shape), got.Data[at], want.Data[at])
	}
	limit := math.Max(boundaryShare*float64(size), 1)
	c.Criterion(float64(undecided) <= limit, float64(undecided), limit,
		fmt.Sprintf("%s: %d of %d bytes differ where rounding is undecided", name, undecided, size))
	return c
}

// BoundaryKV is Boundary for the pages of a cache of K entries.
func (c *Comparison) BoundaryKV(name string, got, want Array, entries []cache.CompressedEntry, l cache.Layout) *Comparison {
	bytes := entryBytes(l, len(want.Data)/l.Stride*l.Page, cache.RecordV4.RowBytes(), cache.RecordV4.ScaleBytes())
	return c.Boundary(name, got, want, entries, bytes, kvJudge(l))
}

// BoundaryKeys is Boundary for the pages of a cache of indexer keys.
func (c *Comparison) BoundaryKeys(name string, got, want Array, entries []cache.CompressedEntry, l cache.IndexKeyLayout) *Comparison {
	bytes := entryBytes(l, len(want.Data)/l.Stride*l.Page, l.Format.RowBytes(), cache.IndexScaleBytes)
	return c.Boundary(name, got, want, entries, bytes, keyJudge(l))
}

// entryBytes returns the byte ranges of an entry, nothing if it lies beyond a pool's slots.
func entryBytes(l interface {
	RowOffset(slot int64) int64
	ScaleOffset(slot int64) int64
}, slots, row, scales int) func(e cache.CompressedEntry) [][2]int64 {
	return func(e cache.CompressedEntry) [][2]int64 {
		if e.Slot >= int64(slots) {
			return nil
		}
		return [][2]int64{{l.RowOffset(e.Slot), int64(row)}, {l.ScaleOffset(e.Slot), int64(scales)}}
	}
}

// kvJudge holds a K entry against the exact values.
func kvJudge(l cache.Layout) judge {
	return func(pool []byte, e cache.CompressedEntry) string {
		row, scales := pool[l.RowOffset(e.Slot):][:cache.RecordV4.RowBytes()], pool[l.ScaleOffset(e.Slot):][:cache.RecordV4.ScaleBytes()]
		for b := range blocksV4 {
			if why := blockE4M3.check(e, b*blockDim, blockDim, scales[b], func(d int) byte { return row[d] }); why != "" {
				return why
			}
		}
		if scales[blocksV4] != 0 {
			return "has a pad byte that is not 0"
		}
		for d := cache.NopeDim; d < cache.D; d++ {
			lo, hi := e.Rounded(d)
			x := binary.LittleEndian.Uint16(row[cache.NopeDim+2*(d-cache.NopeDim):])
			if x != lo && x != hi && (bf16Order(x) < bf16Order(lo) || bf16Order(x) > bf16Order(hi)) {
				return fmt.Sprintf("0x%04x for value %d, which is %g +- %g, 0x%04x or 0x%04x", x, d, e.Value[d], e.Tol[d], lo, hi)
			}
		}
		return ""
	}
}

// keyJudge holds an indexer key against the exact values.
func keyJudge(l cache.IndexKeyLayout) judge {
	return func(pool []byte, e cache.CompressedEntry) string {
		codes, scales := pool[l.RowOffset(e.Slot):], pool[l.ScaleOffset(e.Slot):]
		if l.Format == cache.IndexKeyFP8 {
			u := binary.LittleEndian.Uint32(scales)
			if u&0x807FFFFF != 0 {
				return fmt.Sprintf("scale 0x%08x, which is no power of two", u)
			}
			return blockE4M3.check(e, 0, cache.IndexDim, byte(u>>23), func(d int) byte { return codes[d] })
		}
		for b := range 4 {
			why := blockE2M1.check(e, 32*b, 32, scales[b], func(d int) byte { return codes[d/2] >> (4 * (d % 2)) & 15 })
			if why != "" {
				return why
			}
		}
		return ""
	}
}

// blockFormat is a code with a power-of-two scale.
type blockFormat struct {
	eps, inverseMax float32
	encode          func(float32) byte
	sign            byte
	whole           bool // numbers are not rounded to bf16 first, and a decided zero has its sign
}

var (
	blockE4M3   = blockFormat{numfmt.KCacheEps, numfmt.E4M3InvMax, numfmt.E4M3Encode, 0x80, false}
	blockE2M1   = blockFormat{numfmt.MXFP4Eps, numfmt.E2M1InvMax, numfmt.E2M1Encode, 8, false}
	blockOutput = blockFormat{numfmt.ActivationEps, numfmt.E4M3InvMax, numfmt.E4M3Encode, 0x80, true}
)

// check holds the scale and codes of n values from value first against what their
// exact values may be rounded to.
func (f blockFormat) check(e cache.CompressedEntry, first, n int, scale byte, code func(d int) byte) string {
	var low, high float32 // of the block's absolute maximum
	for d := first; d < first+n; d++ {
		lo, hi := f.between(e, d)
		high = max(high, -lo, hi)
		if lo > 0 || hi < 0 {
			low = max(low, min(max(lo, -lo), max(hi, -hi)))
		}
	}
	least, most := numfmt.UE8M0Encode(low, f.eps, f.inverseMax), numfmt.UE8M0Encode(high, f.eps, f.inverseMax)
	if scale < least || scale > most {
		return fmt.Sprintf("scale 0x%02x of values %d.., want 0x%02x to 0x%02x", scale, first, least, most)
	}
	inverse := numfmt.UE8M0Inverse(scale)
	for d := first; d < first+n; d++ {
		lo, hi := f.between(e, d)
		a, b, x := f.encode(lo*inverse), f.encode(hi*inverse), code(d)
		wrong := f.order(x) < f.order(a) || f.order(x) > f.order(b)
		if x != a && x != b && (wrong || f.whole && lo == hi) {
			return fmt.Sprintf("code 0x%02x for value %d, which is %g +- %g, 0x%02x or 0x%02x under scale 0x%02x",
				x, d, e.Value[d], e.Tol[d], a, b, scale)
		}
	}
	return ""
}

func (f blockFormat) order(code byte) int {
	if code&f.sign != 0 {
		return -int(code &^ f.sign)
	}
	return int(code)
}

// between returns what number d may be before it is encoded.
func (f blockFormat) between(e cache.CompressedEntry, d int) (lo, hi float32) {
	if f.whole {
		return float32(e.Value[d] - e.Tol[d]), float32(e.Value[d] + e.Tol[d])
	}
	a, b := e.Rounded(d)
	return numfmt.BF16Decode(a), numfmt.BF16Decode(b)
}
