package indexer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// everything that kernels of this package ask of a device.
var features = map[string]bool{"subgroupShuffle": true, "subgroupSizeControl": true, "computeFullSubgroups": true,
	"bufferDeviceAddress": true, "shaderInt64": true}

// units are the compute units of the made-up devices.
const units = 132

// logitsPlan writes what scores are built for and how they are launched, for made-up devices.
func logitsPlan(device tuning.Device, tune *tuning.Logits) string {
	var s strings.Builder
	workgroups := device.PerUnit * units
	base := Logits{cfg: LogitsConfig{Page: 64, Format: cache.IndexKeyFP8}, variant: opkit.Base, tune: tune}
	fmt.Fprintln(&s, workgroups, base.spec().Constants)
	codes := knowncaps.Matrix["RDNA4"] // and a shape as Intel's
	codes.CoopMat = append(slices.Clone(codes.CoopMat),
		vk.CoopMatShape{M: 8, N: 16, K: 16, A: "e4m3", B: "e4m3", C: "f32", Result: "f32", Scope: "subgroup"})
	fmt.Fprintln(&s, fmt.Sprint(codesFit(&codes, &tuning.Profile{Device: device, Logits: *tune},
		&LogitsConfig{Heads: 1, Format: cache.IndexKeyFP8}, cmChoose)))
	for _, name := range slices.Sorted(maps.Keys(knowncaps.Matrix)) {
		caps := knowncaps.Matrix[name]
		for _, heads := range []int{1, 16, 32, 64, 128} {
			for _, tokens := range []int{1, 4, 4096} {
				if x, err := cmChoose(&caps, &tuning.Profile{Device: device, Logits: *tune}, "f16", heads, tokens); err == nil {
					fmt.Fprint(&s, x)
					for _, rows := range []int{1, 32, 256, 4096} {
						fmt.Fprintln(&s, fmt.Sprint(x.grid(tune, workgroups, rows, 0, 262144)))
					}
				}
			}
			for _, shape := range caps.CoopMat {
				for _, raw := range []bool{false, true} {
					x, ok := laneFit(&caps, tune, shape, LogitsConfig{Heads: heads, Page: 64, Format: cache.IndexKeyFP8, Raw: raw})
					if !ok {
						continue
					}
					fmt.Fprintln(&s, x, x.constants(true, 0))
					for _, rows := range []int{1, 8, 32, 128, 4096} {
						for _, entries := range []int{1024, 8192, 32768, 33824, 262144} {
							fmt.Fprint(&s, x.shares(tune, workgroups, rows, entries), " ")
						}
					}
					x.parts = 4
					for _, group := range []int{1, 127, 128, 129, 4096} {
						cfg := LogitsConfig{Heads: heads, Format: cache.IndexKeyFP8, Group: group, Raw: raw}
						if p, ok := promptFit(&caps, &tuning.Profile{Device: device, Logits: *tune}, cfg, x); ok {
							fmt.Fprintln(&s, group, p.constants(), fmt.Sprint(p.grid(tune, units, 512, 8192)))
						}
					}
				}
			}
		}
	}
	return s.String()
}

// topkPlan writes what selections are built for and how they are launched, for made-up devices.
func topkPlan(tune *tuning.TopK) string {
	var s strings.Builder
	wide := &vk.Caps{SharedMemory: 48 << 10, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 8, MaxSubgroupSize: 64, Features: features}
	fmt.Fprintln(&s, laneShapes(wide, tune, 512, 0))
	for _, shared := range []uint32{16 << 10, 24 << 10, 32 << 10, 48 << 10, 96 << 10} {
		for _, most := range []uint32{128, 256, 512, 1024, 2048} {
			caps := &vk.Caps{SharedMemory: shared, MaxWorkgroupInvocations: most, MinSubgroupSize: 32, MaxSubgroupSize: 32, Features: features}
			fmt.Fprintln(&s, shortShapes(caps, 0, tune.Short), shortShapes(caps, 64, tune.Short))
			for _, k := range []int{64, 512, 900, 1024, MaxK} {
				for _, shapes := range [][]tuning.TopKShape{tune.Few, tune.Many} {
					for _, threads := range []int{0, 64, 128} {
						fmt.Fprint(&s, fmt.Sprint(pickShape("", caps, k, threads, tuning.SpareShare, shapes)))
					}
				}
				lanes := laneShapes(caps, tune, k, 0)
				tiles, quads := tileShape(caps, tune, k, 0, 16)
				fmt.Fprintln(&s, lanes, tiles, quads)
				o := &TopK{cfg: TopKConfig{K: k}, workgroups: units, tune: tune}
				for _, l := range lanes {
					o.lanes = append(o.lanes, topkKernel{nil, l.capacity})
				}
				rows(&s, o, &tileTopK{tile: 16, most: 4 * quads * tiles.threads})
			}
		}
	}
	return s.String()
}

// rows writes how rows of many lengths are cut and which kernel takes them.
func rows(s *strings.Builder, o *TopK, tiles *tileTopK) {
	arrived := tensor.Of(vk.View{Buffer: new(vk.Buffer)}, tensor.I32, 1)
	for _, t := range []int{1, 2, 8, 32, 64, 128} {
		for _, n := range []int{2048, 8192, 12288, 16384, 20480, 32768, 65536, 98304, 131072, 262144} {
			k, cut, per := o.planLanes(t, n, o.tune.MaxSlices)
			fmt.Fprint(s, k != nil, cut, per, o.slices(t, n), o.lists(t, n), o.solo(n/2), tiles.suits(o, t, n, topsWidth(n), 17, arrived), " ")
		}
	}
}

// Each number of a profile's Logits and TopK changes a build or a launch.
func TestTuning(t *testing.T) {
	profile := func(name string) *tuning.Profile {
		p, err := tuning.Named(name)
		require.NoError(t, err)
		return p
	}
	vary.Distinct(tuning.Names(), func(name string) any { return [2]any{profile(name).Device, profile(name).Logits} }, func(name string) {
		p := profile(name)
		logits := func(tune *tuning.Logits) string { return logitsPlan(p.Device, tune) }
		assert.Empty(t, vary.Idle(p.Logits, logits), "profile %s: numbers of Logits that decide nothing", name)
	})
	vary.Distinct(tuning.Names(), func(name string) any { return profile(name).TopK }, func(name string) {
		assert.Empty(t, vary.Idle(profile(name).TopK, topkPlan), "profile %s: numbers of TopK that decide nothing", name)
	})
}
