package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Format names a way to store the numbers of a matrix.
type Format uint8

const (
	BF16   Format = iota + 1
	F32           // hyper-connections
	FP8           // E4M3 with a scale for blocks, rows or all
	MXFP4         // E2M1 with an E8M0 scale for every 32 columns
	Blocks        // a format of GGUF, see Matrix.Stored
)

// String is the format's usual name.
func (f Format) String() string {
	return [...]string{"none", "BF16", "F32", "FP8", "MXFP4", "blocks of GGUF"}[f]
}

const (
	MXBlock  = 32  // columns that share a scale of MXFP4
	FP8Block = 128 // columns that share a scale of FP8
)

// Matrix is a linear layer [N, K]: N outputs, K inputs, row-major.
type Matrix struct {
	Name   string
	Format Format
	N, K   int
	// Data are its bytes in the mapped file. MXFP4: byte c of a row holds column 2c in its low
	// nibble and column 2c+1 in its high nibble.
	Data []byte
	// Scales of MXFP4 are bytes [N, K/32] in the mapped file; s means 2^(s-127).
	Scales []byte
	// BlockScales of FP8 are f32 [ceil(N/Side), ceil(K/128)]: Side rows share one.
	BlockScales []float32
	Side        int
	// Stored is the format of Blocks, whose rows lie one after the other; Factor is one more for
	// all numbers.
	Stored *gguf.Format
	Factor float32
}

// Bytes returns the number of bytes that a product reads of the matrix.
func (m *Matrix) Bytes() int64 {
	return int64(len(m.Data)) + int64(len(m.Scales)) + 4*int64(len(m.BlockScales))
}

// Row decodes row n to dst [K]. It is the definition of what is stored.
func (m *Matrix) Row(dst []float32, n int) {
	if m.Format == Blocks {
		size := m.Stored.Size(m.K)
		m.Stored.Decode(dst[:m.K], m.Data[n*size:][:size])
		if m.Factor != 1 {
			for i := range dst[:m.K] {
				dst[i] *= m.Factor
			}
		}
		return
	}
	for c := range dst[:m.K] {
		i := n*m.K + c
		switch m.Format {
		case BF16:
			dst[c] = numfmt.BF16Decode(binary.LittleEndian.Uint16(m.Data[2*i:]))
		case F32:
			dst[c] = math.Float32frombits(binary.LittleEndian.Uint32(m.Data[4*i:]))
		case FP8:
			blocks := (m.K + FP8Block - 1) / FP8Block
			dst[c] = numfmt.E4M3Decode(m.Data[i]) * m.BlockScales[n/m.Side*blocks+c/FP8Block]
		case MXFP4:
			dst[c] = numfmt.E2M1Decode(m.Data[i/2]>>(4*(c%2))) * numfmt.UE8M0Scale(m.Scales[i/MXBlock])
		}
	}
}

// floats widens a small tensor.
func floats(t model.Tensor) ([]float32, error) {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	v := make([]float32, n)
	stored := gguf.FormatNamed(t.DType)
	if stored != nil && stored.Decodes() {
		stored.Decode(v, t.Data)
	}
	for i := range v {
		switch t.DType {
		case "F32":
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		case "BF16":
			v[i] = numfmt.BF16Decode(binary.LittleEndian.Uint16(t.Data[2*i:]))
		case "F8_E8M0", "U8":
			v[i] = numfmt.UE8M0Scale(t.Data[i])
		default:
			if stored == nil || !stored.Decodes() {
				return nil, wrong(t, "BF16 or F32")
			}
		}
		if v[i] != v[i] || math.IsInf(float64(v[i]), 0) {
			return nil, &model.CheckpointError{File: t.File, Tensor: t.Name, Got: fmt.Sprintf("%v at %d", v[i], i), Want: "finite numbers"}
		}
	}
	return v, nil
}

func wrong(t model.Tensor, want string, a ...any) error {
	return &model.CheckpointError{File: t.File, Tensor: t.Name,
		Got: fmt.Sprintf("%s %v", t.DType, t.Shape), Want: fmt.Sprintf(want, a...)}
}

// plain makes a matrix of bf16 or f32 of a tensor, or of rows of one.
func plain(t model.Tensor, n, k int) (Matrix, error) {
	m := Matrix{Name: t.Name, N: n, K: k, Data: t.Data}
	switch t.DType {
	case "BF16":
		m.Format = BF16
	case "F32":
		m.Format = F32
	default:
		return m, wrong(t, "BF16 or F32")
	}
	return m, nil
}

// mxfp4 makes a matrix of E2M1 codes and their scales.
func mxfp4(t, scale model.Tensor, n, k int) (Matrix, error) {
	switch {
	case k%MXBlock != 0 || !slices.Equal(t.Shape, []int{n, k / 2}):
		return Matrix{}, wrong(t, "I8 [%d, %d], two codes a byte", n, k/2)
	case scale.DType != "F8_E8M0" && scale.DType != "U8" || !slices.Equal(scale.Shape, []int{n, k / MXBlock}):
		return Matrix{}, wrong(scale, "F8_E8M0 [%d, %d]", n, k/MXBlock)
	}
	if i := bytes.IndexByte(scale.Data, 255); i >= 0 {
		return Matrix{}, &model.CheckpointError{File: scale.File, Tensor: scale.Name, Got: fmt.Sprintf("NaN at %d", i), Want: "numbers"}
	}
	return Matrix{Name: t.Name, Format: MXFP4, N: n, K: k, Data: t.Data, Scales: scale.Data}, nil
}

// fp8 makes a matrix of E4M3 with a scale for blocks of 128 by 128, for rows or for all.
func fp8(t, scale model.Tensor, n, k int) (Matrix, error) {
	m := Matrix{Name: t.Name, Format: FP8, N: n, K: k, Data: t.Data}
	if !slices.Equal(t.Shape, []int{n, k}) {
		return m, wrong(t, "F8_E4M3 [%d, %d]", n, k)
	}
	s, err := floats(scale)
	if err != nil {
		return m, err
	}
	rows, blocks := (n+FP8Block-1)/FP8Block, (k+FP8Block-1)/FP8Block
	switch shape := scale.Shape; {
	case slices.Equal(shape, []int{rows, blocks}):
		m.Side, m.BlockScales = FP8Block, s
		return m, nil
	case slices.Equal(shape, []int{n, 1}), slices.Equal(shape, []int{n}):
		m.Side = 1
	case len(s) == 1:
		m.Side = n
	default:
		return m, wrong(scale, "[%d, %d] for blocks, [%d, 1] for rows or [1] for all", rows, blocks, n)
	}
	for _, v := range s {
		m.BlockScales = append(m.BlockScales, slices.Repeat([]float32{v}, blocks)...)
	}
	return m, nil
}
