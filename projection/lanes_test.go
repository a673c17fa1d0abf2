package projection_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// inLanes runs an operation whose invocations pass numbers on through shared memory and, with each
// size that the device has, inside subgroups, in each build that it has: not a bit changes.
func inLanes(t *testing.T, stem string, run func(dev *vk.Device, variant string, subgroup int) []byte) {
	t.Helper()
	dev := testkit.Device(t)
	if missing := dev.Caps().Missing(projection.LanesRequired()); missing != nil {
		t.Skipf("%s has no %v", dev.Adapter().Name, missing)
	}
	sizes := []int{-1}
	for n := int(dev.Caps().MinSubgroupSize); n <= int(dev.Caps().MaxSubgroupSize); n *= 2 {
		sizes = append(sizes, n)
	}
	var want []byte
	for _, size := range sizes {
		for _, v := range opkit.Builds(stem) {
			if dev.Caps().Missing(v.Requires) != nil {
				continue
			}
			got := run(dev, v.Name, size)
			if want == nil {
				want = got
			}
			assert.True(t, bytes.Equal(want, got), "%s, subgroups of %d: other bits", v.Name, size)
		}
	}
}

// bytesOf reads tensors as they are.
func bytesOf(t *testing.T, list ...tensor.Tensor) (all []byte) {
	t.Helper()
	for _, x := range list {
		b := make([]byte, x.Bytes())
		require.NoError(t, x.Download(t.Context(), b))
		all = append(all, b...)
	}
	return all
}

func TestQInsertLanes(t *testing.T) {
	c := newQInsertCase(rand.New(rand.NewPCG(13, 14)), 7, 5)
	inLanes(t, "proj_q_insert", func(dev *vk.Device, variant string, subgroup int) []byte {
		return c.run(t, dev, projection.QInsertConfig{Page: 2, Variant: variant, Subgroup: subgroup}, nil)
	})
}
