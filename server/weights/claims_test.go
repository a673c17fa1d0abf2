package weights_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
)

// Experts that a configuration claims cost no memory before their tensors were found.
func TestClaimedExperts(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(written(t), "config.json"))
	require.NoError(t, err)
	config := map[string]any{}
	require.NoError(t, json.Unmarshal(data, &config))
	config["n_routed_experts"] = 1 << 16
	data, err = json.Marshal(config)
	require.NoError(t, err)
	for _, name := range []string{"layers.0.ffn.experts.0.w1.weight", "layers.0.ffn.experts.gate_up_proj"} {
		dir, head := t.TempDir(), fmt.Sprintf(`{"%s":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}`, name)
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), append(file, 0, 0), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o666))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = weights.Open(dir)
		runtime.ReadMemStats(&after)
		assert.ErrorIs(t, err, model.ErrCheckpoint)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), name)
	}
}
