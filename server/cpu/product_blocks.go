package cpu

// #include "rows.h"
// #include "decode.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/server/weights"
)

// decodedRows is how many rows are decoded at a time: few enough to stay in a core's cache.
const decodedRows = 8

var decoded = sync.Pool{New: func() any { return new([]float32) }}

// decodedProduct is product for blocks of GGUF: rows are decoded to f32 and multiplied as such.
func decodedProduct(m *weights.Matrix, x *rows, take []int32, first, end int, y []float32, stride int) {
	buf := decoded.Get().(*[]float32)
	defer decoded.Put(buf)
	*buf = room(*buf, decodedRows*m.K)
	for r := first; r < end; r += decodedRows {
		n := min(decodedRows, end-r)
		decodeRows(*buf, m, r, n)
		C.rows(instructions, C.int(weights.F32), C.long(m.K), (*C.uint8_t)(unsafe.Pointer(&(*buf)[0])), nil, nil, 1,
			(*C.float)(&x.plain[0]), C.long(x.stride), (*C.int32_t)(&take[0]), C.long(len(take)), 0, C.long(n),
			(*C.float)(&y[r-first]), C.long(stride))
	}
}

// decodeRows decodes n rows from first on to dst [n, K], as m.Row does one.
func decodeRows(dst []float32, m *weights.Matrix, first, n int) {
	size := m.Stored.Size(m.K)
	if dst = dst[:n*m.K]; m.Factor != 1 || !decode(dst, m.Stored, m.Data[first*size:][:n*size]) {
		for i := range n {
			m.Row(dst[i*m.K:], first+i)
		}
	}
}

// decode is f.Decode in C. It returns false if C does not have the format.
func decode(dst []float32, f *gguf.Format, src []byte) bool {
	grid := (*C.uint8_t)(unsafe.SliceData(grids()[f.Name]))
	return C.decode(instructions, C.int(f.Type), (*C.float)(&dst[0]), (*C.uint8_t)(&src[0]),
		C.long(len(dst)/f.Values), grid) != 0
}

// grids has the values of formats whose codes stand for several each, by the format's name.
var grids = sync.OnceValue(func() map[string][]byte {
	const one, four, eight = 0x3C, 0x44, 0x48 // f16's high byte
	return map[string][]byte{
		"IQ2_XXS": grid("IQ2_XXS", 256, 8, eight, func(b []byte, row int) { b[2] = byte(row) }),
		"IQ2_XS":  grid("IQ2_XS", 512, 8, eight, func(b []byte, row int) { b[2], b[3] = byte(row), byte(row>>8) }),
		"IQ2_S":   grid("IQ2_S", 1024, 8, eight, func(b []byte, row int) { b[2], b[66] = byte(row), byte(row>>8) }),
		"IQ3_XXS": grid("IQ3_XXS", 256, 4, four, func(b []byte, row int) { b[2] = byte(row) }),
		"IQ3_S":   grid("IQ3_S", 512, 4, one, func(b []byte, row int) { b[2], b[66] = byte(row), byte(row>>8) }),
	}
})

// grid reads the rows of a format's grid off its definition, each as the first code of a block: d,
// of which the high byte is given, makes its scale 1.
func grid(name string, rows, width int, d byte, set func(b []byte, row int)) []byte {
	f := gguf.FormatNamed(name)
	var table []byte
	values := make([]float32, f.Values)
	for row := range rows {
		b := make([]byte, f.Bytes)
		b[1] = d
		set(b, row)
		f.Decode(values, b)
		for _, v := range values[:width] {
			table = append(table, byte(v))
		}
	}
	return table
}
