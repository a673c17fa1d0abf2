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

// TestOptions plays scenarios with layers of random weights, in engines whose options choose other
// kernels. How a prompt is cut changes no bit with Invariant, and does without it, so that the test
// can fail. VKMLA_TEST_FULL=1 takes all options, and weights of every format.
func TestOptions(t *testing.T) {
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
		{sequences.V41, fakemodel.V41(), fakemodel.FP8}, {sequences.V41InV4Store, fakemodel.V41(), fakemodel.FP8}} {
		for _, x := range []struct {
			name     string
			o        pipeline.EngineOptions
			scenario string
			quick    bool
		}{
			{"invariant", pipeline.EngineOptions{Variant: base, Invariant: true}, "prompt lengths", true},
			{"not invariant", pipeline.EngineOptions{Variant: base}, "prompt lengths", true},
			{"default", pipeline.EngineOptions{Variant: base}, "isolation", false},
			{"invariant", pipeline.EngineOptions{Variant: base, Invariant: true}, "isolation", false},
			{"activations", pipeline.EngineOptions{Variant: base, QuantiseActivations: true}, "isolation", false},
			{"invariant, activations", pipeline.EngineOptions{Variant: base, Invariant: true, QuantiseActivations: true}, "isolation", true},
			{"gathered rows", pipeline.EngineOptions{Variant: opkit.TwoPass + base}, "isolation", false},
			{"mxfp4 keys", pipeline.EngineOptions{Variant: base, Keys: cache.IndexKeyMXFP4}, "isolation", false},
		} {
			first := m.of == sequences.V4 && m.storage == fakemodel.FP8
			if !full && !(first && x.quick) || m.of != sequences.V4 && (x.o.QuantiseActivations || x.o.Keys != 0) {
				continue
			}
			t.Run(fmt.Sprint(x.scenario, ", ", m.of, ", ", m.storage, ", ", x.name), func(t *testing.T) {
				if x.scenario != "isolation" {
					testkit.WithoutMatrices(t)
				}
				c := m.c
				c.Hadamard = x.o.Keys != 0
				w := fakemodel.New(fakemodel.Options{Config: c, Storage: m.storage})
				l, err := sequences.Open(t.Context(), dev, sequences.Options{Model: m.of, Random: w, Engines: x.o})
				require.NoError(t, err)
				defer func() { assert.NoError(t, l.Close()) }()
				all := sequences.Scenarios()
				i := slices.IndexFunc(all, func(s sequences.Scenario) bool { return s.Name == x.scenario })
				if err := all[i].Run(t.Context(), l); x.name == "not invariant" {
					assert.Error(t, err)
					t.Log(err)
				} else {
					assert.NoError(t, err)
				}
			})
		}
	}
}
