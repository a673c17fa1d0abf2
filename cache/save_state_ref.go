package cache

import (
	"encoding/binary"
	"fmt"
	"math"
)

// SaveStateRef is the definition of SaveState on host memory: pool are the bytes of
// pages of layout l, kvScore the rows [N, 2*C], ape [Ratio, C], positions and slots
// [T] with T <= N. Its error is a *vk.ArgumentError; then nothing was written.
func SaveStateRef(pool []byte, l StateLayout, c Compression, kvScore, ape []float32, positions []int32, slots []int64) error {
	const op = "save state reference"
	if err := checkStateRef(op, l, c); err != nil {
		return err
	}
	channels := l.Channels
	if len(slots) > len(kvScore)/(2*channels) || len(slots) > len(positions) || len(ape) != c.Ratio*channels {
		return pkg.Wrong(op, "kvScore, positions, ape", fmt.Sprintf("%d, %d and %d values", len(kvScore), len(positions), len(ape)),
			"rows of %d and positions for %d tokens, [%d, %d]", 2*channels, len(slots), c.Ratio, channels)
	}
	pages := len(pool) / l.Stride
	for i, slot := range slots {
		p := int(positions[i])
		if slot < 0 || slot >= int64(pages)*int64(l.Page) || p < 0 {
			continue
		}
		state := pool[l.slotOffset(slot):][:l.SlotBytes()]
		for n, x := range kvScore[i*2*channels : (i+1)*2*channels] {
			if n >= channels {
				x += ape[p%c.Ratio*channels+n-channels]
			}
			binary.LittleEndian.PutUint32(state[4*n:], math.Float32bits(x))
		}
	}
	return nil
}

func checkStateRef(op string, l StateLayout, c Compression) error {
	if err := c.check(op); err != nil {
		return err
	}
	if err := l.check(op); err != nil {
		return err
	}
	if l.Channels != c.Channels() {
		return pkg.Wrong(op, "Channels", l.Channels, "%v", c.Channels())
	}
	return nil
}
