package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestTouch(t *testing.T) { testkit.TestOp(t, "touch") }

func TestTouchArguments(t *testing.T) {
	dev := testkit.Device(t)
	sink := testkit.Upload(t, dev, tensor.U32, []uint32{1, 2}, 2)
	x := testkit.Must[*cache.Touch](t)(cache.NewTouch(dev))
	testkit.Refuses(t, dev, "pool", func(rec *vk.Recorder) error { return x.Record(rec, sink, sink) })
	testkit.Refuses(t, dev, "sink", func(rec *vk.Recorder) error {
		pool := testkit.Upload(t, dev, tensor.U8, make([]byte, 8), 1, 8)
		return x.Record(rec, pool, pool)
	})
}
