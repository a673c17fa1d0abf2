package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/projection"
)

// part is the rows r to s and columns a to b of a stored matrix, those of a rank.
type part struct{ r, s, a, b int }

func whole(n, k int) part { return part{0, n, 0, k} }

// matrix finds the weights of a linear layer of n outputs and k inputs, in any format, and takes a
// part of them.
func (l *layerReader) matrix(stem string, n, k int, p part) Matrix {
	if l.plan != 0 {
		return l.outline(stem, p)
	}
	l.foreign(stem, n, k)
	weight := stem + ".weight"
	if !l.has(weight) && l.has(stem+".weight_packed") {
		weight = stem + ".weight_packed"
	}
	w := l.tensor(weight)
	if l.err != nil {
		return Matrix{}
	}
	switch w.DType {
	case safetensors.BF16, safetensors.F16, safetensors.F32:
		return l.plain(w, n, k, p)
	case safetensors.F8E4M3:
		return l.fp8(w, stem, n, k, p)
	case safetensors.U8, safetensors.I8, safetensors.F4:
		return l.nvfp4(w, stem, n, k, p)
	}
	if blockFormat(w) != nil {
		return l.blocks(w, stem, n, k, p)
	}
	l.unread(w, "BF16, F16, F32, F8_E4M3, or U8 with two E2M1 each")
	return Matrix{}
}

// plain reads a matrix of floats. F16 and F32 are rounded to bf16.
func (l *layerReader) plain(w safetensors.Tensor, n, k int, p part) Matrix {
	if l.shape(w, n, k); l.err != nil {
		return Matrix{}
	}
	m := Matrix{Name: w.Name, Format: projection.FormatBF16, N: p.s - p.r, K: p.b - p.a}
	at := func(r int) int { return (p.r+r)*k + p.a }
	decode := floats(w)
	if w.DType == safetensors.BF16 {
		m.Data = grid(w.Data, 2*k, p.r, p.s, 2*p.a, 2*p.b)
		m.values = func(r int, dst []float32, a int) { decode(dst, at(r)+a) }
		return m
	}
	m.values = func(r int, dst []float32, a int) {
		decode(dst, at(r)+a)
		for i, x := range dst {
			dst[i] = numfmt.BF16Round(x)
		}
	}
	m.Data = rounded(m.N, m.K, m.values)
	return m
}

// floats decodes the elements from i on of a tensor of floats.
func floats(t safetensors.Tensor) func(dst []float32, i int) {
	if f := blockFormat(t); f != nil {
		return blockFloats(f, t.Data)
	}
	le, d := binary.LittleEndian, t.Data
	switch t.DType {
	case safetensors.BF16:
		return func(dst []float32, i int) {
			for j := range dst {
				dst[j] = numfmt.BF16Decode(le.Uint16(d[2*(i+j):]))
			}
		}
	case safetensors.F16:
		return func(dst []float32, i int) {
			for j := range dst {
				dst[j] = numfmt.F16Decode(le.Uint16(d[2*(i+j):]))
			}
		}
	case safetensors.F8E8M0:
		return func(dst []float32, i int) {
			for j := range dst {
				dst[j] = numfmt.UE8M0Scale(d[i+j])
			}
		}
	}
	return func(dst []float32, i int) {
		for j := range dst {
			dst[j] = math.Float32frombits(le.Uint32(d[4*(i+j):]))
		}
	}
}

// rounded is a matrix of values rounded to bf16, when they are read.
func rounded(n, k int, values func(r int, dst []float32, a int)) Blob {
	return computed(int64(n)*int64(k), 2, func(dst []byte, i int64) {
		var row [512]float32
		for len(dst) > 0 {
			r, a := int(i/int64(k)), int(i%int64(k))
			c := min(len(dst)/2, k-a, len(row))
			values(r, row[:c], a)
			for j, x := range row[:c] {
				binary.LittleEndian.PutUint16(dst[2*j:], numfmt.BF16Encode(x))
			}
			dst, i = dst[2*c:], i+int64(c)
		}
	})
}

// asBF16 is m with its weights rounded to bf16.
func (m Matrix) asBF16() Matrix {
	if m.Format == projection.FormatBF16 {
		return m
	}
	exact := m.values
	b := Matrix{Name: m.Name, Format: projection.FormatBF16, N: m.N, K: m.K, Data: rounded(m.N, m.K, exact)}
	b.values = func(r int, dst []float32, a int) {
		exact(r, dst, a)
		for i, x := range dst {
			dst[i] = numfmt.BF16Round(x)
		}
	}
	return b
}

// nvfp4 reads a matrix of E2M1 with scales for 16 columns. A part that does not begin and end with
// 16 columns becomes bf16.
func (l *layerReader) nvfp4(w safetensors.Tensor, stem string, n, k int, p part) Matrix {
	if k%nvBlock != 0 {
		l.wrong(w, "a multiple of %d columns, which %d is not", nvBlock, k)
	}
	if w.DType == safetensors.F4 {
		l.shape(w, n, k)
	} else {
		l.shape(w, n, k/2)
	}
	s := l.tensor(stem + ".weight_scale")
	if l.shape(s, n, k/nvBlock); l.err == nil && s.DType != safetensors.F8E4M3 {
		l.wrong(s, "F8_E4M3")
	}
	global, input := l.global(stem), l.input(stem)
	if l.err != nil {
		return Matrix{}
	}
	e4m3 := func(dst []float32, i int) {
		for j := range dst {
			dst[j] = numfmt.E4M3Decode(s.Data[i+j])
		}
	}
	l.scales(s, n*k/nvBlock, e4m3)
	m := Matrix{Name: w.Name, Format: projection.FormatNVFP4, N: p.s - p.r, K: p.b - p.a, Global: global, Input: input,
		Data: grid(w.Data, k/2, p.r, p.s, p.a/2, p.b/2), Scales: grid(s.Data, k/nvBlock, p.r, p.s, p.a/nvBlock, p.b/nvBlock)}
	m.values = func(row int, dst []float32, c int) {
		for j := range dst {
			i := (p.r+row)*k + p.a + c + j
			code := w.Data[i/2] >> (4 * (i % 2))
			dst[j] = numfmt.E2M1Decode(code) * numfmt.E4M3Decode(s.Data[i/nvBlock]) * global
		}
	}
	if p.a%nvBlock != 0 || p.b%nvBlock != 0 {
		return m.asBF16()
	}
	return m
}

