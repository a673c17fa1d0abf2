package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestGlobalTopK(t *testing.T) { testkit.TestOp(t, "compute_global_topk_indices_and_lens") }

func TestTable(t *testing.T) {
	table := attention.Table{Blocks: []int32{3, 9, 4, -1, 2, 0}, R: 2, W: 3, Page: 64}
	for _, c := range []struct {
		r    int32
		at   int
		want int32
	}{
		{0, 3, 195}, {0, 63, 255}, {0, 64, 576}, {0, 130, 258}, {0, 192, -1}, {0, -1, -1},
		{1, 0, -1}, {1, 64, 128}, {1, 191, 63}, {2, 0, -1}, {-1, 0, -1},
	} {
		got := table.Slot(c.r, c.at)
		assert.Equal(t, c.want, got, "Slot(%d, %d) = %d", c.r, c.at, got)
	}
}

// An index list operation refuses what does not fit, before recording anything.
func TestIndexArguments(t *testing.T) {
	dev := testkit.Device(t)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	i32 := func(shape ...int) tensor.Tensor { return r.Out(tensor.I32, shape...) }
	combine := must[*attention.CombineIndices](t)(attention.NewCombineIndices(dev))
	m := attention.CombineIndicesArgs{TopK: i32(3, 20), QueryStart: i32(3), SeqLens: i32(2), GatherLens: i32(2), Indices: i32(3, 256), Lens: i32(3),
		K: 20, Window: 128, Ratio: 4, M: 300, N: 40}
	for arg, change := range map[string]func(*attention.CombineIndicesArgs){
		"K":      func(a *attention.CombineIndicesArgs) { a.K = -1 },
		"Window": func(a *attention.CombineIndicesArgs) { a.Window = 0 },
		"Ratio":  func(a *attention.CombineIndicesArgs) { a.Ratio = 0 },
		"M, N":   func(a *attention.CombineIndicesArgs) { a.M = 1 << 30 },
	} {
		a := m
		change(&a)
		refuses(t, dev, arg, func(rec *vk.Recorder) error { return combine.Record(rec, a) })
	}
	require.NoError(t, r.Err())

	for name, err := range map[string]error{
		"top-k page":  second(attention.NewGlobalTopK(dev, attention.GlobalTopKConfig{})),
		"window page": second(attention.NewWindowIndices(dev, attention.WindowIndicesConfig{Page: -1})),
		"c128 page":   second(attention.NewC128Indices(dev, attention.C128IndicesConfig{})),
		"c128 ratio":  second(attention.NewC128Indices(dev, attention.C128IndicesConfig{Page: 2, Ratio: -1})),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}

func second[T any](_ T, err error) error { return err }
