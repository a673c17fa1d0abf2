package weights

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

var specials = map[string]numfmt.Special{"F64": numfmt.SpecialF64, "F32": numfmt.SpecialF32, "BF16": numfmt.SpecialBF16,
	"F16": numfmt.SpecialF16, "F8_E4M3": numfmt.SpecialE4M3, "F8_E8M0": numfmt.SpecialUE8M0}

// finite refuses numbers of a tensor's bytes from at on that are infinite or none.
func finite(t model.Tensor, at int, data []byte) error {
	s, ok := specials[t.DType]
	if !ok {
		return nil
	}
	n, bits := s.Find(data)
	if n < 0 {
		return nil
	}
	return &model.CheckpointError{File: t.File, Tensor: t.Name,
		Got: fmt.Sprintf("the bits %0*x at %v", 2*s.Bytes, bits, place(t.Shape, at/s.Bytes+n)), Want: "finite numbers"}
}

// place returns the indices of an element.
func place(shape []int, n int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i], n = n%shape[i], n/shape[i]
	}
	return at
}
