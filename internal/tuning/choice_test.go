package tuning

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/vk"
)

// A choice puts the fastest build first, and what failed nowhere. Builds without matrices and dot
// products are all as fast as base, and other families and devices keep their ladders.
func TestPreferred(t *testing.T) {
	m, d := []string{"cooperativeMatrix"}, []string{"shaderFloat16", "shaderMixedFloatDotProductFloat16AccFloat32"}
	ladder := []vk.Variant{{Name: "cmb", Requires: m}, {Name: "cm", Requires: m}, {Name: "dot", Requires: d}, {Name: "base"},
		{Name: "da", Requires: []string{"bufferDeviceAddress"}}}
	names := func(a *vk.Adapter, family string) (list []string) {
		for _, v := range Preferred(a, family, ladder) {
			list = append(list, v.Name)
		}
		return list
	}
	a, other := &vk.Adapter{Name: "a"}, &vk.Adapter{Name: "a", DriverVersion: 2}
	all := []string{"cmb", "cm", "dot", "base", "da"}
	assert.Equal(t, all, names(a, Prefill))
	assert.Len(t, Families, 4)
	for _, family := range Families {
		for _, c := range []struct {
			timed Timed
			want  []string
		}{
			{Timed{map[string]float64{"base": 2, "cm": 1, "dot": 3}, map[string]string{"cmb": "crashed"}},
				[]string{"cm", "base", "da", "dot"}},
			{Timed{map[string]float64{"base": 2, "cm": 3, "cmb": 1, "dot": 1.5}, nil}, []string{"cmb", "dot", "base", "da", "cm"}},
			{Timed{map[string]float64{"base": 2, "dot": 1}, map[string]string{"cmb": "", "cm": "wrong"}},
				[]string{"dot", "base", "da", "cmb"}},
			{Timed{map[string]float64{"base": 2}, map[string]string{"cmb": "a", "cm": "b", "dot": "c"}}, []string{"base", "da"}},
			{Timed{nil, map[string]string{"base": "crashed"}}, all},
		} {
			Choose(a, &Choice{Timed: map[string]Timed{family: c.timed}})
			for _, of := range Families {
				if of == family {
					assert.Equal(t, c.want, names(a, of), "%s: %+v", of, c.timed)
				} else {
					assert.Equal(t, all, names(a, of), "%s, timed %s", of, family)
				}
			}
			assert.Equal(t, all, names(a, ""), "of no family")
			assert.Equal(t, all, names(other, family), "another driver's version")
		}
	}
	Choose(a, nil)
	assert.Equal(t, all, names(a, Products))
}
