package pipelines

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vkmla/vkmla/internal/door"
)

// Hot kernels must not spill; 16 bytes of local memory, and no more, are only named.
func TestWrong(t *testing.T) {
	local := func(n float64) []door.Statistic {
		return []door.Statistic{{Name: "Local Memory Size", Value: 1<<36 + n}}
	}
	for name, c := range map[string]struct {
		list       []door.Statistic
		spills     float64
		wrong, few bool
	}{
		"nothing told":          {nil, -1, false, false},
		"no local memory":       {local(0), 0, false, false},
		"four registers":        {local(16), 16, false, true},
		"five registers":        {local(20), 20, true, false},
		"an array":              {local(512), 512, true, false},
		"counted from zero":     {[]door.Statistic{{Name: "local memory size", Value: 512}}, 512, true, false},
		"registers of AMD":      {[]door.Statistic{{Name: "Spilled VGPRs", Value: 4}, {Name: "Scratch Size", Value: 96}}, 4, true, false},
		"an array of AMD":       {[]door.Statistic{{Name: "Spilled VGPRs"}, {Name: "Scratch Size", Value: 512}}, 512, true, false},
		"instructions of NVK":   {[]door.Statistic{{Name: "Spills to memory", Value: 3}, {Name: "Spills to reg", Value: 5}}, 3, true, false},
		"instructions of ANV":   {[]door.Statistic{{Name: "Spills", Value: 7}, {Name: "Scratch Memory Size", Value: 1024}}, 7, true, false},
		"nothing spilled there": {[]door.Statistic{{Name: "Spilled VGPRs"}, {Name: "Spilled SGPRs"}, {Name: "Scratch size"}}, 0, false, false},
		"both":                  {append(local(16), door.Statistic{Name: "Spilled VGPRs", Value: 1}), 17, true, false},
	} {
		for _, hot := range []bool{true, false} {
			r := Row{Hot: hot, Spills: -1}
			r.read(c.list)
			wrong, few := len(Wrong([]Row{r})) > 0, len(Few([]Row{r})) > 0
			require.Equal(t, c.spills, r.Spills, "%s, hot %v", name, hot)
			require.Equal(t, c.wrong && hot, wrong, "%s, hot %v", name, hot)
			assert.Equal(t, c.few && hot, few, "%s, hot %v", name, hot)
		}
	}
}

// TestChosenRows holds that a row has a cell for each column, empty where the driver tells nothing.
func TestChosenRows(t *testing.T) {
	told := Chosen{Kernel: "k", Subgroup: 32, Row: Row{Kernel: "k", Registers: 12.2, Occupancy: -1, Shared: 0, Spills: 3, Clocks: 7}}
	rows := ChosenRows([]Choice{{Op: "decode", Tokens: 4, Kernels: []Chosen{told}}, {Op: "prefill"}})
	require.Len(t, rows, 1)
	require.Len(t, rows[0], len(ChosenColumns))
	assert.Equal(t, []any{"decode", 4, "k()", uint32(32), "13", "", "0", "3", "7"}, []any(rows[0]))
}
