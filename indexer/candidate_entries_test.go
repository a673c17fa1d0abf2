package indexer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestCandidateEntries(t *testing.T) { testkit.TestOp(t, "candidate_entries") }

func TestCandidateEntriesRef(t *testing.T) {
	got := indexer.CandidateEntriesRef([]int32{0, 7, 8, 17, -1, 3, 9, 24, 23, -1}, 5, []int32{2, 5, 1 << 27, -1, 0, 4}, 3, 8)
	assert.Equal(t, []int32{16, 23, 40, 1<<30 + 1, -1, -1, 1, -1, 39, -1}, got)
	got = indexer.CandidateEntriesRef([]int32{0, 2, -1, 3, 5, 6}, 3, []int32{math.MaxInt32, 1<<30 - 1, 1 << 30, 7, 0, 4}, 3, 2)
	assert.Equal(t, []int32{-1, math.MaxInt32 - 1, -1, 1, 9, -1}, got)
}

func TestCandidateEntriesArguments(t *testing.T) {
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, indexer.NewCandidateEntries, map[string]indexer.CandidateEntriesConfig{
		"page": {Block: 8, SlotPage: -1}, "block": {Block: 7}})
	op := must[*indexer.CandidateEntries](t)(indexer.NewCandidateEntries(dev, indexer.CandidateEntriesConfig{Block: 8, SlotPage: 16}))
	i32 := func(shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, tensor.I32, shape...) }
	a := indexer.CandidateEntriesArgs{Picks: i32(2, 5), Blocks: i32(2, 0), TokenToReq: i32(2), Lens: i32(2),
		Slots: indexer.PickSlots{BlockTable: i32(2, 1), Slots: i32(2, 5), Lens: i32(2)}}
	refuses(t, dev, "Blocks width", func(rec *vk.Recorder) error { return op.Record(rec, a) })
}
