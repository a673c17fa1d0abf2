package gpu

import (
	"context"
	"encoding/binary"
	"io"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
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

// blockLayout describes the blocks of a format of GGUF, and how they lie on the device: codes, by
// quads of 16 bytes, apart from scales. unpack.comp has the places of both.
type blockLayout struct {
	format        format
	codes, scales int // bytes of a block there
	d             int // where a block's f16 begin, d and after it m
	// most and minimum are bounds of what d and m are multiplied by, where kernels with matrices
	// decode a block: see lib/matrices.glsl.
	most, minimum float32
}

// blockLayouts has a row for each format that kernels decode, by its name in GGUF.
var blockLayouts = map[string]blockLayout{
	"F16":     {format: f16, codes: 2},
	"Q8_0":    {format: q8_0, codes: 32, scales: 2, most: 255},
	"MXFP4":   {format: mxfp4, codes: 16, scales: 1},
	"IQ2_XXS": {format: iq2XXS, codes: 64, scales: 2, most: 3.875 * 43},
	"Q2_K":    {format: q2K, codes: 64, scales: 20, d: 80, most: 15 * 15, minimum: 15},
	"Q6_K":    {format: q6K, codes: 192, scales: 20, d: 208, most: 128 * 63},
	"Q4_K":    {format: q4K, codes: 128, scales: 16, most: 63 * 15, minimum: 63},
}

// stored holds matrices' blocks as files have them. unpack.comp takes them apart.
type stored struct {
	is            blockLayout
	bytes, blocks int // bytes of one, and how many there are
	from          io.ReaderAt
	codes, scales *vk.View // what the blocks become; without scales the second is nil
	grid          []byte   // in front of the scales
}

// unpackBlocks is the number of blocks of a workgroup of unpack.comp. streamed are those of a unit
// of staging memory: they leave codes and scales where a descriptor may begin.
const unpackBlocks, streamed = 32, 256

// upload brings the blocks to the device and takes them apart there.
func (s *stored) upload(ctx context.Context, dev *vk.Device) error {
	if len(s.grid) > 0 {
		if err := dev.Upload(ctx, s.scales.Buffer.View(s.scales.Offset, uint64(len(s.grid))), s.grid); err != nil {
			return err
		}
	}
	size, unit := uint64(s.bytes*s.blocks), uint64(s.bytes*streamed)
	return dev.Stream(ctx, size, unit, s.from, func(rec *vk.Recorder, at uint64, from vk.View) error {
		first, n := int(at)/s.bytes, int(from.Size)/s.bytes
		part := func(v vk.View, first, bytes int) vk.View { // up to a whole word: what holds blocks is padded
			return v.Buffer.View(v.Offset+uint64(first), aligned(uint64(bytes), 16))
		}
		var scales vk.View
		if s.scales != nil {
			scales = part(*s.scales, len(s.grid)+first*s.is.scales, n*s.is.scales)
		}
		return unpack(rec, dev, s.is.format, s.bytes, n, part(from, 0, n*s.bytes), part(*s.codes, first*s.is.codes, n*s.is.codes), scales)
	})
}

// unpack records unpack.comp.
func unpack(rec *vk.Recorder, dev *vk.Device, f format, bytes, blocks int, from, codes, scales vk.View) error {
	push := struct{ count uint32 }{size(blocks)}
	return launch(rec, &built{dev: dev}, "unpack", [3]uint32{size(opkit.CeilDiv(blocks, unpackBlocks)), 1, 1}, 0, &push,
		[]uint32{uint32(f), size(bytes)}, from, codes, scales)
}

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

// decoded asks for memory with matrices as bf16 or f32.
func (l *loader) decoded(to *vk.View, label string, as format, list ...*weights.Matrix) {
	m, bytes := list[0], map[format]int{bf16: 2, f32: 4}[as]
	l.data(to, label, len(list)*m.N*m.K*bytes, takenRows{l.w, list, m.K * bytes, func(dst []byte, m *weights.Matrix, row int) {
		v := make([]float32, m.K)
		m.Row(v, row)
		for i, x := range v {
			if as == bf16 {
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
		l.decoded(&to.codes, "weights", f32, list...)
		return
	}
	to.format = is.format
	var data [][]byte
	for _, x := range list {
		data = append(data, x.Data)
	}
	read := mapped{w: l.w, parts: data}
	if is.format == f16 {
		l.data(&to.codes, "weights", len(list)*len(m.Data), read)
		return
	}
	if l.bounds {
		to.largest = new(largest)
		read.check = func(p []byte) error {
			to.largest.see(is.largest(p, m.Stored.Bytes))
			return nil
		}
	}
	s := &stored{is: is, bytes: m.Stored.Bytes, blocks: len(list) * len(m.Data) / m.Stored.Bytes, from: read, codes: &to.codes,
		scales: &to.scale}
	if is.format == iq2XXS {
		s.grid = iq2XXSGrid(m)
	}
	l.scratch(&to.codes, "weights", s.blocks*is.codes)
	l.data(&to.scale, "scales", len(s.grid)+s.blocks*is.scales, nil)
	l.pieces[len(l.pieces)-1].stored = s
}
