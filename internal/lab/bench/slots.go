package bench

import (
	"errors"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// slotRows brings slots of a cache to the host, packed with 584 bytes each; nothing of a
// negative one.
func (r *opRig) slotRows(k cache.KVCache, slots []int64) ([]byte, error) {
	data := make([]byte, len(slots)*cache.SlotBytes)
	if len(data) == 0 {
		return data, nil
	}
	t, err := tensor.New(r.dev, "bench check", tensor.U8, len(data))
	if err != nil {
		return nil, err
	}
	defer t.Close()
	from, to := k.Pool.View(), t.View()
	err = run(r.ctx, r.dev, func(rec *vk.Recorder) error {
		for i, s := range slots {
			if s < 0 {
				continue
			}
			at := to.Offset + uint64(i)*cache.SlotBytes
			if err := errors.Join(
				rec.Copy(to.Buffer.View(at, cache.RowBytes), from.Buffer.View(from.Offset+uint64(k.Layout.RowOffset(s)), cache.RowBytes)),
				rec.Copy(to.Buffer.View(at+cache.RowBytes, cache.ScaleBytes), from.Buffer.View(from.Offset+uint64(k.Layout.ScaleOffset(s)), cache.ScaleBytes)),
			); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = t.Download(r.ctx, data)
	}
	return data, err
}
