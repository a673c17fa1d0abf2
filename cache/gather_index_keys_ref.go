package cache

import "fmt"

// GatherIndexKeysRef is the definition of GatherIndexKeys on host memory: codes
// [N, row] and scales [N, 4], pool the bytes of pages of layout l, table [R, width],
// starts [R+1] ascending. Its error is a *vk.ArgumentError; then nothing was written.
func GatherIndexKeysRef(codes, scales, pool []byte, l IndexKeyLayout, table []int32, width int, starts []int32) error {
	const op = "gather index keys reference"
	if err := l.check(op); err != nil {
		return err
	}
	row, requests := l.Format.RowBytes(), len(starts)-1
	n := len(codes) / row
	switch {
	case len(codes) != n*row || len(scales) != n*IndexScaleBytes:
		return pkg.Wrong(op, "codes, scales", fmt.Sprintf("%d and %d bytes", len(codes), len(scales)),
			"rows of %d and %d", row, IndexScaleBytes)
	case requests < 0 || width < 0 || len(table) != requests*width:
		return pkg.Wrong(op, "table, starts", fmt.Sprintf("%d entries, %d starts", len(table), len(starts)), "[R, %d] and R+1", width)
	}
	pages := len(pool) / l.Stride
	for r := range requests {
		for i := 0; i < int(starts[r+1]-starts[r]); i++ {
			at := int(starts[r]) + i
			if at < 0 || at >= n {
				continue
			}
			k, s := codes[at*row:][:row], scales[at*IndexScaleBytes:][:IndexScaleBytes]
			page := pages
			if i/l.Page < width {
				page = max(int(table[r*width+i/l.Page]), 0)
			}
			if page >= pages {
				clear(k)
				clear(s)
				continue
			}
			slot := int64(page)*int64(l.Page) + int64(i%l.Page)
			copy(k, pool[l.RowOffset(slot):])
			copy(s, pool[l.ScaleOffset(slot):])
		}
	}
	return nil
}
