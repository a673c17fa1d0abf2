package tuning

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/vk"
)

// A choice puts the fastest build first, and what failed nowhere. Builds without matrices are all
// as fast as base, and other devices keep their ladders.
func TestPreferred(t *testing.T) {
	m := []string{"cooperativeMatrix"}
	ladder := []vk.Variant{{Name: "cmb", Requires: m}, {Name: "cm", Requires: m}, {Name: "base"},
		{Name: "da", Requires: []string{"bufferDeviceAddress"}}}
	names := func(a *vk.Adapter, pkg string) (list []string) {
		for _, v := range Preferred(a, pkg, ladder) {
			list = append(list, v.Name)
		}
		return list
	}
	a, other := &vk.Adapter{Name: "a"}, &vk.Adapter{Name: "a", DriverVersion: 2}
	all := []string{"cmb", "cm", "base", "da"}
	assert.Equal(t, all, names(a, "attention"))
	for _, c := range []struct {
		timed  Timed
		want   []string
		others []string // of a package that nobody timed
	}{
		{Timed{map[string]float64{"base": 2, "cm": 1}, map[string]string{"cmb": "crashed"}}, []string{"cm", "base", "da"}, all},
		{Timed{map[string]float64{"base": 2, "cm": 3, "cmb": 1}, nil}, []string{"cmb", "base", "da", "cm"}, all},
		{Timed{map[string]float64{"base": 2}, map[string]string{"cmb": "", "cm": "wrong"}}, []string{"base", "da", "cmb"}, all},
		{Timed{nil, map[string]string{"base": "crashed"}}, all, all},
	} {
		Choose(a, &Choice{Timed: map[string]Timed{"projection": c.timed}})
		assert.Equal(t, c.want, names(a, "projection"), "%+v", c.timed)
		assert.Equal(t, c.want, names(a, "indexer"), "the scores, as products")
		assert.Equal(t, c.others, names(a, "attention"))
		assert.Equal(t, all, names(other, "projection"), "another driver's version")
	}
	Choose(a, nil)
	assert.Equal(t, all, names(a, "projection"))
}
