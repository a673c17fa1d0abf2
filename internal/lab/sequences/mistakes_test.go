package sequences

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// TestMistakes plants mistakes of an engine in what sessions do, and demands that a scenario and a
// walk see each.
func TestMistakes(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev, calls := testkit.Device(t), 0
	every := func(n int) bool { calls++; return calls%n == 0 }
	var earlier []byte
	l, err := Open(t.Context(), dev, Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close()) }()
	require.NoError(t, l.onePass(t.Context()))
	for _, c := range []struct {
		name, scenario string // a scenario that sees it; "": only a walk does
		m              mistakes
	}{
		{"a number of an input", "long generation", mistakes{input: func(layer int, hidden []float32) {
			if layer == 2 && every(40) {
				hidden[3] = -hidden[3]
			}
		}}},
		{"rows of another token", "mixed batches", mistakes{input: func(layer int, hidden []float32) {
			if n := len(hidden) / 2; layer == 1 && len(hidden) > 192 && every(20) {
				copy(hidden[n/192*192:], hidden[:192])
			}
		}}},
		{"a token too many is kept", "rejected drafts", mistakes{truncate: func(n int) int {
			if n > 0 && every(7) {
				n++
			}
			return n
		}}},
		{"a fork that is cut", "shared prefixes", mistakes{fork: func(_, other *pipeline.Session) *pipeline.Session {
			if every(2) {
				other.Truncate(0)
			}
			return other
		}}},
		{"a fork that is the session", "", mistakes{fork: func(of, other *pipeline.Session) *pipeline.Session {
			if !every(3) {
				return other
			}
			other.Close()
			return of
		}}},
		{"an earlier snapshot", "restored sessions", mistakes{saved: func(data []byte) []byte {
			now := earlier
			if earlier = slices.Clone(data); now == nil || !every(2) {
				return data
			}
			return now
		}}},
		{"a bit of an output", "repeats", mistakes{output: func(layer int, out []float32, _ []int32) {
			if layer == 0 && len(out) > 0 && every(11) {
				out[5] *= 1 + 1.0/128
			}
		}}},
		{"two picks that changed places", "equal scores", mistakes{output: func(_ int, _ []float32, picks []int32) {
			if len(picks) > 1 && picks[1] >= 0 && every(3) {
				picks[0], picks[1] = picks[1], picks[0]
			}
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls, earlier, l.spoil = 0, nil, c.m
			o := WalkOptions{Workers: 1, Steps: 1000, Seed: 1, Live: func() map[string]int { return nil }}
			r, err := l.Walk(o)
			require.Error(t, err, "a walk")
			t.Logf("after %d steps: %v", r.Steps, err)
			l.memory = newMemory()
			if i := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == c.scenario }); c.scenario != "" {
				err := scenarios[i].Run(t.Context(), l)
				assert.Error(t, err, "a scenario")
				t.Log(err)
			}
		})
	}
}

// TestDraftMistakes demands that a scenario sees a causal mask in a draft block of DeepSeek-V4,
// which programs are known to have.
func TestDraftMistakes(t *testing.T) {
	testkit.WithoutMatrices(t)
	l, err := Open(t.Context(), testkit.Device(t), Options{Log: t.Logf})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close()) }()
	i := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == nameDraftBlock })
	require.NoError(t, scenarios[i].Run(t.Context(), l))
	l.spoil.causal = true
	err = scenarios[i].Run(t.Context(), l)
	assert.ErrorIs(t, err, errResult)
	t.Log(err)
}
