package pipelines_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// TestChosen says which kernels the operations of V4-Flash and V4.1-Flash launch on the devices
// that people own, in testdata/chosen.txt, and holds them against the device's limits. Nothing is
// compiled.
func TestChosen(t *testing.T) {
	got := map[string]map[string][]string{} // devices by operation and kernels
	var ops []string
	for _, d := range knowncaps.Owned() {
		a := testkit.AdapterAs(t, d)
		list, err := pipelines.Choose(func() (*vk.Device, error) { return a.Open(vk.DeviceOptions{}) }, nil)
		require.NoError(t, err, d.Name)
		for _, c := range list {
			require.NoError(t, c.Missing, "%s: %s of %d tokens", d.Name, c.Op, c.Tokens)
			require.NotEmpty(t, c.Kernels, "%s: %s of %d tokens", d.Name, c.Op, c.Tokens)
			var names []string
			for _, k := range c.Kernels {
				names = append(names, k.Kernel)
				checkChosen(t, &d.Caps, k)
			}
			op, kernels := fmt.Sprintf("%s, tokens %d", c.Op, c.Tokens), strings.Join(slices.Compact(names), " + ")
			if got[op] == nil {
				ops, got[op] = append(ops, op), map[string][]string{}
			}
			got[op][kernels] = append(got[op][kernels], d.Name)
		}
	}
	var text strings.Builder
	for _, op := range ops {
		fmt.Fprintln(&text, op)
		for _, kernels := range slices.Sorted(maps.Keys(got[op])) {
			fmt.Fprintf(&text, "    %s\n        %s\n", kernels, strings.Join(got[op][kernels], "; "))
		}
	}
	recorded(t, "chosen.txt", text.String())
}

// recorded compares a text with a file of testdata, or writes it.
func recorded(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "%s: if this is meant, run the test with -update", path)
}

// TestLargestFits holds the largest tensors of a model against what a device allocates at once and
// what a descriptor covers.
func TestLargestFits(t *testing.T) {
	const tokens, context = 4096, 1 << 20
	for _, c := range []model.Config{model.FlashConfig(), model.ProConfig()} {
		entries := context / 4
		bound := []uint64{ // what kernels without device addresses bind; a Select's scratch is less than 64 MiB
			64 << 20, uint64(tokens) * uint64(c.Heads) * 512 * 2,
		}
		all := append(bound, uint64(entries*cache.RecordV4.RowBytes()), uint64(c.Heads)*512*uint64(c.QRank)*2,
			uint64(c.Groups*c.ORank*c.HeadsPerGroup()*512)*2)
		for _, d := range knowncaps.Owned() {
			assert.LessOrEqual(t, slices.Max(all), d.Caps.MaxAllocation, d.Name)
			assert.LessOrEqual(t, slices.Max(bound), d.Caps.MaxStorageBufferRange, d.Name)
			assert.Less(t, d.Caps.MaxAllocation, uint64(math.MaxUint32+1), d.Name)
		}
	}
}

// Programs read names in one style.
func TestChosenJSON(t *testing.T) {
	row := pipelines.Row{Other: []door.Statistic{{Name: "n"}}}
	data, err := json.Marshal(pipelines.Choice{Kernels: []pipelines.Chosen{{Row: row}}})
	require.NoError(t, err)
	names := regexp.MustCompile(`"([^"]*)":`).FindAllSubmatch(data, -1)
	require.Greater(t, len(names), 20)
	for _, n := range names {
		assert.Regexp(t, "^[a-z_]+$", string(n[1]))
	}
}
