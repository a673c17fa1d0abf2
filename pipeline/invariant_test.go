package pipeline_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Bits of a session of an invariant engine depend on its tokens alone: sglang#36174, #37292 and
// vllm#53257 are about engines in which they move with the batch. Engines with steps, sessions and
// memory of different sizes do random things (see sessions.random), and each token has to give what
// it gave in any of them, and in a session alone, token by token.
//
// VKMLA_TEST_FULL=1 does hundreds of steps, with weights of every format and both outputs of FP8.
func TestInvariant(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	operations := 60
	if full {
		operations = 800
	}
	for i, m := range []struct {
		of      *sessionModel
		storage fakemodel.Storage
		output  pipeline.OutputPath
		few     bool // QuantiseActivations
		quick   bool
	}{
		{&v4Sessions, fakemodel.FP8, pipeline.OutputBF16, false, true},
		{&v4Sessions, fakemodel.BF16, pipeline.OutputBF16, false, false},
		{&v4Sessions, fakemodel.NVFP4, pipeline.OutputBF16, false, false},
		{&v4Sessions, fakemodel.FP8, pipeline.OutputFP8, false, false},
		{&v4Sessions, fakemodel.FP8, pipeline.OutputBF16, true, false},
		{&v4Sessions, fakemodel.NVFP4, pipeline.OutputBF16, true, false},
		{&v41Sessions, fakemodel.FP8, pipeline.OutputBF16, false, false},
		{&v41InV4, fakemodel.FP8, pipeline.OutputBF16, false, false},
	} {
		if !full && !m.quick {
			continue
		}
		t.Run(fmt.Sprint(m.of.name, " ", m.storage, " ", m.output, " ", m.few), func(t *testing.T) {
			x := &sessions{dev: dev, of: m.of}
			o := fakemodel.Options{Config: m.of.config(), Storage: m.storage}
			if m.few {
				o.Config.Hidden, o.Config.ORank = 256, 128 // blocks of 128
			}
			x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, o)))
			x.cfg.Records, x.hidden = m.of.records, normals(sessionTokens*x.cfg.Hidden)
			c := x.chance(t, uint64(i))
			e := sessionOptions()
			e.CacheBytes, e.Rewind, e.Invariant, e.Output = 1<<20, 9, true, m.output
			e.QuantiseActivations = m.few
			c.add(e)
			e.Rewind, e.MaxSessions, e.MaxStep, e.LayerByLayer = 130, 7, 70, true
			c.add(e)
			for range operations {
				c.operation(c.rng.IntN(len(c.engines)))
			}
			for k, all := range c.open {
				slices.SortFunc(all, func(a, b *tracked) int { return b.h.length - a.h.length })
				require.NotEmpty(t, all)
				if full || k == 0 {
					c.alone(k, all[0].h)
				}
			}
			t.Log(c.did)
		})
	}
}

// alone takes the tokens of a history through a new engine one by one.
func (c *chance) alone(k int, end *history) {
	var all []*history
	for h := end; h.length > 0; h = h.before {
		all = append(all, h)
	}
	slices.Reverse(all)
	o := c.options[k]
	o.MaxSessions, o.MaxStep, o.LayerByLayer = 1, 1, false
	e := c.engine(c.t, o)
	s := must[*pipeline.Session](c.t)(e.Open())
	for _, h := range all {
		st := must[*pipeline.Step](c.t)(e.Begin(c.t.Context(), pipeline.Chunk{Session: s, Tokens: 1}))
		gave, err := c.through(st, false, [][]int{{h.token}}, -1)
		require.NoError(c.t, err)
		require.NoError(c.t, st.Commit())
		c.is("alone", h, gave[0][0])
	}
	assert.NoError(c.t, e.Close())
}

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

// The two passes plan by the number of tokens, so an invariant engine refuses them before it
// allocates anything.
func TestInvariantVariant(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	o := sessionOptions()
	o.Invariant, o.Variant = true, attention.TwoPassPrefix+attention.VariantBase
	_, err := pipeline.NewEngine(t.Context(), x.dev, x.cfg, x.layers, o)
	assert.ErrorIs(t, err, vk.ErrArgument)
}
