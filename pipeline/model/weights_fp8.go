package model

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/projection"
)

// scaleGrid says which weights of a matrix share a scale: those of side rows and cut columns.
type scaleGrid struct {
	per       scalePer
	side, cut int
}

type scalePer uint8

const (
	perBlock scalePer = iota
	perRow
	perMatrix
)

// fp8 reads a matrix of E4M3 whose scales are for blocks of Config.WeightBlock, for a row each or
// for all. One scale for all becomes one for each block of 128 by 128. A part that begins within a
// block becomes bf16, exactly where scales are powers of two, as does a matrix of blocks of 32
// whose scales are not of one byte, or of rows that fp8Run does not divide.
func (l *layerReader) fp8(w safetensors.Tensor, stem string, n, k int, p part) Matrix {
	l.shape(w, n, k)
	s := l.tensor(l.either(stem+scaleNames[0], stem+scaleNames[1], stem+scaleNames[2]))
	if l.err == nil && l.packedScales(s, n, k) {
		l.err = &ForeignError{l.model.File(s.Name), s.Name, "UE8M0 scales packed four to an I32"}
	}
	grid := l.scaleGrid(s, n, k)
	if l.err != nil {
		return Matrix{}
	}
	if s.DType == safetensors.U8 {
		s.DType = safetensors.F8E8M0 // a scale of one byte can only be an exponent
	}
	if !slices.Contains([]safetensors.DType{safetensors.F8E8M0, safetensors.F32, safetensors.BF16, safetensors.F16}, s.DType) {
		l.wrong(s, "F8_E8M0, F32, BF16 or F16")
		return Matrix{}
	}
	columns := ceilDiv(k, grid.cut)
	scale := floats(s)
	l.scales(s, ceilDiv(n, grid.side)*columns, scale)
	m := fp8Part(w, k, p)
	m.values = func(row int, dst []float32, c int) {
		row, c = p.r+row, p.a+c
		var f [1]float32
		for j := range dst {
			if j == 0 || (c+j)%grid.cut == 0 {
				scale(f[:], row/grid.side*columns+(c+j)/grid.cut)
			}
			dst[j] = numfmt.E4M3Decode(w.Data[row*k+c+j]) * f[0]
		}
	}
	switch grid.per {
	case perRow:
		m.Format = projection.FormatFP8Rows
		m.RowScales = decoded(p.s-p.r, scale, func(i int) int { return p.r + i })
	case perMatrix:
		m.Format = projection.FormatFP8F32
		m.Scales = decoded(ceilDiv(m.N, blockSide)*ceilDiv(m.K, blockSide), scale, func(int) int { return 0 })
	default:
		m.Format = fp8Format(grid.side, s.DType == safetensors.F8E8M0)
		if !m.Format.Known() || grid.side != blockSide && m.K%fp8Run != 0 || p.r%grid.side != 0 || p.a%grid.side != 0 {
			return m.asBF16()
		}
		m.Scales = blockScales(s, columns, grid.side, p)
	}
	return m
}

// fp8Run is what the inputs of a matrix of E4M3 are a multiple of where it is multiplied.
const fp8Run = 16

// fp8Format returns the format of E4M3 whose scales are of blocks of a side, as bytes or f32; 0 if
// there is none.
func fp8Format(side int, bytes bool) projection.Format {
	switch {
	case side == blockSide && bytes:
		return projection.FormatFP8
	case side == blockSide:
		return projection.FormatFP8F32
	case side == v41Block && bytes:
		return projection.FormatFP8x32
	}
	return 0
}

// fp8Part is a part of a matrix of k columns without format, scales and values.
func fp8Part(w safetensors.Tensor, k int, p part) Matrix {
	return Matrix{Name: w.Name, N: p.s - p.r, K: p.b - p.a, Data: grid(w.Data, k, p.r, p.s, p.a, p.b)}
}

// scaleGrid finds out by its shape what a tensor of scales of n by k weights is for. Where two
// readings are possible, they mean the same.
func (l *layerReader) scaleGrid(s safetensors.Tensor, n, k int) scaleGrid {
	side := l.cfg.weightBlock()
	for _, x := range []struct {
		shape []int
		scaleGrid
	}{
		{[]int{ceilDiv(n, side), ceilDiv(k, side)}, scaleGrid{perBlock, side, side}},
		{[]int{n, 1}, scaleGrid{perRow, 1, k}}, {[]int{n}, scaleGrid{perRow, 1, k}},
		{[]int{}, scaleGrid{perMatrix, n, k}}, {[]int{1}, scaleGrid{perMatrix, n, k}}, {[]int{1, 1}, scaleGrid{perMatrix, n, k}},
	} {
		if slices.Equal(s.Shape, x.shape) {
			return x.scaleGrid
		}
	}
	l.wrong(s, "shape [%d, %d] for blocks, [%d, 1] or [%d] for rows, [] or [1] for all", ceilDiv(n, side), ceilDiv(k, side), n, n)
	return scaleGrid{perMatrix, n, k}
}

// packedScales reports whether scales of n by k weights are packed as DeepGEMM takes them: for rows
// or blocks of rows, and four blocks of columns to an I32.
func (l *layerReader) packedScales(s safetensors.Tensor, n, k int) bool {
	side := l.cfg.weightBlock()
	return s.DType == safetensors.I32 && len(s.Shape) == 2 && s.Shape[1] == ceilDiv(ceilDiv(k, side), 4) &&
		(s.Shape[0] == n || s.Shape[0] == ceilDiv(n, side))
}

// blockScales is the part of a tensor of scales that belongs to a part of a matrix: UE8M0 stays,
// floats become f32.
func blockScales(s safetensors.Tensor, columns, side int, p part) Blob {
	r, e, a, b := p.r/side, ceilDiv(p.s, side), p.a/side, ceilDiv(p.b, side)
	switch s.DType {
	case safetensors.F8E8M0:
		return grid(s.Data, columns, r, e, a, b)
	case safetensors.F32:
		return grid(s.Data, 4*columns, r, e, 4*a, 4*b)
	}
	return decoded((e-r)*(b-a), floats(s), func(i int) int { return (r+i/(b-a))*columns + a + i%(b-a) })
}

// decoded is n numbers as f32; at(i) is where the i-th of them stands.
func decoded(n int, decode func(dst []float32, i int), at func(i int) int) Blob {
	return computed(int64(n), 4, func(dst []byte, i int64) {
		var f [1]float32
		for ; len(dst) > 0; dst, i = dst[4:], i+1 {
			decode(f[:], at(int(i)))
			binary.LittleEndian.PutUint32(dst, math.Float32bits(f[0]))
		}
	})
}
