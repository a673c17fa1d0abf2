package projection_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestInverseRope(t *testing.T) { testkit.TestOp(t, "inverse_rope") }

func inverseArgs(t *testing.T, dev *vk.Device, tokens, heads int) projection.InverseRopeArgs {
	rng := rand.New(rand.NewPCG(7, uint64(tokens)))
	return projection.InverseRopeArgs{
		O:         testkit.Upload(t, dev, tensor.BF16, normal(rng, tokens*heads*cache.D), tokens, heads, cache.D),
		Positions: testkit.Upload(t, dev, tensor.I32, make([]int32, tokens), tokens),
		Table:     testkit.Upload(t, dev, tensor.F32, turns(rng, 2), 2, cache.RopeDim),
	}
}

func TestInverseRopeArguments(t *testing.T) {
	dev := testkit.Device(t)
	op := must[*projection.InverseRope](t)(projection.NewInverseRope(dev, projection.InverseRopeConfig{}))
	good := inverseArgs(t, dev, 3, 2)
	type ropeArgs = projection.InverseRopeArgs
	testkit.Changes[ropeArgs]{
		"O":     {func(a *ropeArgs) { a.O.Shape = []int{3, 1024} }, func(a *ropeArgs) { a.O.Shape = []int{3, 0, 512} }},
		"Table": {func(a *ropeArgs) { a.Table.Shape = []int{0, 64} }},
	}.Refuse(t, dev, op.Record, good)
	none := good
	none.O.Shape, none.Positions.Shape = []int{0, 2, 512}, []int{0}
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, none) })
}

// A pair below the normal numbers of binary32 whose product lies so that rounding it to
// 24 bits first, and then to what binary32 has there, would give another bf16.
func TestInverseRopeSubnormal(t *testing.T) {
	dev := testkit.Device(t)
	o, table := make([]uint16, cache.D), make([]float32, cache.RopeDim)
	o[484], o[485] = 0x8055, 0x0018
	table[18], table[50] = math.Float32frombits(0xBF6A9874), math.Float32frombits(0x3ECCF2BF)
	a := inverseArgs(t, dev, 1, 1)
	testkit.Put(t, a.O, o)
	testkit.Put(t, a.Table.Rows(0, 1), table)
	op := must[*projection.InverseRope](t)(projection.NewInverseRope(dev, projection.InverseRopeConfig{}))
	do(t, dev, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	require.NoError(t, projection.InverseRopeRef(o, 1, []int32{0}, table))
	if got := testkit.Download[uint16](t, a.O); o[484] != 0x0058 || !slices.Equal(got, o) {
		t.Errorf("reference 0x%04x, device 0x%04x, want 0x0058", o[484], got[484])
	}
}
