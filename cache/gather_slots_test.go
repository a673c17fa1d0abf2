package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestGatherSlots(t *testing.T) { testkit.TestOp(t, "dequant_gather_slots") }

func TestGatherSlotsArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.PagesConfig{
		"page 0":  {},
		"variant": {Page: 64, Variant: "fast"},
		"size":    {Page: 64, Variant: "base", MaxBytes: dev.Caps().MaxStorageBufferRange + 1},
	} {
		_, err := cache.NewGatherSlots(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}
