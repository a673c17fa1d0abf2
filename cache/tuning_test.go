package cache

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Each number of a profile's Compress changes what some compression is built for.
func TestTuningCompress(t *testing.T) {
	caps := &vk.Caps{MaxWorkgroupInvocations: 1024, SharedMemory: 48 << 10}
	plan := func(tune *tuning.Compress) string {
		var s strings.Builder
		for _, c := range []Compression{C4Main, C4Index, C128Main, {Dim: D, Ratio: 2}, {Dim: IndexDim, Ratio: 24}} {
			for _, invocations := range []int{0, 128, 512, 1024} {
				for _, save := range []bool{false, true} {
					cfg := CompressConfig{Compression: c, StatePage: 4, Page: 64, Save: save, Invocations: invocations}
					if c.keys() {
						cfg.Keys = IndexKeyFP8
					}
					if got, err := cfg.complete("", caps, tune); err == nil {
						fmt.Fprintln(&s, got.constants(tune), got.groups())
					}
				}
			}
		}
		return s.String()
	}
	compress := func(name string) tuning.Compress {
		p, err := tuning.Named(name)
		require.NoError(t, err)
		return p.Compress
	}
	vary.Distinct(tuning.Names(), func(name string) any { return compress(name) }, func(name string) {
		assert.Empty(t, vary.Idle(compress(name), plan), "profile %s: numbers that decide nothing", name)
	})
}

// What today's compressors are built for, by device.
func TestCompressInvocations(t *testing.T) {
	p, err := tuning.Named("hopper")
	require.NoError(t, err)
	for _, c := range []struct {
		c           Compression
		save        bool
		most        uint32 // invocations of a workgroup
		shared      uint32
		invocations int
	}{
		{C4Main, false, 1024, 48 << 10, 128}, {C4Main, true, 1024, 48 << 10, 512}, {C4Main, true, 128, 16 << 10, 128},
		{C4Index, false, 1024, 48 << 10, 32}, {C4Index, true, 1024, 48 << 10, 128},
		{C128Main, false, 1024, 48 << 10, 512}, {C128Main, true, 1024, 16 << 10, 512}, {C128Main, true, 384, 48 << 10, 256}, {C128Main, true, 128, 16 << 10, 128},
		{Compression{Dim: D, Ratio: 1}, false, 1024, 48 << 10, 128}, {Compression{Dim: D, Ratio: 2}, true, 1024, 48 << 10, 512},
		{Compression{Dim: D, Ratio: 24}, false, 1024, 48 << 10, 256}, {Compression{Dim: IndexDim, Ratio: 128}, false, 1024, 16 << 10, 256},
		{Compression{Dim: D, Ratio: MaxRatio, Overlap: true}, false, 1024, 16 << 10, 256},
	} {
		cfg := CompressConfig{Compression: c.c, StatePage: 8, Page: 2, Save: c.save}
		if c.c.keys() {
			cfg.Keys = IndexKeyFP8
		}
		got, err := cfg.complete("compress", &vk.Caps{MaxWorkgroupInvocations: c.most, SharedMemory: c.shared}, &p.Compress)
		if assert.NoError(t, err) {
			assert.Equal(t, c.invocations, got.Invocations, "%+v", c)
		}
	}
}
