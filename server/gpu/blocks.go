package gpu

import (
	"encoding/binary"
	"io"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/weights"
)

// format says how numbers lie on the device, as lib/weights.glsl numbers it. The first ones are
// those of package weights.
type format uint32

const (
	bf16   = format(weights.BF16)
	f32    = format(weights.F32)
	fp8    = format(weights.FP8)
	mxfp4  = format(weights.MXFP4)
	f16    = format(5)
	q8_0   = format(6)
	q4K    = format(7)
	q2K    = format(8)
	q6K    = format(9)
	iq2XXS = format(10)
)

// whole tells whether products multiply by whole numbers, which whole.comp makes of activations.
func (f format) whole() bool { return f >= q8_0 }

// columns lists the numbers that K has to be a multiple of, by format.
var columns = map[format]int{bf16: 8, f32: 8, fp8: 16, mxfp4: weights.MXBlock, f16: 8, q8_0: 32, q4K: 256, q2K: 256, q6K: 256, iq2XXS: 256}

// blockLayout describes how the blocks of a format of GGUF lie on the device: codes, by quads of
// 16 bytes, apart from scales.
type blockLayout struct {
	format        format
	codes, scales int // bytes of a block
	// most and minimum are bounds of what d and m of a block, its first two f16, are multiplied by,
	// where kernels with matrices decode it: see lib/matrices.glsl.
	most, minimum float32
	// takeCodes and takeScales bring the blocks of a row to their places.
	takeCodes, takeScales func(dst, row []byte)
}

// blockLayouts has a row for each format that kernels decode, by its name in GGUF.
var blockLayouts = map[string]blockLayout{
	"F16":     {format: f16, codes: 2, takeCodes: func(dst, row []byte) { copy(dst, row) }},
	"Q8_0":    {format: q8_0, codes: 32, scales: 2, most: 255, takeCodes: part(34, 2, 34), takeScales: part(34, 0, 2)},
	"MXFP4":   {format: mxfp4, codes: 16, scales: 1, takeCodes: mxfp4Codes, takeScales: part(17, 0, 1)},
	"IQ2_XXS": {format: iq2XXS, codes: 64, scales: 2, most: 3.875 * 43, takeCodes: part(66, 2, 66), takeScales: part(66, 0, 2)},
	"Q2_K":    {format: q2K, codes: 64, scales: 20, most: 15 * 15, minimum: 15, takeCodes: part(84, 16, 80), takeScales: q2KScales},
	"Q6_K":    {format: q6K, codes: 192, scales: 20, most: 128 * 63, takeCodes: q6KCodes, takeScales: scalesOf16(210, 208, 192)},
	"Q4_K":    {format: q4K, codes: 128, scales: 16, most: 63 * 15, minimum: 63, takeCodes: q4KCodes, takeScales: q4KScales},
}

// part takes bytes first to end-1 of each block.
func part(size, first, end int) func(dst, row []byte) {
	return func(dst, row []byte) {
		for ; len(row) > 0; row = row[size:] {
			copy(dst, row[first:end])
			dst = dst[end-first:]
		}
	}
}

// scalesOf16 takes the f16 d, with what follows it in a block, then a byte for each 16 numbers.
func scalesOf16(size, d, scales int) func(dst, row []byte) {
	return func(dst, row []byte) {
		for ; len(row) > 0; row, dst = row[size:], dst[20:] {
			clear(dst[:4])
			copy(dst[:4], row[d:min(d+4, size)])
			copy(dst[4:20], row[scales:scales+16])
		}
	}
}

// q2KScales: both f16; a word for each 64 numbers with the scales of 16 in its lower half, their
// minima in the upper one.
func q2KScales(dst, row []byte) {
	le := binary.LittleEndian
	for ; len(row) > 0; row, dst = row[84:], dst[20:] {
		copy(dst, row[80:84])
		for i := range 4 {
			t := le.Uint32(row[4*i:])
			le.PutUint32(dst[4+4*i:], nibbles(t)|nibbles(t>>4)<<16)
		}
	}
}

