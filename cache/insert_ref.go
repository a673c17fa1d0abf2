package cache

import (
	"encoding/binary"
	"fmt"

	"github.com/vkmla/vkmla/internal/numfmt"
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
		x := k[i*D : (i+1)*D]
		row := pool[l.RowOffset(slot):][:RowBytes]
		scales := pool[l.ScaleOffset(slot):][:ScaleBytes]
		for b := range Blocks {
			amax := float32(0)
			for d := b * BlockDim; d < (b+1)*BlockDim; d++ {
				amax = max(amax, abs(numfmt.BF16Decode(x[d])))
			}
			sb := numfmt.UE8M0Encode(amax, numfmt.KCacheEps, numfmt.E4M3InvMax)
			for d := b * BlockDim; d < (b+1)*BlockDim; d++ {
				row[d] = numfmt.E4M3Encode(numfmt.BF16Decode(x[d]) * numfmt.UE8M0Inverse(sb))
			}
			scales[b] = sb
		}
		scales[Blocks] = 0
		for d := NopeDim; d < D; d++ {
			binary.LittleEndian.PutUint16(row[NopeDim+2*(d-NopeDim):], x[d])
		}
	}
	return nil
}

func abs(x float32) float32 {
	if x < 0 {
		return -x
	}
	return x
}
