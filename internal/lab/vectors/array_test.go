package vectors

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArray(t *testing.T) {
	a := FromI32([]int32{1, -2, 3, 4, 5, 6}, 2, 3)
	assert.True(t, a.Len() == 6 && a.Dim(1) == 3 && a.Dim(2) == 0 && a.String() == "int32 [2, 3]" &&
		a.I32()[1] == -2 && a.I64() == nil, "%v", a)
	b := a.Clone()
	b.Data[0], b.Shape[0] = 9, 9
	require.Equal(t, byte(1), a.Data[0], "a clone shares memory")
	assert.Equal(t, 2, a.Shape[0], "a clone shares memory")
	v := FromBF16([]float32{1, -0.5}, 2).BF16()
	require.Equal(t, float32(1), v[0], "bf16: %v", v)
	assert.Equal(t, float32(-0.5), v[1], "bf16: %v", v)
	require.Nil(t, a.BF16(), "accessors")
	require.Equal(t, float32(2), FromF32([]float32{2}, 1).F32()[0], "accessors")
	assert.Equal(t, int64(-1), FromI64([]int64{-1}, 1).I64()[0], "accessors")
	assert.True(t, New(F32, 3, 0).Len() == 0 && (Array{}).IsZero(), "empty arrays")
	neg := Filled(0xFF, U8, 8).Data
	for typ, want := range map[Type]float64{U8: 255, I8: -1, I16: -1, U32: math.MaxUint32, I32: -1, I64: -1, U64: math.MaxUint64} {
		v := (Array{typ, nil, neg[:typ.Size()]}).Float64s()
		require.Equal(t, 1, len(v), "%v: %v", typ, v)
		assert.Equal(t, want, v[0], "%v: %v", typ, v)
	}
	for _, typ := range []Type{U16, F16, F32, F64} {
		v := (Array{typ, nil, neg[:typ.Size()]}).Float64s()
		assert.True(t, len(v) == 1 && math.IsNaN(v[0]), "%v: %v, want NaN", typ, v)
	}
}