// nibbles brings the lower halves of four bytes together.
func nibbles(x uint32) uint32 { return x&0xF | x>>4&0xF0 | x>>8&0xF00 | x>>12&0xF000 }

// mxfp4Codes brings codes into the order that safetensors have: neighbours in a byte.
func mxfp4Codes(dst, row []byte) {
	join := func(low uint64) uint32 { // the low halves of eight bytes
		low &= 0x0F0F0F0F0F0F0F0F
		low = (low | low>>4) & 0x00FF00FF00FF00FF
		low = (low | low>>8) & 0x0000FFFF0000FFFF
		return uint32(low | low>>16)
	}
	le := binary.LittleEndian
	for ; len(row) > 0; row, dst = row[17:], dst[16:] {
		for i := range 2 {
			eight := le.Uint64(row[1+8*i:])
			le.PutUint32(dst[4*i:], join(eight))
			le.PutUint32(dst[8+4*i:], join(eight>>4))
		}
	}
}

// fours brings codes of eight bytes together, one of the first four and one of the last four in a
// byte. A product takes four neighbours out of a word by one mask.
func fours(eight uint64, bits int) uint32 {
	mask := uint32(1<<bits-1) * 0x01010101
	return uint32(eight)&mask | uint32(eight>>32)&mask<<bits
}

// q6KCodes: of 64 numbers two quads have the low four bits, 8 a word, and one the high two, 16 a
// word.
func q6KCodes(dst, row []byte) {
	le := binary.LittleEndian
	for ; len(row) > 0; row, dst = row[210:], dst[192:] {
		for i := range 16 {
			part, group, to, high := i/8, i%8/2, dst[i/4*48:], uint32(0)
			for e := range 2 {
				l := le.Uint64(row[64*part+32*(group%2)+16*(i%2)+8*e:]) >> (4 * (group / 2))
				h := le.Uint64(row[128+32*part+16*(i%2)+8*e:]) >> (2 * group)
				le.PutUint32(to[4*(i%4*2+e):], fours(l, 4))
				high |= fours(h, 2) << (4 * e)
			}
			le.PutUint32(to[32+4*(i%4):], high)
		}
	}
}

// q4KCodes: a word has 8 numbers, a quad 32.
func q4KCodes(dst, row []byte) {
	le := binary.LittleEndian
	for ; len(row) > 0; row, dst = row[144:], dst[128:] {
		for i := range 32 {
			part, eight := i/4, i%4
			le.PutUint32(dst[4*i:], fours(le.Uint64(row[16+part/2*32+eight*8:])>>(part%2*4), 4))
		}
	}
}

// q4KScales: both f16; a byte for each 32 numbers with the low four bits of scale and minimum; the
// high two of both, a nibble for each.
func q4KScales(dst, row []byte) {
	for ; len(row) > 0; row, dst = row[144:], dst[16:] {
		s, high := row[4:16], uint32(0)
		copy(dst, row[:4])
		for i := range 4 {
			dst[4+i], dst[8+i] = s[i]&15|s[4+i]<<4, s[8+i]
			high |= uint32(s[i]>>4&3|s[4+i]>>4&3<<2)<<(4*i) | uint32(s[i]>>6|s[4+i]>>6<<2)<<(16+4*i)
		}
		binary.LittleEndian.PutUint32(dst[12:], high)
	}
}

// gridBytes are those of IQ2_XXS's grid, which stands in front of the scales.
const gridBytes = 2048

// iq2XXSGrid reads the grid off the definition: with a scale of 1 the first values of a block are
// the row that its first code names.
func iq2XXSGrid(m *weights.Matrix) (grid []byte) {
	f := m.Stored
	values, block := make([]float32, f.Values), make([]byte, f.Bytes)
	block[1] = 0x48 // an f16 of 8
	for row := range 256 {
		block[2] = byte(row)
		f.Decode(values, block)
		for _, v := range values[:8] {
			grid = append(grid, byte(v))
		}
	}
	return grid
}

