package sequences_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestScenarios runs scenarios: of DeepSeek-V4 all, of DeepSeek-V4.1 one that cuts groups of two
// anywhere. VKMLA_TEST_FULL=1 runs all, on a GPU at full length.
func TestScenarios(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	quick := map[sequences.Model]string{sequences.V41: "rejected drafts", sequences.V41InV4Store: "none"}
	for _, model := range []sequences.Model{sequences.V4, sequences.V41, sequences.V41InV4Store} {
		o := sequences.Options{Model: model, Log: t.Logf}
		if full && (model == sequences.V4 || dev.Adapter().Type != vk.TypeCPU) {
			o.Size = sequences.Full
		}
		t.Run(model.String(), func(t *testing.T) {
			if !full && quick[model] == "none" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			l, err := sequences.Open(t.Context(), dev, o)
			require.NoError(t, err)
			defer func() { assert.NoError(t, l.Close()) }()
			for _, s := range sequences.Scenarios() {
				if !s.Suits(model) || !full && quick[model] != "" && quick[model] != s.Name {
					continue
				}
				t.Run(s.Name, func(t *testing.T) {
					t.Logf("%v: %s", s.Reports, s.Proves)
					assert.NoError(t, s.Run(t.Context(), l))
				})
			}
		})
	}
}
