package tuning

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Times put the fastest build first, and what failed nowhere. Builds without matrices and dot
// products are all as fast as base, and other families keep their ladders.
func TestLadder(t *testing.T) {
	m, d := []string{"cooperativeMatrix"}, []string{"shaderFloat16", "shaderMixedFloatDotProductFloat16AccFloat32"}
	ladder := []Variant{{Name: "cmb", Requires: m}, {Name: "cm", Requires: m}, {Name: "dot", Requires: d}, {Name: "base"},
		{Name: "da", Requires: []string{"bufferDeviceAddress"}}}
	names := func(p Profile, family string) (list []string) {
		for _, v := range p.Ladder(family, ladder) {
			list = append(list, v.Name)
		}
		return list
	}
	all := []string{"cmb", "cm", "dot", "base", "da"}
	assert.Equal(t, all, names(Profile{}, Prefill))
	assert.Equal(t, all[2:], names(Profile{Device: Device{AvoidMatrices: true}}, Prefill))
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
			p := Profile{Timed: map[string]Timed{family: c.timed}}
			for _, of := range Families {
				if of == family {
					assert.Equal(t, c.want, names(p, of), "%s: %+v", of, c.timed)
				} else {
					assert.Equal(t, all, names(p, of), "%s, timed %s", of, family)
				}
			}
			assert.Equal(t, all, names(p, ""), "of no family")
		}
	}
}
