package indexer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestVisibleRef(t *testing.T) {
	lens := make([]int32, 9)
	for ratio, want := range map[int][]int32{4: {0, 0, 1, 1, 2, 256, 0, 1000, 0}, 1: {1, 3, 4, 7, 8, 1000, 0, 1000, 0}} {
		indexer.VisibleRef([]int32{0, 2, 3, 6, 7, 1023, -1, math.MaxInt32, 7}, []byte{1, 1, 1, 1, 1, 2, 1, 1, 0}, ratio, 1000, lens)
		assert.Equal(t, want, lens, "ratio %d", ratio)
	}
}

func TestVisible(t *testing.T) { testkit.TestOp(t, "visible_entries") }

func TestVisibleArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, indexer.NewVisible, map[string]indexer.VisibleConfig{
		"no ratio": {}, "negative": {Ratio: -1}, "large": {Ratio: cache.MaxRatio + 1}})
	op := must[*indexer.Visible](t)(indexer.NewVisible(dev, indexer.VisibleConfig{Ratio: 4}))
	a := indexer.VisibleArgs{Positions: testkit.Zeros(t, dev, tensor.I32, 2), Lens: testkit.Zeros(t, dev, tensor.I32, 2), Limit: -1}
	refuses(t, dev, "Limit", func(rec *vk.Recorder) error { return op.Record(rec, a) })
}
