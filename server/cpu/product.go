package cpu

// #include "rows.h"
import "C"

import (
	"unsafe"

	"github.com/vkmla/vkmla/server/weights"
)

// blockColumns divides the columns of a sum; rows of activations are padded to it.
const blockColumns = 128

// instructions names the build of the products that this processor takes.
var instructions = C.rows_level()

// Instructions names what products use of the processor.
func Instructions() string { return [...]string{"plain", "AVX2", "AVX-512"}[instructions] }

// rows are activations [T, K] as products read them. Each row is followed by zeros up to a
// multiple of 128.
type rows struct {
	k, stride int
	plain     []float32 // as they are
	mx        []float32 // by blocks of 128, column 8i+j at 16j+i: the order in which MXFP4 is decoded
}

// mxPlace returns the place of a column in rows.mx.
func mxPlace(c int) int { return c&^(blockColumns-1) | c%8*16 | c/8%16 }

// reset makes room for t rows of k numbers. Only the forms that formats need are kept.
func (r *rows) reset(t, k int, formats ...weights.Format) {
	r.k, r.stride = k, (k+blockColumns-1)/blockColumns*blockColumns
	room := func(s []float32, wanted bool) []float32 {
		switch n := t * r.stride; {
		case !wanted:
			return nil
		case cap(s) < n:
			return make([]float32, n)
		default:
			clear(s[:n])
			return s[:n]
		}
	}
	mx := false
	plain := false
	for _, f := range formats {
		mx, plain = mx || f == weights.MXFP4, plain || f != weights.MXFP4
	}
	r.plain, r.mx = room(r.plain, plain), room(r.mx, mx)
}

// set writes columns from first on of a row.
func (r *rows) set(t, first int, x []float32) {
	if r.plain != nil {
		copy(r.plain[t*r.stride+first:], x)
	}
	if r.mx != nil {
		to := r.mx[t*r.stride:][:r.stride]
		for i, v := range x {
			to[mxPlace(first+i)] = v
		}
	}
}

// product multiplies rows first to end-1 of a matrix with some of the tokens:
// y[i*stride + r - first] = row r . x[take[i]].
func product(m *weights.Matrix, x *rows, take []int32, first, end int, y []float32, stride int) {
	from := x.plain
	if m.Format == weights.MXFP4 {
		from = x.mx
	}
	if len(take) == 0 || first == end {
		return
	}
	_ = y[(len(take)-1)*stride+end-first-1] // the product checks no bounds
	if m.Format == weights.Blocks {
		decodedProduct(m, x, take, first, end, y, stride)
		return
	}
	C.rows(instructions, C.int(m.Format), C.long(m.K),
		(*C.uint8_t)(unsafe.SliceData(m.Data)), (*C.uint8_t)(unsafe.SliceData(m.Scales)),
		(*C.float)(unsafe.SliceData(m.BlockScales)), C.long(m.Side),
		(*C.float)(&from[0]), C.long(x.stride), (*C.int32_t)(&take[0]), C.long(len(take)),
		C.long(first), C.long(end), (*C.float)(&y[0]), C.long(stride))
}

// taskBytes bounds what one task reads of a matrix: enough that beginning it costs little, little
// enough that all cores have work.
const taskBytes = 128 << 10

// rowsOfTask returns the rows of a matrix that one task takes.
func rowsOfTask(m *weights.Matrix) int {
	return max(1, taskBytes*m.N/int(max(m.Bytes(), 1)))
}

// linear is a product with all rows of a matrix on all cores: y [T, N].
func (c *CPU) linear(y []float32, m *weights.Matrix, x *rows, t int) {
	take, block := c.all(t), rowsOfTask(m)
	c.read += m.Bytes()
	c.pool.Run((m.N+block-1)/block, func(i int) {
		first := i * block
		product(m, x, take, first, min(first+block, m.N), y[first:], m.N)
	})
}

// all is the list of tokens 0 to t-1.
func (c *CPU) all(t int) []int32 {
	for len(c.everyToken) < t {
		c.everyToken = append(c.everyToken, int32(len(c.everyToken)))
	}
	return c.everyToken[:t]
}
