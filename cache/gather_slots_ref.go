package cache

import "fmt"

// GatherSlotsRef is the definition of GatherSlots on host memory: out [S, 512]
// bf16, pool the bytes of pages of layout l, indices [S]. Its error is a
// *vk.ArgumentError; then nothing was written.
func GatherSlotsRef(out []uint16, pool []byte, l Layout, indices []int32) error {
	const op = "gather slots reference"
	if err := l.check(op); err != nil {
		return err
	}
	if len(out) != len(indices)*D {
		return pkg.Wrong(op, "out", fmt.Sprintf("%d values", len(out)), "[%d, %d]", len(indices), D)
	}
	slots := int64(len(pool)/l.Stride) * int64(l.Page)
	for i, s := range indices {
		row := out[i*D : (i+1)*D]
		if s < 0 || int64(s) >= slots {
			clear(row)
			continue
		}
		dequantise(row, pool, l, int64(s))
	}
	return nil
}
