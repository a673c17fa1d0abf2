package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// TestList holds that the lists of suites are what they time.
func TestList(t *testing.T) {
	listed := func(suite string, ops OpOptions, models LayerOptions) (names []string) {
		list, err := List(suite, ops, models)
		require.NoError(t, err)
		for _, x := range list {
			assert.Equal(t, suite, x.Suite)
			names = append(names, x.Op+" "+x.Case)
		}
		return names
	}
	models := LayerOptions{Models: []string{"pro", "v41-flash"}, Kinds: []string{"c4a", "full2"},
		Batches: []int{1, 2}, Contexts: []int{9, 1}, Prefill: []int{5}, Chunk: 3}
	assert.Equal(t, []string{"prefill model=pro/weights=fp8/tokens=5/chunk=3", "prefill model=v41-flash/weights=fp8/tokens=5/chunk=3"},
		listed("prefill", OpOptions{}, models))
	layers := listed("layer", OpOptions{}, models)
	require.Len(t, layers, 2*(2*2+2), "a kind of each")
	assert.Equal(t, "layer model=v41-flash/kind=full2/weights=fp8/mode=prefill/tokens=2/context=5", layers[11])

	var ran []string
	models.Models, models.Keys, models.Checked = []string{"small"}, 99, true // which no engine takes
	require.ErrorIs(t, Steps(t.Context(), testkit.Device(t), StepOptions{models}, anyLimits, Silent{},
		func(r StepRow) { ran = append(ran, "step "+r.title()) }), ErrWrong)
	assert.Equal(t, ran, listed("step", OpOptions{}, models))

	for _, suite := range OpSuites {
		names := listed(suite.Name, OpOptions{}, LayerOptions{})
		for _, op := range SuiteOps(suite.Name) {
			found := slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, op.Name+" ") })
			assert.True(t, found, "%s %s", suite.Name, op.Name)
		}
	}
	peers, err := Peers()
	require.NoError(t, err)
	compared := listed(compareSuite, CompareOptions{Peers: peers}.OpOptions(), LayerOptions{})
	assert.Less(t, len(compared), len(listed(compareSuite, OpOptions{}, LayerOptions{})))
	assert.Contains(t, compared, peers.Rows[0].Op+" "+peers.Rows[0].Case)
	for suite, o := range map[string]LayerOptions{"step": {Batches: []int{0}}, "layer": {Kinds: []string{"x"}}} {
		_, err := List(suite, OpOptions{}, o)
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	_, err = List("memory", OpOptions{Ops: []string{"x"}}, LayerOptions{})
	assert.ErrorIs(t, err, vk.ErrArgument)
}
