package pipelines_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
)

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
		said := describe.Of(a, "", nil)
		want := d.Caps.Features["cooperativeMatrix"] && !p.Device.AvoidMatrices
		assert.Equal(t, want, len(matrices(said)) > 0, "%s: %v", d.Name, matrices(said))
		assert.Equal(t, d.Caps.Features["cooperativeMatrix"], slices.Contains(said.Ops["linear"].Can, "cm"), d.Name)
		assert.Positive(t, said.Limits.ComputeUnits, d.Name)
		assert.NotContains(t, said.Limits.ComputeUnitsBy, "assumed", d.Name)
	}
	recordedRuns(t)
	ada := knowncaps.Owned()[1]
	a := testkit.AdapterAs(t, ada)
	all := matrices(describe.Of(a, "generic", nil))
	for _, op := range verify.All() {
		if slices.ContainsFunc(op.Variants, tuning.Matrices) {
			assert.Contains(t, all, op.Name)
		}
	}
	failed := tuning.Timed{Microseconds: map[string]float64{"base": 1}, Failed: map[string]string{"cm": "crashed", "cmb": "crashed"}}
	kept := timed.Builds{Timed: map[string]tuning.Timed{}}
	for _, family := range tuning.Families {
		kept.Timed[family] = failed
	}
	assert.Empty(t, matrices(describe.Of(a, "generic", &kept)), "builds that failed are said to run")
}

// recordedRuns holds which variant of every operation the devices that people own run, operations
// with the same devices together.
func recordedRuns(t *testing.T) {
	t.Helper()
	runs := map[string][]string{} // operations by what runs where
	for _, op := range verify.All() {
		devices := map[string][]string{}
		for _, d := range knowncaps.Owned() {
			v := describe.Of(testkit.AdapterAs(t, d), "", nil).Ops[op.Name].Runs
			require.NotEmpty(t, v, "%s runs nothing of %s", d.Name, op.Name)
			devices[v] = append(devices[v], d.Name)
		}
		var lines strings.Builder
		for _, v := range slices.Sorted(maps.Keys(devices)) {
			fmt.Fprintf(&lines, "    %s\n        %s\n", v, strings.Join(devices[v], "; "))
		}
		runs[lines.String()] = append(runs[lines.String()], op.Name)
	}
	var text strings.Builder
	for _, lines := range slices.SortedFunc(maps.Keys(runs), func(a, b string) int { return cmp.Compare(runs[a][0], runs[b][0]) }) {
		fmt.Fprintf(&text, "%s\n%s", strings.Join(runs[lines], "\n"), lines)
	}
	recorded(t, "runs.txt", text.String())
}
