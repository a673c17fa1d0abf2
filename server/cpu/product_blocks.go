package cpu

import (
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/server/cpu/native"
	"github.com/vkmla/vkmla/server/weights"
)

// blocksProduct is product for blocks of GGUF that C has.
func blocksProduct(m *weights.Matrix, x *rows, take []int32, first, end int, y []float32, stride int) {
	_ = m.Data[:m.N*m.Stored.Size(m.K)]
	native.Blocks(instructions, int(m.Stored.Type), m.K, &m.Data[0], unsafe.SliceData(gridOf(m)), unsafe.Pointer(&x.whole[0]), x.wholes(),
		take, first, end, &y[0], stride)
	if m.Factor == 1 {
		return
	}
	for i := range take {
		for r := range y[i*stride:][:end-first] {
			y[i*stride+r] *= m.Factor
		}
	}
}

// decodedProduct is product for the other formats of GGUF: a row at a time becomes f32.
func decodedProduct(m *weights.Matrix, x *rows, take []int32, first, end int, y []float32, stride int) {
	row := make([]float32, m.K)
	for r := first; r < end; r++ {
		m.Row(row, r)
		native.Rows(instructions, int(weights.F32), m.K, (*byte)(unsafe.Pointer(&row[0])), nil, nil, 1,
			&x.plain[0], x.stride, take, 0, 1, &y[r-first], stride)
	}
}

// grids describes the formats whose codes stand for several values each, by name. With the bytes of
// one in a block, its first values are the row of the grid that its first code names; of IQ1_S and
// IQ1_M eight times the row, and one more. A row's lowest eight bits are byte lower, the others
// begin byte upper.
var grids = map[string]struct {
	rows, width, lower, upper int
	one                       map[int]byte // by their places: the f16 that makes the scale 1
}{
	"IQ1_S":   {rows: 2048, width: 8, lower: 2, upper: 34, one: map[int]byte{1: 0x48}},
	"IQ1_M":   {rows: 2048, width: 8, lower: 0, upper: 32, one: map[int]byte{53: 0x80, 55: 0x40}},
	"IQ2_XXS": {rows: 256, width: 8, lower: 2, upper: 3, one: map[int]byte{1: 0x48}},
	"IQ2_XS":  {rows: 512, width: 8, lower: 2, upper: 3, one: map[int]byte{1: 0x48}},
	"IQ2_S":   {rows: 1024, width: 8, lower: 2, upper: 66, one: map[int]byte{1: 0x48}},
	"IQ3_XXS": {rows: 256, width: 4, lower: 2, upper: 3, one: map[int]byte{1: 0x44}},
	"IQ3_S":   {rows: 512, width: 4, lower: 2, upper: 66, one: map[int]byte{1: 0x3C}},
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
	for at, b := range of.one {
		block[at] = b
	}
	for row := range of.rows {
		block[of.lower], block[of.upper] = byte(row), byte(row>>8)
		f.Decode(values, block)
		for _, v := range values[:of.width] {
			table = append(table, byte(int8(v)))
		}
	}
	gridsRead.Store(f.Name, table)
	return table
}
