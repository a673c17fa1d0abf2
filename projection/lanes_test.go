package projection_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
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
	cfg := projection.QInsertConfig{Page: 2, Variant: projection.VariantBase, Subgroup: -1}
	record := func(cfg projection.QInsertConfig, a projection.QInsertArgs) {
		do(t, dev, func(rec *vk.Recorder) error {
			return must[*projection.QInsert](t)(projection.NewQInsert(dev, cfg)).Record(rec, a)
		})
	}
	record(cfg, a)
	q, pool := download[uint16](t, a.Q), download[byte](t, a.Cache.Pool)
	for _, size := range sizes {
		for _, v := range projection.QInsertVariants {
			b := c.args(t, dev)
			cfg.Variant, cfg.Subgroup = v.Name, size
			record(cfg, b)
			if !slices.Equal(download[uint16](t, b.Q), q) || !bytes.Equal(download[byte](t, b.Cache.Pool), pool) {
				t.Errorf("%s, subgroups of %d: other bits", v.Name, size)
			}
		}
	}
}

func TestInverseRopeQuantLanes(t *testing.T) {
	dev, sizes := lanesDevice(t)
	const tokens, groups, heads = 5, 3, 3
	rng := rand.New(rand.NewPCG(15, 16))
	o, rope := normal(rng, tokens*groups*heads*projection.D), turns(rng, 9)
	positions := []int32{0, 3, 8, 100, -1}
	padded := projection.PaddedTokens(tokens)
	record := func(layout projection.ScaleLayout, variant string, lanes int) (codes, scales []byte) {
		cfg := projection.InverseRopeQuantConfig{Groups: groups, Heads: heads, Scales: layout, Variant: variant, Subgroup: lanes}
		dt, per := tensor.F32, projection.HeadBlocks
		if layout == projection.ScalePacked {
			dt, per = tensor.I32, 1
		}
		a := projection.InverseRopeQuantArgs{O: upload(t, dev, tensor.BF16, o, tokens, groups*heads, projection.D),
			Positions: upload(t, dev, tensor.I32, positions, tokens), Table: upload(t, dev, tensor.F32, rope, 9, projection.RopeDim),
			Codes:  upload(t, dev, tensor.U8, make([]byte, tokens*groups*heads*projection.D), groups, tokens, heads*projection.D),
			Scales: upload(t, dev, dt, make([]uint32, groups*heads*per*padded), groups, heads*per, padded)}
		do(t, dev, func(rec *vk.Recorder) error {
			return must[*projection.InverseRopeQuant](t)(projection.NewInverseRopeQuant(dev, cfg)).Record(rec, a)
		})
		bits := make([]byte, a.Scales.Bytes())
		if err := a.Scales.Download(t.Context(), bits); err != nil {
			t.Fatal(err)
		}
		return download[byte](t, a.Codes), bits
	}
	for _, layout := range []projection.ScaleLayout{projection.ScaleF32, projection.ScalePacked} {
		codes, scales := record(layout, projection.VariantBase, -1)
		for _, size := range sizes {
			for _, v := range projection.InverseRopeQuantVariants {
				c, s := record(layout, v.Name, size)
				if !bytes.Equal(c, codes) || !bytes.Equal(s, scales) {
					t.Errorf("%v, %s, subgroups of %d: other bits", layout, v.Name, size)
				}
			}
		}
	}
}
