package pipeline_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// Prompts in any cut leave the same bytes in the caches, and the same outputs. Without the option
// they do not, so that these tests can fail.
func TestInvariantCaches(t *testing.T) {
	for _, of := range []*sessionModel{&v4Sessions, &v41Sessions, &v41InV4} {
		t.Run(of.name, func(t *testing.T) {
			if of != &v4Sessions && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			newModel(t, testkit.Device(t), of).invariantCaches(t)
		})
	}
}

func (x *sessions) invariantCaches(t *testing.T) {
	const length = 135 // past the first page of the window and, of V4, the first entry of C128A
	rng := rand.New(rand.NewPCG(5, 5))
	differ := map[bool]int{}
	for _, c := range []struct {
		invariant bool
		steps     []int // the longest of each round; those of 40 are
	}{{true, []int{1, 40, 7}}, {false, []int{40, 7}}} {
		o := sessionOptions()
		o.Invariant = c.invariant
		e := x.engine(t, o)
		var want []byte
		var outputs []pipeline.Appended
		for round, most := range c.steps {
			s := must[*pipeline.Session](t)(e.Open())
			all := make([]pipeline.Appended, len(x.layers))
			for at := 0; at < length; {
				n := min(1+rng.IntN(most), length-at)
				if most == 40 {
					n = min(most, length-at)
				}
				for i, got := range extend(t, s, len(x.layers), x.tokens(at, at+n)) {
					all[i].Out, all[i].TopK = append(all[i].Out, got.Out...), append(all[i].TopK, got.TopK...)
				}
				at += n
			}
			var data bytes.Buffer
			require.NoError(t, s.Save(t.Context(), &data))
			if round == 0 {
				want, outputs = data.Bytes(), all
				continue
			}
			if !bytes.Equal(want, data.Bytes()) {
				differ[c.invariant]++
			}
			for i := range all {
				if !slices.Equal(outputs[i].Out, all[i].Out) || !slices.Equal(outputs[i].TopK, all[i].TopK) {
					differ[c.invariant]++
				}
			}
		}
	}
	assert.Zero(t, differ[true], "caches, outputs and picks that depend on the cut of an invariant engine")
	assert.Positive(t, differ[false], "the same where they may")
}
