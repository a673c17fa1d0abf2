package describe_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// What is said to run is what operations choose: no matrices where the profile avoids them, and no
// build that failed when it was timed.
func TestRuns(t *testing.T) {
	matrices := func(d describe.Device) (list []string) {
		for name, o := range d.Ops {
			if strings.Contains(o.Runs, "cm") {
				list = append(list, name)
			}
			require.Equal(t, o.Runs, o.Can[0], name)
		}
		slices.Sort(list)
		return list
	}
	for _, d := range knowncaps.Owned() {
		a := testkit.AdapterAs(t, d)
		p, _ := tuning.For(a)
		said := describe.Of(a, "")
		assert.Equal(t, d.Caps.Features["cooperativeMatrix"] && !p.Device.AvoidMatrices, len(matrices(said)) > 0, "%s: %v", d.Name, matrices(said))
		assert.Equal(t, d.Caps.Features["cooperativeMatrix"], slices.Contains(said.Ops["linear"].Can, "cm"), d.Name)
		assert.Positive(t, said.Limits.ComputeUnits, d.Name)
		assert.NotContains(t, said.Limits.ComputeUnitsBy, "assumed", d.Name)
	}
	ada := knowncaps.Owned()[1]
	a := testkit.AdapterAs(t, ada)
	t.Cleanup(func() { tuning.Choose(a, nil) })
	all := matrices(describe.Of(a, "generic"))
	for _, op := range verify.All() {
		if slices.ContainsFunc(op.Variants, tuning.Matrices) {
			assert.Contains(t, all, op.Name)
		}
	}
	failed := tuning.Timed{Microseconds: map[string]float64{"base": 1}, Failed: map[string]string{"cm": "crashed", "cmb": "crashed"}}
	tuning.Choose(a, &tuning.Choice{Timed: map[string]tuning.Timed{"attention": failed, "projection": failed}})
	assert.Empty(t, matrices(describe.Of(a, "generic")), "builds that failed are said to run")
}
