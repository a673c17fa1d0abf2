package cpu

// #include "rows.h"
// #include "decode.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/server/weights"
)

// decodedRows counts the rows that are decoded at a time: few enough to stay in a core's cache.
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
	if m.Factor == 1 && decode(dst, m, first, n) {
		return
	}
	for i := range n {
		m.Row(dst[i*m.K:], first+i)
	}
}

// decode is decodeRows in C, without the matrix's factor. It returns false if C does not have the
// format.
func decode(dst []float32, m *weights.Matrix, first, n int) bool {
	dst, size := dst[:n*m.K], m.Stored.Size(m.K)
	src := m.Data[first*size:][:n*size]
	return C.decode(instructions, C.int(m.Stored.Type), (*C.float)(&dst[0]), (*C.uint8_t)(&src[0]),
		C.long(len(dst)/m.Stored.Values), (*C.uint8_t)(unsafe.SliceData(gridOf(m)))) != 0
}

// grids describes the formats whose codes stand for several values each, by name. With high as the
// high byte of d, the first values of a block are the row of the grid that its first code names; of
// IQ1_S eight times the row, and one more.
// A row's lowest eight bits are byte 2, the others begin byte upper.
var grids = map[string]struct {
	rows, width, upper int
	high               byte // of an f16 that makes the scale 1
}{
	"IQ1_S":   {rows: 2048, width: 8, upper: 34, high: 0x48},
	"IQ2_XXS": {rows: 256, width: 8, upper: 3, high: 0x48},
	"IQ2_XS":  {rows: 512, width: 8, upper: 3, high: 0x48},
	"IQ2_S":   {rows: 1024, width: 8, upper: 66, high: 0x48},
	"IQ3_XXS": {rows: 256, width: 4, upper: 3, high: 0x44},
	"IQ3_S":   {rows: 512, width: 4, upper: 66, high: 0x3C},
}

var gridsRead sync.Map // []byte by the format's name

// gridOf reads the grid of a matrix's format off the definition, once; nil if it has none.
func gridOf(m *weights.Matrix) []byte {
	f := m.Stored
	of, has := grids[f.Name]
	if !has {
		return nil
	}
	if table, done := gridsRead.Load(f.Name); done {
		return table.([]byte)
	}
	var table []byte
	values, block := make([]float32, f.Values), make([]byte, f.Bytes)
	for row := range of.rows {
		block[1], block[2], block[of.upper] = of.high, byte(row), byte(row>>8)
		f.Decode(values, block)
		for _, v := range values[:of.width] {
			table = append(table, byte(int8(v)))
		}
	}
	gridsRead.Store(f.Name, table)
	return table
}
