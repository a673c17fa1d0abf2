package gguf

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
)

// grid makes the table of a format whose codes stand for several values each. Numbers with a digit
// for each value, the first the lowest, ascend from row to row; deltas are what they grow by, as
// varints in base 64.
func grid[V int8 | uint8](width int, values []V, deltas string) []V {
	list, err := base64.RawStdEncoding.DecodeString(deltas)
	if err != nil {
		panic(err) // a constant of this package
	}
	var table []V
	for number := uint64(0); len(list) > 0; {
		delta, n := binary.Uvarint(list)
		list = list[n:]
		number += delta
		for i, rest := 0, number; i < width; i++ {
			table = append(table, values[rest%uint64(len(values))])
			rest /= uint64(len(values))
		}
	}
	return table
}

// signs8 makes eight signs of seven bits: a bit means minus, and the eighth makes their number
// even.
func signs8(code uint32) byte {
	code &= 127
	return byte(code | uint32(bits.OnesCount32(code)&1)<<7)
}

// signed is d times the values, less than none where signs has a bit.
func signed(dst []float32, d float32, values []uint8, signs byte) {
	for j, v := range values {
		x := math.Float32bits(d * float32(v))
		dst[j] = math.Float32frombits(x ^ uint32(signs>>j)<<31) // without a jump that nothing foretells
	}
}
