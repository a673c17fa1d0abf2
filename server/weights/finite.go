package weights

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

var specials = map[string]numfmt.Special{"F64": numfmt.SpecialF64, "F32": numfmt.SpecialF32, "BF16": numfmt.SpecialBF16,
	"F16": numfmt.SpecialF16, "F8_E4M3": numfmt.SpecialE4M3, "F8_E8M0": numfmt.SpecialUE8M0}

// finite refuses numbers of a tensor's bytes from at on that are infinite or none.
func finite(t model.Tensor, at int, data []byte) error {
	s, ok := specials[t.DType]
	if !ok {
		return finiteBlocks(t, at, at+len(data))
	}
	n, bits := s.Find(data)
	if n < 0 {
		return nil
	}
	return &model.CheckpointError{File: t.File, Tensor: t.Name,
		Got: fmt.Sprintf("the bits %0*x at %v", 2*s.Bytes, bits, place(t.Shape, at/s.Bytes+n)), Want: "finite numbers"}
}

// finiteBlocks refuses blocks of GGUF that begin within the bytes from at to end of a tensor.
func finiteBlocks(t model.Tensor, at, end int) error {
	f := gguf.FormatNamed(t.DType)
	if f == nil {
		return nil
	}
	for b := (at + f.Bytes - 1) / f.Bytes * f.Bytes; b < end; b += f.Bytes {
		if !f.Finite(t.Data[b:]) {
			return &model.CheckpointError{File: t.File, Tensor: t.Name, Want: "finite numbers",
				Got: fmt.Sprintf("a scale that is not finite at %v", place(t.Shape, b/f.Bytes*f.Values))}
		}
	}
	return nil
}

// place returns the indices of an element.
func place(shape []int, n int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i], n = n%shape[i], n/shape[i]
	}
	return at
}
