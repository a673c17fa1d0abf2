package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/projection"
)

// blockFormat returns the format of a tensor of GGUF that is stored in blocks, nil for any other.
func blockFormat(t safetensors.Tensor) *gguf.Format {
	if t.DType.Bits() > 0 {
		return nil
	}
	f := gguf.FormatNamed(string(t.DType))
	if f == nil || !f.Decodes() {
		return nil
	}
	return f
}

// isFloats reports whether a tensor has floats of 16 or 32 bits.
func isFloats(t safetensors.Tensor) bool {
	return t.DType == safetensors.BF16 || t.DType == safetensors.F16 || t.DType == safetensors.F32
}

// blockFloats decodes the elements from i on.
func blockFloats(f *gguf.Format, data []byte) func(dst []float32, i int) {
	return func(dst []float32, i int) {
		var block [256]float32
		for len(dst) > 0 {
			at, skip := i/f.Values, i%f.Values
			if n := len(dst) / f.Values; skip == 0 && n > 0 {
				f.Decode(dst[:n*f.Values], data[at*f.Bytes:])
				dst, i = dst[n*f.Values:], i+n*f.Values
				continue
			}
			f.Decode(block[:f.Values], data[at*f.Bytes:])
			n := copy(dst, block[skip:f.Values])
			dst, i = dst[n:], i+n
		}
	}
}

// blocks reads a matrix stored in blocks, with a factor for all of it where there is one. It
// becomes bf16 unless kernels read its format and its part has whole blocks.
func (l *layerReader) blocks(w safetensors.Tensor, stem string, n, k int, p part) Matrix {
	if l.shape(w, n, k); l.err != nil {
		return Matrix{}
	}
	decode, factor := floats(w), [1]float32{1}
	if l.has(stem + ".scale") {
		s := l.tensor(stem + ".scale")
		if l.shape(s, 1); l.err == nil && s.DType != safetensors.F32 {
			l.wrong(s, "F32 [1]")
		}
		l.scales(s, 1, func(dst []float32, i int) { floats(s)(dst, i); factor[0] = dst[0] })
	}
	m := Matrix{Name: w.Name, N: p.s - p.r, K: p.b - p.a} // of no format that a kernel reads
	m.values = func(r int, dst []float32, a int) {
		decode(dst, (p.r+r)*k+p.a+a)
		for i := range dst {
			dst[i] *= factor[0]
		}
	}
	m.Format = projection.FormatOfBlocks(string(w.DType))
	if v := m.Format.BlockValues(); v > 0 && factor[0] == 1 && p.a%v == 0 && p.b%v == 0 {
		m.repack(blockFormat(w), w.Data, k, p)
		return m
	}
	m.Format = 0
	l.widened.add(w, m.N, m.K)
	return m.asBF16()
}

// repack makes data and scales of a part of a matrix of k columns that is stored in blocks, row by
// row when they are read.
func (m *Matrix) repack(f *gguf.Format, stored []byte, k int, p part) {
	is := m.Format.Shapes(1, m.K)
	d, s := int(is.Data.Bytes()), int(is.Scale.Bytes())
	row := func(r int, data, scales []byte) float32 {
		at := (p.r + r) * f.Size(k)
		factor, _ := m.Format.Repack(data, scales, stored[at+f.Size(p.a):at+f.Size(p.b)]) // sizes fit
		return factor
	}
	m.Data = computed(int64(m.N), d, func(dst []byte, i int64) {
		for ; len(dst) > 0; dst, i = dst[d:], i+1 {
			row(int(i), dst[:d], nil)
		}
	})
	m.Scales = computed(int64(m.N), s, func(dst []byte, i int64) {
		for ; len(dst) > 0; dst, i = dst[s:], i+1 {
			row(int(i), nil, dst[:s])
		}
	})
	m.RowScales = computed(int64(m.N), 4, func(dst []byte, i int64) {
		for ; len(dst) > 0; dst, i = dst[4:], i+1 {
			binary.LittleEndian.PutUint32(dst, math.Float32bits(row(int(i), nil, nil)))
		}
	})
}

// Widened says which linear layers are kept as bf16 because no kernel reads their format.
type Widened struct {
	Formats []string // sorted
	Layers  int      // linear layers
	Stored  int64    // their bytes in the file
	Kept    int64    // their bytes on the device
}

// String reads "12 linear layers of Q4_K, Q8_0 are kept as bf16: 2.0 GiB, of 1.1 GiB in the file";
// "" for none.
func (w Widened) String() string {
	if w.Layers == 0 {
		return ""
	}
	return fmt.Sprintf("%d linear layers of %s are kept as bf16: %s, of %s in the file",
		w.Layers, strings.Join(w.Formats, ", "), gib(w.Kept), gib(w.Stored))
}

// gib is a number of bytes in GiB, or in MiB where it is less.
func gib(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// add counts n rows of k columns of a tensor.
func (w *Widened) add(t safetensors.Tensor, n, k int) {
	if at, there := slices.BinarySearch(w.Formats, string(t.DType)); !there {
		w.Formats = slices.Insert(w.Formats, at, string(t.DType))
	}
	w.Layers++
	w.Stored += int64(gguf.FormatNamed(string(t.DType)).Size(n * k))
	w.Kept += 2 * int64(n) * int64(k)
}
