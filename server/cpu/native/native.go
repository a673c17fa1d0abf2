// Package native has the products that are written in C, for several levels of a processor's
// instructions. Tests in it would have C compiled twice: those of package cpu execute all of it.
package native

// #cgo CFLAGS: -g1
// #cgo LDFLAGS: -lm
// #include "rows.h"
// #include "blocks.h"
import "C"

import "unsafe"

// Level returns what this processor can do: 2 AVX-512, 1 AVX2, 0 neither.
func Level() int { return int(C.rows_level()) }

// HasBlocks says by its number whether Blocks has a format of GGUF.
func HasBlocks(format int) bool { return C.blocks_has(C.int(format)) != 0 }

// Rows multiplies rows first to end-1 of a matrix with some of the tokens, of stride numbers each:
// y[i*ystride + r - first] = row r . token take[i].
func Rows(level, format, k int, data, scales *byte, blocks *float32, side int, x *float32, stride int,
	take []int32, first, end int, y *float32, ystride int) {
	C.rows(C.int(level), C.int(format), C.long(k), (*C.uint8_t)(data), (*C.uint8_t)(scales), (*C.float)(blocks), C.long(side),
		(*C.float)(x), C.long(stride), (*C.int32_t)(&take[0]), C.long(len(take)), C.long(first), C.long(end), (*C.float)(y),
		C.long(ystride))
}

// Blocks does what Rows does for blocks of GGUF. Activations are 256 each, as Whole of blocks.h; a
// token has stride of them.
func Blocks(level, format, k int, data, grid *byte, x unsafe.Pointer, stride int,
	take []int32, first, end int, y *float32, ystride int) {
	C.blocks(C.int(level), C.int(format), C.long(k), (*C.uint8_t)(data), (*C.uint8_t)(grid), (*C.Whole)(x), C.long(stride),
		(*C.int32_t)(&take[0]), C.long(len(take)), C.long(first), C.long(end), (*C.float)(y), C.long(ystride))
}
