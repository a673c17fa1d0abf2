package cpu

// #include "rows.h"
import "C"

import (
	"sync"
	"unsafe"

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
		for i := range n {
			m.Row((*buf)[i*m.K:], r+i)
		}
		C.rows(instructions, C.int(weights.F32), C.long(m.K), (*C.uint8_t)(unsafe.Pointer(&(*buf)[0])), nil, nil, 1,
			(*C.float)(&x.plain[0]), C.long(x.stride), (*C.int32_t)(&take[0]), C.long(len(take)), 0, C.long(n),
			(*C.float)(&y[r-first]), C.long(stride))
	}
}
