package cache

import (
	"fmt"
)

// InsertRef is the definition of Insert on host memory: pool are the bytes of
// pages of layout l, k the rows [N, 512] bf16, slots [T] with T <= N. Its error is
// a *vk.ArgumentError; then nothing was written.
func InsertRef(pool []byte, l Layout, k []uint16, slots []int64) error {
	const op = "insert reference"
	if err := l.check(op); err != nil {
		return err
	}
	if len(k)%D != 0 || len(slots) > len(k)/D {
		return pkg.Wrong(op, "k", fmt.Sprintf("%d values", len(k)), "rows of %d, at least %d of them", D, len(slots))
	}
	pages := len(pool) / l.Stride
	for i, slot := range slots {
		if slot < 0 || slot >= int64(pages)*int64(l.Page) {
			continue
		}
		l.Record.EncodeRef(pool[l.RowOffset(slot):][:l.Record.RowBytes()],
			pool[l.ScaleOffset(slot):][:l.Record.ScaleBytes()], k[i*D:(i+1)*D])
	}
	return nil
}

func abs(x float32) float32 {
	if x < 0 {
		return -x
	}
	return x
}
