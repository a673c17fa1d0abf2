package vectors

import (
	"math"
	"testing"
)

func TestArray(t *testing.T) {
	a := FromI32([]int32{1, -2, 3, 4, 5, 6}, 2, 3)
	if a.Len() != 6 || a.Dim(1) != 3 || a.Dim(2) != 0 || a.String() != "int32 [2, 3]" || a.I32()[1] != -2 || a.I64() != nil {
		t.Errorf("%v", a)
	}
	b := a.Clone()
	b.Data[0], b.Shape[0] = 9, 9
	if a.Data[0] != 1 || a.Shape[0] != 2 {
		t.Error("a clone shares memory")
	}
	if v := FromBF16([]float32{1, -0.5}, 2).BF16(); v[0] != 1 || v[1] != -0.5 {
		t.Errorf("bf16: %v", v)
	}
	if a.BF16() != nil || FromF32([]float32{2}, 1).F32()[0] != 2 || FromI64([]int64{-1}, 1).I64()[0] != -1 {
		t.Error("accessors")
	}
	if n := New(F32, 3, 0).Len(); n != 0 || !(Array{}).IsZero() {
		t.Error("empty arrays")
	}
	neg := Filled(0xFF, U8, 8).Data
	for typ, want := range map[Type]float64{U8: 255, I8: -1, I16: -1, U32: math.MaxUint32, I32: -1, I64: -1, U64: math.MaxUint64} {
		if v := (Array{typ, nil, neg[:typ.Size()]}).Float64s(); len(v) != 1 || v[0] != want {
			t.Errorf("%v: %v, want %v", typ, v, want)
		}
	}
	for _, typ := range []Type{U16, F16, F32, F64} {
		if v := (Array{typ, nil, neg[:typ.Size()]}).Float64s(); len(v) != 1 || !math.IsNaN(v[0]) {
			t.Errorf("%v: %v, want NaN", typ, v)
		}
	}
}
