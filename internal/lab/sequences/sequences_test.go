package sequences_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
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

// TestIsolation plays the scenario of that name with layers of random weights, in engines whose
// options choose other kernels. VKMLA_TEST_FULL=1 takes all of them, and weights of every format.
func TestIsolation(t *testing.T) {
	dev, full, base := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1", opkit.Base
	for _, v := range testkit.DecodeVariants(t, dev, 4) {
		if testkit.LeftOut(base) {
			base = v
		}
	}
	v4 := fakemodel.Config(4, 0, 128)
	v4.Hidden, v4.ORank = 256, 128 // blocks of 128, for QuantiseActivations
	for _, m := range []struct {
		of      sequences.Model
		c       model.Config
		storage fakemodel.Storage
	}{{sequences.V4, v4, fakemodel.FP8}, {sequences.V4, v4, fakemodel.BF16}, {sequences.V4, v4, fakemodel.NVFP4},
		{sequences.V41, fakemodel.V41(), fakemodel.FP8}} {
		for name, o := range map[string]pipeline.EngineOptions{
			"default":                {Variant: base},
			"invariant":              {Variant: base, Invariant: true},
			"activations":            {Variant: base, QuantiseActivations: true},
			"invariant, activations": {Variant: base, Invariant: true, QuantiseActivations: true},
			"gathered rows":          {Variant: opkit.TwoPass + base},
			"mxfp4 keys":             {Variant: base, Keys: cache.IndexKeyMXFP4},
		} {
			quick := m.of == sequences.V4 && m.storage == fakemodel.FP8 && name == "invariant, activations"
			if !full && !quick || m.of != sequences.V4 && (o.QuantiseActivations || o.Keys != 0) {
				continue
			}
			t.Run(fmt.Sprint(m.of, ", ", m.storage, ", ", name), func(t *testing.T) {
				c := m.c
				c.Hadamard = o.Keys != 0
				w, err := fakemodel.New(fakemodel.Options{Config: c, Storage: m.storage})
				require.NoError(t, err)
				l, err := sequences.Open(t.Context(), dev, sequences.Options{Model: m.of, Random: w, Engines: o})
				require.NoError(t, err)
				defer func() { assert.NoError(t, l.Close()) }()
				all := sequences.Scenarios()
				i := slices.IndexFunc(all, func(s sequences.Scenario) bool { return s.Name == "isolation" })
				assert.NoError(t, all[i].Run(t.Context(), l))
			})
		}
	}
}
