package attention

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Each fitted number changes some tiling or some plan of some device: one that changes nothing
// has no place in a profile.
func TestTuning(t *testing.T) {
	base := profile(t, "generic")
	want := launches(base)
	p := *base
	for _, section := range []any{&p.Attention, &p.Device} {
		v := reflect.ValueOf(section).Elem()
		for i := range v.NumField() {
			name := v.Type().String() + "." + v.Type().Field(i).Name
			eachNumber(v.Field(i), name, func(name string, x reflect.Value) {
				assert.True(t, anyOther(x, func() bool { return !reflect.DeepEqual(launches(&p), want) }), "%s changes nothing", name)
			})
		}
	}
	require.Equal(t, want, launches(&p), "a number was not put back")
}

// eachNumber calls f with a field, or with each of its elements and their fields.
func eachNumber(v reflect.Value, name string, f func(name string, x reflect.Value)) {
	switch v.Kind() {
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len()) // the profile's own is shared
		reflect.Copy(c, v)
		v.Set(c)
		for i := range v.Len() {
			eachNumber(v.Index(i), fmt.Sprintf("%s[%d]", name, i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			eachNumber(v.Field(i), name+"."+v.Type().Field(i).Name, f)
		}
	default:
		f(name, v)
	}
}

// anyOther reports whether changed is true for one of a few other values of a number.
func anyOther(x reflect.Value, changed func() bool) bool {
	old := reflect.ValueOf(x.Interface())
	defer x.Set(old)
	var other []any
	switch n := old.Interface().(type) {
	case bool:
		other = []any{!n}
	case int:
		other = []any{2 * n, n / 2, n + 8}
	case float64:
		other = []any{2 * n, n / 2}
	}
	for _, v := range other {
		x.Set(reflect.ValueOf(v))
		if changed() {
			return true
		}
	}
	return false
}

// launches lists the kernels, their constants and how work is divided among them, on devices of
// all kinds.
func launches(p *tuning.Profile) (list []string) {
	for _, d := range knowncaps.Devices() {
		f := matrixFit{&d.Caps, p}
		layout := func(m, n, k, subgroup int) ([]uint32, error) {
			if d.Type == vk.TypeCPU {
				return accumulators(m, n, k, subgroup, n, func(part, place int) int { return part }), nil
			}
			return d.Layout(m, n, k, subgroup), nil
		}
		for _, variant := range []string{VariantCMB, VariantCM, VariantBase} {
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
				workgroups := p.Device.WorkgroupsOf(&vk.Adapter{Type: d.Type, Caps: d.Caps}, 1)
				for _, l := range [][]tiling{decode, prefill} {
					list = append(list, divided(splitter{tune: &p.Attention, heads: heads, tilings: l, workgroups: workgroups})...)
				}
			}
		}
	}
	return list
}

var elementFeatures = map[string][]string{VariantCMB: {"coopmat.bf16.f32"}, VariantCM: {"coopmat.f16.f32"}}

// divided lists what a splitter has and how it divides steps of a few sizes.
func divided(s splitter) (list []string) {
	for _, x := range s.tilings {
		list = append(list, fmt.Sprint(x.stem, x.heads, x.tile, x.constants, x.subgroup))
	}
	for _, tokens := range []int{1, 4, 16, 64, 200} {
		for _, width := range []int{128, 640, 8320} {
			list = append(list, fmt.Sprint(s.plan(tokens, width)))
		}
	}
	return list
}
