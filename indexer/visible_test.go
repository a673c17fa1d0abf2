package indexer_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestVisibleRef(t *testing.T) {
	lens := make([]int32, 9)
	indexer.VisibleRef([]int32{0, 2, 3, 6, 7, 1023, -1, math.MaxInt32, 7}, []byte{1, 1, 1, 1, 1, 2, 1, 1, 0}, 1000, lens)
	if want := []int32{0, 0, 1, 1, 2, 256, 0, 1000, 0}; !slices.Equal(lens, want) {
		t.Errorf("got %v, want %v", lens, want)
	}
}

func TestVisible(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*indexer.Visible](t)(indexer.NewVisible(dev, indexer.VisibleConfig{}))
	for i, n := range []int{0, 1, 2, 17, 61, 69, 321} {
		rng := rand.New(rand.NewPCG(testkit.Seed(t), uint64(i)))
		positions, valid := make([]int32, n), make([]byte, n+i%3)
		for j := range positions {
			positions[j] = []int32{rng.Int32N(1 << 20), int32(j), -1 - rng.Int32N(9), math.MaxInt32, math.MinInt32}[rng.IntN(5)]
			valid[j] = []byte{0, 1, 0xFF}[rng.IntN(3)]
		}
		for _, limit := range []int{0, 1, 1 << 17} {
			for _, masked := range []bool{false, true} {
				t.Run(fmt.Sprintf("t%d_limit%d_masked_%v", n, limit, masked), func(t *testing.T) {
					a := indexer.VisibleArgs{Positions: upload(t, dev, tensor.I32, positions, n),
						Lens: upload(t, dev, tensor.I32, slices.Repeat([]int32{-77}, n), n), Limit: limit}
					want := make([]int32, n)
					if masked {
						a.IsValid = upload(t, dev, tensor.U8, valid, len(valid))
						indexer.VisibleRef(positions, valid, limit, want)
					} else {
						indexer.VisibleRef(positions, nil, limit, want)
					}
					do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
					if got := download[int32](t, a.Lens); !slices.Equal(got, want) {
						t.Errorf("positions %v, valid %v: got %v, want %v", positions, valid, got, want)
					}
				})
			}
		}
	}
}

func TestVisibleArguments(t *testing.T) {
	dev := testkit.Device(t)
	if _, err := indexer.NewVisible(dev, indexer.VisibleConfig{Variant: "fast"}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("variant: %v, want an argument error", err)
	}
	op := must[*indexer.Visible](t)(indexer.NewVisible(dev, indexer.VisibleConfig{Variant: "base"}))
	good := indexer.VisibleArgs{Positions: upload(t, dev, tensor.I32, []int32{3, 7}, 2),
		IsValid: upload(t, dev, tensor.U8, []byte{1, 1}, 2), Lens: upload(t, dev, tensor.I32, []int32{-1, -1}, 2)}
	for arg, spoil := range map[string]func(*indexer.VisibleArgs){
		"Positions": func(a *indexer.VisibleArgs) { a.Positions = tensor.Tensor{} },
		"IsValid":   func(a *indexer.VisibleArgs) { a.IsValid.Shape = []int{1} },
		"Lens":      func(a *indexer.VisibleArgs) { a.Lens.DType = tensor.I64 },
		"Limit":     func(a *indexer.VisibleArgs) { a.Limit = -1 },
	} {
		a := good
		spoil(&a)
		refuses(t, dev, arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
}
