package cache_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Touching a pool changes nothing in it, whatever its size and its words are.
func TestTouch(t *testing.T) {
	dev := testkit.Device(t)
	sink := testkit.Upload(t, dev, tensor.U32, []uint32{1, 2}, 2)
	x := testkit.Must[*cache.Touch](t)(cache.NewTouch(dev))
	for _, bytes := range []int{8, 2 << 20, 2<<20 + 8, 67 << 20} {
		data := make([]byte, bytes)
		for i := range data {
			data[i] = []byte{0xB9, 0x79, 0x37, 0x9E}[i%4] // the word that goes into the sink
		}
		pool := testkit.Upload(t, dev, tensor.U8, data, bytes/8, 8)
		testkit.Do(t, dev, func(rec *vk.Recorder) error { return x.Record(rec, pool, sink) })
		assert.True(t, slices.Equal(testkit.Download[byte](t, pool), data), "%d bytes: the pool has changed", bytes)
	}
	assert.Equal(t, []uint32{0x9E3779B9, 2}, testkit.Download[uint32](t, sink), "sink")
	testkit.Refuses(t, dev, "pool", func(rec *vk.Recorder) error { return x.Record(rec, sink, sink) })
	testkit.Refuses(t, dev, "sink", func(rec *vk.Recorder) error {
		pool := testkit.Upload(t, dev, tensor.U8, make([]byte, 8), 1, 8)
		return x.Record(rec, pool, pool)
	})
}
