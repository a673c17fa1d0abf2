package projection_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// lanesDevice is a device that can run kernels whose invocations pass numbers on inside
// subgroups, and every size of these that it has.
func lanesDevice(t *testing.T) (*vk.Device, []int) {
	dev := testkit.Device(t)
	if missing := dev.Caps().Missing(projection.LanesRequired()); missing != nil {
		t.Skipf("%s has no %v", dev.Adapter().Name, missing)
	}
	var sizes []int
	for n := int(dev.Caps().MinSubgroupSize); n <= int(dev.Caps().MaxSubgroupSize); n *= 2 {
		sizes = append(sizes, n)
	}
	return dev, sizes
}

// Whether numbers are passed on inside subgroups or through shared memory does not
// change a bit.
func TestQInsertLanes(t *testing.T) {
	dev, sizes := lanesDevice(t)
	c := newQInsertCase(rand.New(rand.NewPCG(13, 14)), 7, 5)
	a := c.args(t, dev)
	cfg := projection.QInsertConfig{Page: 2, Variant: opkit.Base, Subgroup: -1}
	record := func(cfg projection.QInsertConfig, a projection.QInsertArgs) {
		do(t, dev, func(rec *vk.Recorder) error {
			return must[*projection.QInsert](t)(projection.NewQInsert(dev, cfg)).Record(rec, a)
		})
	}
	record(cfg, a)
	q, pool := download[uint16](t, a.Q), download[byte](t, a.Cache.Pool)
	for _, size := range sizes {
		for _, v := range opkit.Builds("proj_q_insert") {
			if dev.Caps().Missing(v.Requires) != nil {
				continue
			}
			b := c.args(t, dev)
			cfg.Variant, cfg.Subgroup = v.Name, size
			record(cfg, b)
			if !slices.Equal(download[uint16](t, b.Q), q) || !bytes.Equal(download[byte](t, b.Cache.Pool), pool) {
				t.Errorf("%s, subgroups of %d: other bits", v.Name, size)
			}
		}
	}
}
