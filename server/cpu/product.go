package cpu

import (
	"runtime"
	"unsafe"

	"github.com/vkmla/vkmla/server/cpu/native"
	"github.com/vkmla/vkmla/server/weights"
)

// blockColumns divides the columns of a sum; rows of activations are padded to it.
const blockColumns = 128

// instructions names the build of the products that this processor takes.
var instructions = native.Level()

// Instructions names what products use of the processor.
func Instructions() string { return [...]string{"plain", "AVX2", "AVX-512"}[instructions] }

// Products names what the bits of products and of what lies between depend on: the number of
// their definition, which changes when they do, the architecture, since Go's compiler and package
// math fuse on some, and the instructions.
func Products() string { return "2 " + runtime.GOARCH + " " + Instructions() }

// form names a way in which a product reads activations.
type form int

const (
	plain  form = iota // as they are
	mixed              // by blocks of 128, column 8i+j at 16j+i: the order in which MXFP4 is decoded
	wholes             // as whole numbers, for blocks of GGUF
	forms              // how many there are
)

// asWholes says by number which formats of GGUF C has.
var asWholes = func() (has [64]bool) {
	for t := range has {
		has[t] = native.HasBlocks(t)
	}
	return has
}()

// formOf returns the form that a matrix is multiplied with.
func formOf(m *weights.Matrix) form {
	switch {
	case m.Format == weights.MXFP4:
		return mixed
	case m.Format == weights.Blocks && asWholes[m.Stored.Type]:
		return wholes
	}
	return plain
}

// rows are activations [T, K] as products read them. Each row is followed by zeros up to a
// multiple of 128.
type rows struct {
	k, stride int
	wanted    [forms]bool
	plain, mx []float32
	whole     []whole
}

// mxPlace returns the place of a column in rows.mx.
func mxPlace(c int) int { return c&^(blockColumns-1) | c%8*16 | c/8%16 }

// wholes returns the blocks of whole numbers that a row has.
func (r *rows) wholes() int { return (r.k + wholeColumns - 1) / wholeColumns }

// reset makes room for t rows of k numbers, in the forms that are needed.
func (r *rows) reset(t, k int, needed ...form) {
	r.k, r.stride, r.wanted = k, (k+blockColumns-1)/blockColumns*blockColumns, [forms]bool{}
	for _, f := range needed {
		r.wanted[f] = true
	}
	if r.wanted[plain] || r.wanted[wholes] {
		r.plain = room(r.plain, t*r.stride)
		clear(r.plain[:t*r.stride])
	}
	if r.wanted[mixed] {
		r.mx = room(r.mx, t*r.stride)
		clear(r.mx[:t*r.stride])
	}
	if n := t * r.wholes(); r.wanted[wholes] && cap(r.whole) < n {
		r.whole = make([]whole, n)
	}
}

// set writes columns from first on of a row. A row is ready after its last ones and finish.
func (r *rows) set(t, first int, x []float32) {
	if r.wanted[plain] || r.wanted[wholes] {
		copy(r.plain[t*r.stride+first:], x)
	}
	if r.wanted[mixed] {
		to := r.mx[t*r.stride:][:r.stride]
		for i, v := range x {
			to[mxPlace(first+i)] = v
		}
	}
}

// fill writes a whole row.
func (r *rows) fill(t int, x []float32) {
	r.set(t, 0, x)
	r.finish(t)
}

// finish makes whole numbers of a row.
func (r *rows) finish(t int) {
	if !r.wanted[wholes] {
		return
	}
	for i := range r.wholes() {
		first := i * wholeColumns
		r.whole[t*r.wholes()+i].set(r.plain[t*r.stride:][first:min(first+wholeColumns, r.k)])
	}
}

// product multiplies rows first to end-1 of a matrix with some of the tokens:
// y[i*stride + r - first] = row r . x[take[i]].
func product(m *weights.Matrix, x *rows, take []int32, first, end int, y []float32, stride int) {
	if len(take) == 0 || first == end {
		return
	}
	_ = y[(len(take)-1)*stride+end-first-1] // the product checks no bounds
	from := x.plain
	switch f := formOf(m); {
	case f == wholes:
		blocksProduct(m, x, take, first, end, y, stride)
		return
	case m.Format == weights.Blocks:
		decodedProduct(m, x, take, first, end, y, stride)
		return
	case f == mixed:
		from = x.mx
	}
	native.Rows(instructions, int(m.Format), m.K, unsafe.SliceData(m.Data), unsafe.SliceData(m.Scales),
		unsafe.SliceData(m.BlockScales), m.Side, &from[0], x.stride, take, first, end, &y[0], stride)
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
