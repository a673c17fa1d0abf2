package check

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
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

// What a device's limits forbid is not run, and says why.
func TestLimits(t *testing.T) {
	d := knowncaps.Device{Name: "few buffers", Type: vk.TypeCPU, Caps: testkit.Device(t).Adapter().Caps}
	d.Caps.MaxStorageBuffers = 4
	dev := testkit.As(t, d)
	for _, id := range []string{GroupOperations + "/indexer_topk", GroupLayers + "/recorded_c4a", GroupCuts + "/padding"} {
		c, ok := find(All(true), id)
		assert.True(t, ok, id)
		e := &Env{Dev: dev, Seed: 1, Quick: true, Share: time.Hour, beat: func(string) {}, shared: &shared{}}
		r := c.run(t.Context(), e)
		e.shared.close()
		assert.Equal(t, NotRun, r.Status, "%s: %s", id, r.Why)
		assert.Contains(t, r.Why, "device allows 4 storage buffers, this needs", id)
	}
}