// afterGrid has a grid, then scales.
type afterGrid struct {
	grid   []byte
	scales takenRows
}

// ReadAt reads from both as if the scales followed the grid.
func (a afterGrid) ReadAt(p []byte, off int64) (n int, err error) {
	if off < int64(len(a.grid)) {
		n = copy(p, a.grid[off:])
		off = int64(len(a.grid))
	}
	more, err := a.scales.ReadAt(p[n:], off-int64(len(a.grid)))
	return n + more, err
}

// takenRows makes what the device gets of the rows of matrices, one after the other.
type takenRows struct {
	w    *weights.Model
	list []*weights.Matrix // alike
	size int               // bytes that a row becomes
	take func(dst []byte, m *weights.Matrix, row int)
}

// ReadAt makes the rows that p has a part of.
func (t takenRows) ReadAt(p []byte, off int64) (int, error) {
	n := t.list[0].N
	end := min(off+int64(len(p)), int64(len(t.list)*n*t.size))
	first, last := int(off/int64(t.size)), int((end+int64(t.size)-1)/int64(t.size))
	err := t.w.Read(func() error {
		var whole []byte
		for row := first; row < last; row++ {
			m, at := t.list[row/n], int64(row)*int64(t.size)-off
			if at >= 0 && at+int64(t.size) <= int64(len(p)) {
				t.take(p[at:at+int64(t.size)], m, row%n)
				continue
			}
			if whole == nil {
				whole = make([]byte, t.size)
			}
			t.take(whole, m, row%n)
			copy(p[max(at, 0):], whole[max(-at, 0):])
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, err
	case end < off+int64(len(p)):
		return int(end - off), io.EOF
	}
	return len(p), nil
}

// decoded asks for memory with matrices as f32, or as bf16 if to has that format.
func (l *loader) decoded(to *matrix, list []*weights.Matrix) {
	size := to.k * map[format]int{bf16: 2, f32: 4}[to.format]
	l.data(&to.codes, "weights", len(list)*to.n*size, takenRows{l.w, list, size, func(dst []byte, m *weights.Matrix, row int) {
		v := make([]float32, m.K)
		m.Row(v, row)
		for i, x := range v {
			if to.format == bf16 {
				binary.LittleEndian.PutUint16(dst[2*i:], numfmt.BF16Encode(x))
			} else {
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
			}
		}
	}})
}

// blocks asks for memory with matrices of GGUF's blocks. Those that no kernel decodes, and those
// with a factor of their own, are kept as f32.
func (l *loader) blocks(to *matrix, list []*weights.Matrix) {
	m := list[0]
	is, there := blockLayouts[m.Stored.Name]
	for _, x := range list {
		there = there && x.Factor == 1
	}
	if !there || m.K%columns[is.format] != 0 {
		to.format = f32
		l.decoded(to, list)
		return
	}
	to.format = is.format
	of := func(take func(dst, row []byte), each int) (int, takenRows) {
		size := m.K / m.Stored.Values * each
		return len(list) * m.N * size, takenRows{l.w, list, size, func(dst []byte, m *weights.Matrix, row int) {
			stored := m.Stored.Size(m.K)
			take(dst, m.Data[row*stored:][:stored])
		}}
	}
	n, from := of(is.takeCodes, is.codes)
	l.data(&to.codes, "weights", n, from)
	if is.format == mxfp4 || is.format == q2K || is.format == iq2XXS {
		l.pieces[len(l.pieces)-1].packed = is.format
	}
	if is.scales > 0 {
		n, from = of(is.takeScales, is.scales)
		take, largest := from.take, new(largest)
		from.take = func(dst []byte, m *weights.Matrix, row int) {
			take(dst, m, row)
			largest.see(is.largest(dst))
		}
		to.largest = largest
		if is.format == iq2XXS {
			l.data(&to.scale, "scales", gridBytes+n, afterGrid{iq2XXSGrid(m), from})
			return
		}
		l.data(&to.scale, "scales", n, from)
	}
}
