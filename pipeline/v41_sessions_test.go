package pipeline_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestSessionsV41 is TestSessions for layers that share entries, picks and candidates, in both
// records. VKMLA_TEST_FULL=1 does all.
func TestSessionsV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	t.Run("v41", func(t *testing.T) {
		if full {
			testSessions(t, &v41Sessions, nil)
		} else {
			testSessions(t, &v41Sessions, []string{"truncate", "layers", "save"})
		}
	})
	t.Run("v4", func(t *testing.T) {
		if !full {
			t.Skip("VKMLA_TEST_FULL is not set")
		}
		testSessions(t, &v41InV4, nil)
	})
}

// TestEngineV41Builds holds layers that share in every build of attention and for all numbers of
// heads that have kernels of their own: prompts and single tokens, against the definition. Without
// VKMLA_TEST_FULL=1 it runs where matrices are wanted.
func TestEngineV41Builds(t *testing.T) {
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	if !full && !testkit.LeftOut(attention.VariantBase) {
		t.Skip("neither VKMLA_TEST_FULL nor VKMLA_TEST_VARIANTS is set")
	}
	const tokens, prefill = 61, 55
	dev := testkit.Device(t)
	for i, heads := range []int{8, 64, 16, 32} {
		if i > 1 && !full {
			break
		}
		c := v41Layers()
		c.Heads = heads
		m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8, Seed: uint64(heads)})
		checkpoint, layers := opened(t, dev, m)
		hidden := rounded(normals(tokens * c.Hidden))
		for _, variant := range testkit.DecodeVariants(t, dev, heads) {
			for _, records := range []model.Records{model.RecordsV41, model.RecordsV4} {
				t.Run(fmt.Sprint(heads, " ", variant, " ", records), func(t *testing.T) {
					e := engine(t, dev, checkpoint.Config, layers, options{MaxTokens: tokens, MaxStep: 32, KeepTopK: true, Variant: variant,
						Records: records})
					checkSequence(t, checkpoint.Config, records, m.Values, hidden, division(t, e, c.Hidden, prefill, hidden))
				})
			}
		}
	}
}

// rounded are numbers as bf16 keeps them.
func rounded(v []float32) []float32 {
	for i, x := range v {
		v[i] = numfmt.BF16Round(x)
	}
	return v
}