// global reads the factor of an NVFP4 matrix in either spelling.
func (l *layerReader) global(stem string) float32 {
	name := l.either(stem+".weight_scale_2", stem+".weight_global_scale")
	t := l.tensor(name)
	if l.err != nil {
		return 0
	}
	if len(t.Shape) > 1 || len(t.Shape) == 1 && t.Shape[0] != 1 || t.DType != safetensors.F32 {
		l.wrong(t, "F32 [] or [1]")
		return 0
	}
	var g [1]float32
	l.scales(t, 1, func(dst []float32, i int) { floats(t)(dst, i); g[0] = dst[0] })
	if name != stem+".weight_scale_2" {
		g[0] = 1 / g[0]
	}
	if x := float64(g[0]); l.err == nil && (math.IsInf(x, 0) || x == 0) {
		l.wrongValue(t, fmt.Sprint(g[0]), "a finite factor that is not 0")
	}
	return g[0]
}

// input reads the factor of the activations of an NVFP4 matrix in either spelling. As products of
// bf16 activations do without, nothing about it is an error here.
func (l *layerReader) input(stem string) float32 {
	name := l.either(stem+".input_scale", stem+".input_global_scale")
	if !l.has(name) {
		return 0
	}
	t := l.tensor(name)
	if l.err != nil || len(t.Shape) > 1 || len(t.Shape) == 1 && t.Shape[0] != 1 || t.DType != safetensors.F32 {
		return float32(math.NaN())
	}
	var g [1]float32
	l.guard(t.Name, func() { floats(t)(g[:], 0) })
	if name != stem+".input_scale" {
		g[0] = 1 / g[0]
	}
	return g[0]
}

// scales checks n scales of a tensor: each is a number that is not negative.
func (l *layerReader) scales(t safetensors.Tensor, n int, decode func(dst []float32, i int)) {
	if l.err != nil {
		return
	}
	l.guard(t.Name, func() {
		var buf [256]float32
		for i := 0; i < n; i += len(buf) {
			c := min(len(buf), n-i)
			decode(buf[:c], i)
			for j, x := range buf[:c] {
				if !(x >= 0 && x <= math.MaxFloat32) {
					l.wrongValue(t, fmt.Sprintf("scale %v at %d", x, i+j), "finite scales that are not negative")
					return
				}
			}
		}
	})
}

// stack puts matrices of the same inputs one above the other. A common format stays if all but the
// last have whole blocks, for NVFP4 if all have the same factor; of FP8 with scales of bytes and of
// f32 it is that of f32. Of factors of activations the largest counts, if all have one. Otherwise
// the weights are rounded to bf16, which is exact for FP8 with power-of-two scales.
func stack(list ...Matrix) Matrix {
	all := list[0]
	fits, without := true, false
	for i, m := range list {
		last := i == len(list)-1
		all.Input = max(all.Input, m.Input)
		without = without || m.Input == 0
		common, ok := commonFormat(all.Format, m.Format)
		fits = fits && ok && m.Global == all.Global && (last || m.N%m.Format.ScaleRows() == 0)
		all.Format = common
	}
	if without || !fits {
		all.Input = 0
	}
	if !fits {
		all.Format, all.Global = projection.FormatBF16, 0
	}
	all.Name, all.N, all.Data, all.Scales, all.RowScales = "", 0, Blob{}, Blob{}, Blob{}
	parts := make([]Matrix, len(list))
	for i, m := range list {
		if !fits {
			m = m.asBF16()
		} else if m.Format != all.Format {
			m.Scales = exponents(m.Scales)
		}
		parts[i] = m
		if i > 0 {
			all.Name += "|"
		}
		all.Name += m.Name
		all.N += m.N
		all.Data, all.Scales, all.RowScales = join(all.Data, m.Data), join(all.Scales, m.Scales), join(all.RowScales, m.RowScales)
	}
	all.values = func(r int, dst []float32, a int) {
		for _, m := range parts {
			if r < m.N {
				m.values(r, dst, a)
				return
			}
			r -= m.N
		}
	}
	return all
}

// commonFormat returns the format that matrices of two formats can be in without rounding.
func commonFormat(a, b projection.Format) (f projection.Format, ok bool) {
	if a != b && min(a, b) == projection.FormatFP8F32 && max(a, b) == projection.FormatFP8 {
		return projection.FormatFP8F32, true
	}
	return a, a == b
}

// exponents turns UE8M0 bytes into f32.
func exponents(b Blob) Blob {
	return computed(b.size, 4, func(dst []byte, i int64) {
		one := make([]byte, len(dst)/4)
		at := int64(0)
		for _, q := range b.pieces {
			for j := range one {
				if from := i + int64(j) - at; from >= 0 && from < q.size {
					q.read(one[j:j+1], from)
				}
			}
			at += q.size
		}
		for j, s := range one {
			binary.LittleEndian.PutUint32(dst[4*j:], math.Float32bits(numfmt.UE8M0Scale(s)))
		}
	})
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
