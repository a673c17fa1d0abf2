package cache

import (
	"fmt"
)

// GatherRef is the definition of Gather on host memory: out [R, rows, 512] bf16,
// pool the bytes of pages of layout l, seqLens [R], gatherLens [R] or nil, table
// [R, width]. Its error is a *vk.ArgumentError; then nothing was written.
func GatherRef(out []uint16, rows int, pool []byte, l Layout, seqLens, gatherLens, table []int32, width, offset int) error {
	const op = "gather reference"
	if err := l.check(op); err != nil {
		return err
	}
	requests := len(seqLens)
	switch {
	case rows < 0 || offset < 0 || offset > rows || len(out) != requests*rows*D:
		return pkg.Wrong(op, "out", fmt.Sprintf("%d values, offset %d", len(out), offset), "[%d, %d, %d], offset within", requests, rows, D)
	case gatherLens != nil && len(gatherLens) != requests:
		return pkg.Wrong(op, "gatherLens", len(gatherLens), "nil or %d", requests)
	case width < 0 || len(table) != requests*width:
		return pkg.Wrong(op, "table", fmt.Sprintf("%d entries", len(table)), "[%d, %d]", requests, width)
	}
	pages := len(pool) / l.Stride
	for r := range requests {
		g := int(seqLens[r])
		if gatherLens != nil {
			g = int(gatherLens[r])
		}
		start := int(seqLens[r]) - g
		for i := 0; i < g && offset+i < rows; i++ {
			row := out[(r*rows+offset+i)*D:][:D]
			p := start + i
			if p < 0 || p/l.Page >= width {
				clear(row)
				continue
			}
			page := max(int(table[r*width+p/l.Page]), 0)
			if page >= pages {
				clear(row)
				continue
			}
			dequantise(row, pool, l, int64(page)*int64(l.Page)+int64(p%l.Page))
		}
	}
	return nil
}

// dequantise writes one slot of a pool as 512 bf16 values.
func dequantise(row []uint16, pool []byte, l Layout, slot int64) {
	l.Record.DecodeRef(row, pool[l.RowOffset(slot):][:l.Record.RowBytes()], pool[l.ScaleOffset(slot):][:l.Record.ScaleBytes()])
}
