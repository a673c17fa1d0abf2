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
	for _, cfg := range []indexer.CandidateEntriesConfig{{Block: 8, SlotPage: -1}, {Block: 7}} {
		_, err := indexer.NewCandidateEntries(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	op := must[*indexer.CandidateEntries](t)(indexer.NewCandidateEntries(dev, indexer.CandidateEntriesConfig{Block: 8, SlotPage: 16}))
	ints := func(shape ...int) tensor.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return upload(t, dev, tensor.I32, make([]int32, n), shape...)
	}
	good := indexer.CandidateEntriesArgs{Picks: ints(2, 5), Blocks: ints(2, 3), TokenToReq: ints(2), Lens: ints(2),
		Slots: indexer.PickSlots{BlockTable: ints(2, 1), Slots: ints(2, 5), Lens: ints(2)}}
	for arg, spoil := range map[string]func(*indexer.CandidateEntriesArgs){
		"Blocks width": func(a *indexer.CandidateEntriesArgs) { a.Blocks = ints(2, 0) },
	} {
		a := good
		spoil(&a)
		refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
}
