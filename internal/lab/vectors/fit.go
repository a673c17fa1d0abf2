package vectors

import (
	"encoding/binary"
	"math"
	"slices"
)

// fitted returns a as an array of type t and shape dims, as Input.Array describes it.
func (a Array) fitted(t Type, dims []int) (fit Array, ok bool) {
	if fit, ok = a.Integers(t); !ok {
		return Array{}, false
	}
	if len(dims) == 0 || fits(a.Shape, dims) {
		return fit, true
	}
	// Dimensions of 1 that are too many, or too few.
	shape := slices.Clone(a.Shape)
	for len(shape) != len(dims) {
		var one int
		if len(shape) > len(dims) {
			// Not the first one, which counts tokens or requests, if another one will do.
			one = 1 + slices.Index(shape[1:], 1)
			if shape[one] != 1 {
				return Array{}, false
			}
			shape = slices.Delete(shape, one, one+1)
		} else {
			if one = slices.Index(dims, 1); one < 0 || one > len(shape) {
				return Array{}, false
			}
			shape = slices.Insert(shape, one, 1)
		}
	}
	fit.Shape = shape
	return fit, fits(shape, dims)
}

// fits reports whether a shape is what dims demands, -1 being any size.
func fits(shape, dims []int) bool {
	return slices.EqualFunc(shape, dims, func(got, want int) bool { return want < 0 || got == want })
}

// Integers returns a as integers of type t, I32 or I64, or as it is if t is its type. ok is
// false where t is another type, a has no integers, or one of them does not fit.
func (a Array) Integers(t Type) (as Array, ok bool) {
	if a.Type == t {
		return a, true
	}
	if t != I32 && t != I64 {
		return Array{}, false
	}
	switch a.Type {
	case U8, I8, U16, I16, I32, U32, I64, U64:
	default:
		return Array{}, false
	}
	out, from := New(t, a.Shape...), a.Type.Size()
	signed := a.Type == I8 || a.Type == I16 || a.Type == I32 || a.Type == I64
	for i := range a.Len() {
		var b [8]byte
		copy(b[:], a.Data[i*from:(i+1)*from])
		v := int64(binary.LittleEndian.Uint64(b[:]))
		if shift := 64 - 8*from; signed {
			v = v << shift >> shift
		} else if v < 0 {
			return Array{}, false // beyond 2^63
		}
		switch {
		case t == I64:
			binary.LittleEndian.PutUint64(out.Data[8*i:], uint64(v))
		case v < math.MinInt32 || v > math.MaxInt32:
			return Array{}, false
		default:
			binary.LittleEndian.PutUint32(out.Data[4*i:], uint32(v))
		}
	}
	return out, true
}
