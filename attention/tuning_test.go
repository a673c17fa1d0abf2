package attention

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/vary"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Each fitted number changes some tiling or some plan of some device: one that changes nothing
// has no place in a profile.
func TestTuning(t *testing.T) {
	sections := func(name string) any { return [2]any{profile(t, name).Attention, profile(t, name).Device} }
	vary.Distinct(tuning.Names(), sections, func(name string) {
		p := *profile(t, name)
		var ofAttention []func(*tuning.Attention) string
		var ofDevice []func(*tuning.Device) string
		for _, d := range knowncaps.Devices() { // of all kinds
			ofAttention = append(ofAttention, func(x *tuning.Attention) string {
				return launches(&tuning.Profile{Attention: *x, Device: p.Device}, d)
			})
			ofDevice = append(ofDevice, func(x *tuning.Device) string {
				return launches(&tuning.Profile{Attention: p.Attention, Device: *x}, d)
			})
		}
		assert.Empty(t, vary.Idle(p.Attention, ofAttention...), "%s: numbers of Attention that decide nothing", name)
		assert.Empty(t, vary.Idle(p.Device, ofDevice...), "%s: numbers of Device that decide nothing", name)
	})
}

// launches lists the kernels, their constants and how work is divided among them, on a device.
func launches(p *tuning.Profile, d knowncaps.Device) string {
	var list []string
	for n := range 13 {
		list = append(list, fmt.Sprint(gathers(&p.Attention, 1<<n, 1), gathers(&p.Attention, 1<<12, 1<<n)))
	}
	adapter := &vk.Adapter{Type: d.Type, Caps: d.Caps}
	list = append(list, fmt.Sprint(p.Device.WorkgroupsOf(adapter, p.Device.PerUnit)))
	f := matrixFit{&d.Caps, p}
	build, _, _ := chooseBuild(p, adapter, nil, "attn_decode", "", 0, 64)
	list = append(list, build, fmt.Sprint(float8Fits(&d.Caps, p, opkit.CMB)))
	layout := func(m, n, k, subgroup int) ([]uint32, error) {
		if d.Type == vk.TypeCPU {
			return accumulators(m, n, k, subgroup, n, func(part, place int) int { return part }), nil
		}
		return d.Layout(m, n, k, subgroup), nil
	}
	for _, variant := range []string{opkit.CMB, opkit.CM, opkit.Base} {
		for _, heads := range []int{4, 8, 16, 64, 128} {
			decode, err := tilings(p, &d.Caps, "attn_decode", variant, heads)
			if err != nil || len(d.Caps.Missing(elementFeatures[variant])) > 0 {
				continue
			}
			prefill, err := tilings(p, &d.Caps, "attn_prefill", variant, heads)
			if err == nil {
				decode, _ = f.withDecodeLanes(layout, variant, heads, decode)
				prefill, _ = f.withLanes(layout, "attn_prefill_lanes", variant, heads, prefill)
			}
			workgroups := p.Device.WorkgroupsOf(adapter, 1)
			for _, l := range [][]tiling{decode, prefill} {
				list = append(list, divided(splitter{tune: &p.Attention, heads: heads, tilings: l, workgroups: workgroups})...)
			}
		}
	}
	return strings.Join(list, "\n")
}

var elementFeatures = map[string][]string{opkit.CMB: {"coopmat.bf16.f32"}, opkit.CM: {"coopmat.f16.f32"}}

// divided lists what a splitter has and how it divides steps of a few sizes.
func divided(s splitter) (list []string) {
	for _, x := range s.tilings {
		list = append(list, fmt.Sprint(x.stem, x.heads, x.tile, x.constants, x.subgroup, x.rows))
	}
	for _, tokens := range []int{1, 4, 16, 64, 200} {
		for _, width := range []int{128, 640, 8320} {
			list = append(list, fmt.Sprint(s.plan(tokens, width)))
		}
	}
	s.invariant = true
	list = append(list, fmt.Sprint(s.plan(1, 640)))
	return list
}
