package pipeline_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestSessionsV41 is TestSessions for layers that share entries, picks and candidates, in both
// records. It runs with VKMLA_TEST_FULL=1.
func TestSessionsV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		t.Skip("VKMLA_TEST_FULL is not set")
	}
	for _, of := range []*sessionModel{&v41Sessions, &v41InV4} {
		t.Run(of.name, func(t *testing.T) { testSessions(t, of) })
	}
}

// TestEngineV41Builds holds layers that share in every build of attention and for all numbers of
// heads that have kernels of their own: prompts and single tokens, against the definition. Without
// VKMLA_TEST_FULL=1 it runs where matrices are wanted.
func TestEngineV41Builds(t *testing.T) {
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	if !full && !testkit.LeftOut(opkit.Base) {
		t.Skip("neither VKMLA_TEST_FULL nor VKMLA_TEST_VARIANTS is set")
	}
	const tokens, prefill = 61, 55
	dev := testkit.Device(t)
	for _, heads := range []int{8, 16, 32, 64} {
		if heads > 8 && !full {
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
					if records == model.RecordsV4 && !full {
						t.Skip("VKMLA_TEST_FULL is not set")
					}
					e := engine(t, dev, checkpoint.Config, layers, options{MaxTokens: tokens, MaxStep: 32, KeepTopK: true, Variant: variant,
						Records: records})
					checkSequence(t, checkpoint.Config, records, m.Values, hidden, division(t, e, c.Hidden, prefill, hidden))
				})
			}
		}
	}
}

// TestEngineV41Short holds sequences so short that all entries are picked and are candidates, of
// which none may have been scored. It runs with VKMLA_TEST_FULL=1.
func TestEngineV41Short(t *testing.T) {
	testkit.WithoutMatrices(t)
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		t.Skip("VKMLA_TEST_FULL is not set")
	}
	dev, c := testkit.Device(t), v41Layers()
	m := fake(t, fakemodel.Options{Config: c, Storage: fakemodel.FP8, Seed: 6})
	checkpoint, layers := opened(t, dev, m)
	for _, tokens := range []int{1, c.TopK - 1, c.TopK, c.CandidateBlocks * c.CandidateBlock} {
		hidden := rounded(normals(tokens * c.Hidden))
		for _, records := range []model.Records{model.RecordsV41, model.RecordsV4} {
			e := engine(t, dev, checkpoint.Config, layers, options{MaxTokens: tokens, MaxStep: 4, KeepTopK: true, Records: records})
			checkSequence(t, checkpoint.Config, records, m.Values, hidden, division(t, e, c.Hidden, max(1, tokens*2/3), hidden))
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
