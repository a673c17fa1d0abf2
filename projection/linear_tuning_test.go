package projection_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Every number of the profile changes what some layer launches on some device.
func TestLinearTuning(t *testing.T) {
	profile, err := tuning.Named("hopper")
	require.NoError(t, err)
	rig := newTuningRig(t)
	want := rig.plans(&profile.Linear)
	for _, field := range leaves(reflect.TypeFor[tuning.Linear](), reflect.ValueOf(profile.Linear)) {
		changed := false
		for change := 0; change < 4 && !changed; change++ {
			l := deepLinear(profile.Linear)
			if alter(field.of(reflect.ValueOf(&l).Elem()), change) {
				changed = rig.differ(&l, want)
			}
		}
		assert.True(t, changed, "%s changes nothing", field.name)
	}
}

// tuningRig is layers on devices that differ in what they can run.
type tuningRig struct {
	devices []*vk.Device
	layers  []projection.LinearConfig
}

func newTuningRig(t *testing.T) *tuningRig {
	r := &tuningRig{}
	for _, d := range knowncaps.Devices() {
		switch d.Name {
		case "H100", "RDNA2", "RDNA4", "Arc B", "newer lavapipe":
			r.devices = append(r.devices, testkit.As(t, d))
		}
	}
	flash := []projection.LinearConfig{{N: 1536, K: 4096}, {N: 32768, K: 1024}, {N: 1024, K: 4096, Groups: 8},
		{N: 4096, K: 8192}, {N: 512, K: 4096}, {N: 64, K: 4096},
		{N: 7168, K: 16384}, {N: 1024, K: 256}, {N: 1536, K: 4096, Beside: 2560}}
	for _, c := range flash {
		for _, f := range []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatNVFP4} {
			c.Weights, c.Out = f, tensor.BF16
			r.layers = append(r.layers, c)
		}
	}
	normed := r.layers[0]
	normed.Norm, normed.NormColumns = tensor.BF16, 1024
	r.layers = append(r.layers, normed)
	return r
}

// plans are by device and layer.
func (r *tuningRig) plans(tune *tuning.Linear) (all []any) {
	r.each(tune, func(plan any) bool {
		all = append(all, plan)
		return true
	})
	return all
}

// differ tells whether some plan is another one than before.
func (r *tuningRig) differ(tune *tuning.Linear, before []any) bool {
	i := 0
	return !r.each(tune, func(plan any) bool {
		i++
		return reflect.DeepEqual(plan, before[i-1])
	})
}

func (r *tuningRig) each(tune *tuning.Linear, use func(plan any) bool) bool {
	for _, dev := range r.devices {
		for _, cfg := range r.layers {
			o, err := projection.NewLinearOf(dev, cfg, tune)
			plan := any(fmt.Sprint(err))
			if err == nil {
				plan = projection.PlansOf(o)
			}
			if !use(plan) {
				return false
			}
		}
		if !use(projection.ChainLaunches(dev, tune)) || !use(projection.SubgroupFor(dev.Caps(), tune)) {
			return false
		}
	}
	return true
}

// leaf is a number of a struct.
type leaf struct {
	name string
	of   func(root reflect.Value) reflect.Value
}

// leaves are the numbers of a struct and of what it holds.
func leaves(t reflect.Type, v reflect.Value) (all []leaf) {
	add := func(name string, at func(reflect.Value) reflect.Value, t reflect.Type, v reflect.Value) {
		for _, x := range leaves(t, v) {
			all = append(all, leaf{strings.TrimSuffix(name+"."+x.name, "."), func(root reflect.Value) reflect.Value { return x.of(at(root)) }})
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			add(t.Field(i).Name, func(root reflect.Value) reflect.Value { return root.Field(i) }, t.Field(i).Type, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			add(fmt.Sprint(i), func(root reflect.Value) reflect.Value { return root.Index(i) }, t.Elem(), v.Index(i))
		}
	default:
		all = append(all, leaf{"", func(root reflect.Value) reflect.Value { return root }})
	}
	return all
}

// alter changes a number in one of four ways; false if there is no such way.
func alter(v reflect.Value, change int) bool {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
		return change == 0
	case reflect.Int:
		v.SetInt([]int64{2 * v.Int(), v.Int() / 2, v.Int() + 1, 1}[change])
		return v.Int() > 0
	case reflect.Float64:
		v.SetFloat([]float64{2 * v.Float(), v.Float() / 2, v.Float() + 1, 100 * v.Float()}[change])
		return true
	}
	panic(v.Kind())
}

// deepLinear is a copy that shares nothing.
func deepLinear(l tuning.Linear) tuning.Linear {
	v := reflect.ValueOf(&l).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Struct {
			continue
		}
		for j := range v.Field(i).NumField() {
			if s := v.Field(i).Field(j); s.Kind() == reflect.Slice {
				s.Set(reflect.AppendSlice(reflect.MakeSlice(s.Type(), 0, s.Len()), s))
			}
		}
	}
	return l
}
