package check

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// TestAll holds that the list has everything that there is to check, each once, and that a check
// comes after its smaller form.
func TestAll(t *testing.T) {
	groups, seen := map[string]int{}, map[string]bool{}
	for _, g := range Groups {
		groups[g.Name] = 0
	}
	for _, c := range All(false) {
		assert.Contains(t, groups, c.Group)
		assert.False(t, seen[c.ID()], "%s is there twice", c.ID())
		if c.Smaller != "" {
			assert.True(t, seen[c.Group+"/"+c.Smaller], "%s comes before %s", c.ID(), c.Smaller)
			assert.Greater(t, c.Grows, 1.0)
		}
		seen[c.ID()] = true
		groups[c.Group]++
	}
	assert.Equal(t, map[string]int{GroupLimits: 1, GroupOperations: len(verify.All()) - 1, GroupLayers: groups[GroupLayers],
		GroupCuts: len(sequences.Scenarios()) + len(cutModels[1].others), GroupTimes: len(timedSteps) * len(timedKinds)}, groups)
	assert.GreaterOrEqual(t, groups[GroupLayers], len(timedKinds))
	for _, name := range cutModels[1].others {
		_, ok := find(All(false), GroupCuts+"/"+name+", v41")
		assert.True(t, ok, name)
	}
	for _, s := range sequences.Scenarios() {
		c, ok := find(All(false), GroupCuts+"/"+s.Name)
		assert.True(t, ok)
		for _, thread := range s.Reports {
			assert.Contains(t, c.About, thread)
		}
	}
	begin := func(group string) int {
		return slices.IndexFunc(All(false), func(c Check) bool { return c.Group == group })
	}
	quick := map[string]int{}
	for _, c := range All(true) {
		assert.Equal(t, c.ID(), All(false)[begin(c.Group)+quick[c.Group]].ID(), "quick ones come first")
		assert.True(t, seen[c.ID()], c.ID())
		quick[c.Group]++
	}
	assert.Equal(t, map[string]int{GroupLimits: 1, GroupOperations: groups[GroupOperations], GroupLayers: len(quickLayers),
		GroupCuts:  len(cutModels[0].quick) + len(cutModels[1].quick),
		GroupTimes: len(timedKinds)}, quick)
}
