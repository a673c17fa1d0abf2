package pipeline_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

type foreignNumbers struct {
	name    string
	numbers []uint16
}

// foreign are bf16 numbers that a session may be given and that must stay in it.
var foreign = []foreignNumbers{
	{"all", []uint16{0x7FC0, 0x7F80, 0xFF80, 0x7F62, 0xFF62, 0x0001, 0x3F80}},
	{"NaN", []uint16{0x7FC0, 0xFFFF, 0x7F81}},
	{"+Inf", []uint16{0x7F80}},
	{"-Inf", []uint16{0xFF80}},
	{"3e38", []uint16{0x7F62, 0xFF62}},
	{"subnormal", []uint16{0x0001, 0x807F}},
}

// besideSteps are the tokens of a session with foreign numbers and of the one beside it: prompts,
// drafts and decoding, past two pages of the window and the first entries of all kinds of layers.
// manySteps are as long of both sessions; fewSteps are for matrices, which a processor emulates.
var (
	besideSteps = [][2]int{{4, 60}, {3, 61}, {1, 10}, {1, 1}, {5, 3}, {0, 1}}
	fewSteps    = [][2]int{{4, 12}, {3, 9}, {1, 10}, {1, 1}, {5, 3}, {0, 1}}
	manySteps   = [][2]int{{30, 30}, {3, 60}, {60, 0}, {1, 40}, {1, 1}, {40, 1}, {1, 3}, {0, 1}}
)

// TestIsolation has a session beside one with numbers that are not finite, too large or subnormal,
// before it and after it, and then another in the pages that this one gives back. Neither may
// differ in a bit from a session beside ordinary numbers.
//
// VKMLA_TEST_FULL=1 takes weights of every format, every option that other kernels run with, and
// each number by itself.
func TestIsolation(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	base, steps := opkit.Base, besideSteps
	for _, v := range testkit.DecodeVariants(t, dev, 4) {
		if testkit.LeftOut(base) {
			base, steps = v, fewSteps
		}
	}
	for _, m := range []struct {
		of      *sessionModel
		storage fakemodel.Storage
	}{{&v4Sessions, fakemodel.FP8}, {&v4Sessions, fakemodel.BF16}, {&v4Sessions, fakemodel.NVFP4}, {&v41Sessions, fakemodel.FP8}} {
		storage, first := m.storage, m.of == &v4Sessions && m.storage == fakemodel.FP8
		numbers := foreign
		if !full && !first {
			continue
		}
		if !full || !first {
			numbers = foreign[:1]
		}
		x := &sessions{dev: dev, of: m.of}
		c := m.of.config()
		if m.of == &v4Sessions {
			c.Hidden, c.ORank = 256, 128 // blocks of 128, for QuantiseActivations
		}
		x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: storage})))
		x.hidden = normals(200 * x.cfg.Hidden)
		for _, c := range []struct {
			name   string
			o      pipeline.EngineOptions
			gather uint64
			quick  bool
		}{
			{"default", pipeline.EngineOptions{Variant: base}, 0, false},
			{"invariant", pipeline.EngineOptions{Variant: base, Invariant: true}, 0, false},
			{"activations", pipeline.EngineOptions{Variant: base, QuantiseActivations: true}, 0, false},
			{"invariant, activations", pipeline.EngineOptions{Variant: base, Invariant: true, QuantiseActivations: true}, 0, true},
			{"gathered rows", pipeline.EngineOptions{Variant: opkit.TwoPass + base}, 0, false},
			{"gathered rows in pieces", pipeline.EngineOptions{Variant: opkit.TwoPass + base}, 400 << 10, false},
			{"mxfp4 keys", pipeline.EngineOptions{Variant: base, Keys: cache.IndexKeyMXFP4}, 0, false},
		} {
			if !full && !c.quick || m.of != &v4Sessions && (c.o.QuantiseActivations || c.o.Keys == cache.IndexKeyMXFP4) {
				continue
			}
			t.Run(fmt.Sprint(m.of.name, ", ", storage, ", ", c.name), func(t *testing.T) {
				pipeline.GatherIn(t, c.gather)
				x := *x
				x.cfg.Hadamard = c.o.Keys == cache.IndexKeyMXFP4
				if full {
					x.isolation(t, c.o, numbers, [][]int{{0, 1}, {1, 0}}, manySteps)
				} else {
					x.isolation(t, c.o, numbers, [][]int{{0, 1}}, steps)
				}
			})
		}
	}
}

func (x *sessions) isolation(t *testing.T, o pipeline.EngineOptions, numbers []foreignNumbers, orders [][]int, steps [][2]int) {
	var invariant *gave
	for _, order := range orders {
		clean, heir := x.beside(t, o, order, steps, nil)
		if o.Invariant && invariant != nil {
			clean.same(t, "in another order", invariant)
		}
		invariant = clean
		for _, f := range numbers {
			a, b := x.beside(t, o, order, steps, f.numbers)
			a.same(t, fmt.Sprint("beside ", f.name, ", order ", order), clean)
			b.same(t, fmt.Sprint("in pages of ", f.name), heir)
		}
	}
}

// gave holds a session's outputs, step by step, and what it keeps.
type gave struct {
	out   [][]float32
	picks [][]int32
	saved []byte
}

func (a *gave) same(t *testing.T, what string, b *gave) {
	t.Helper()
	require.NotEmpty(t, a.out)
	assert.True(t, slices.EqualFunc(a.out, b.out, slices.Equal), "%s: other outputs", what)
	assert.True(t, slices.EqualFunc(a.picks, b.picks, slices.Equal), "%s: other picks", what)
	assert.True(t, bytes.Equal(a.saved, b.saved), "%s: other bytes in caches", what)
	for _, out := range a.out {
		for _, v := range out {
			require.False(t, v != v, "%s: NaN", what)
		}
	}
}

// beside runs two sessions, opened in an order: number 0 with foreign numbers, if any, and number
// 1, whose results it returns, with those of a third in the pages of number 0.
func (x *sessions) beside(t *testing.T, o pipeline.EngineOptions, order []int, steps [][2]int, numbers []uint16) (victim, heir *gave) {
	t.Helper()
	o.MaxTokens, o.MaxSessions, o.MaxStep, o.KeepTopK = 200, 2, 64, true
	e := x.engine(t, o)
	var list [2]*pipeline.Session
	for _, i := range order {
		list[i] = must[*pipeline.Session](t)(e.Open())
	}
	victim, heir = &gave{}, &gave{}
	for _, n := range steps {
		x.besideStep(t, e, list, order, n, numbers, victim)
	}
	require.NoError(t, list[0].Close())
	list[0], list[1] = nil, must[*pipeline.Session](t)(e.Open())
	for _, n := range steps[:2] {
		x.besideStep(t, e, list, []int{1}, n, nil, heir)
	}
	require.NoError(t, e.Close())
	return victim, heir
}

// besideStep runs a step and notes what session 1 gave in it and keeps.
func (x *sessions) besideStep(t *testing.T, e *pipeline.Engine, list [2]*pipeline.Session, order []int, tokens [2]int,
	numbers []uint16, g *gave) {
	t.Helper()
	var chunks []pipeline.Chunk
	own := -1
	for _, i := range order {
		if tokens[i] == 0 {
			continue
		}
		if i == 1 {
			own = len(chunks)
		}
		chunks = append(chunks, pipeline.Chunk{Session: list[i], Tokens: tokens[i]})
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
	for l := range x.layers {
		for k, c := range chunks {
			at := c.Session.Len()
			values := make([]uint16, c.Tokens*x.cfg.Hidden)
			for i, v := range x.tokens(at, at+c.Tokens) {
				values[i] = numfmt.BF16Encode(v)
				if k != own && numbers != nil && (i/7+at)%3 == 0 {
					values[i] = numbers[i/7%len(numbers)]
				}
			}
			require.NoError(t, setBits(st, l, k, values))
		}
	}
	require.NoError(t, st.Run(t.Context()))
	for l := range x.layers {
		if own < 0 {
			break
		}
		out := make([]float32, tokens[1]*x.cfg.Hidden)
		require.NoError(t, st.ReadOutput(l, own, out))
		g.out = append(g.out, out)
		if !st.TopK(l).IsZero() {
			picks := make([]int32, tokens[1]*e.TopK())
			require.NoError(t, st.ReadTopK(l, own, picks))
			g.picks = append(g.picks, picks)
		}
	}
	require.NoError(t, st.Commit())
	var w bytes.Buffer
	require.NoError(t, list[1].Save(t.Context(), &w))
	g.saved = w.Bytes()
}

// TestNaNBehindFinite has tokens of NaN after finite ones: a maximum that no score stays below may
// not keep a kernel from its end.
func TestNaNBehindFinite(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	for _, v := range testkit.DecodeVariants(t, dev, cfg.Heads) {
		if testkit.LeftOut(v) {
			continue
		}
		e := engine(t, dev, cfg, layers, options{MaxTokens: 60, MaxStep: 8, Variant: v})
		s := must[*pipeline.Session](t)(e.Open())
		for _, x := range []float32{1, float32(math.NaN())} {
			_, err := s.Append(t.Context(), [][]float32{filled(8*cfg.Hidden, x)})
			require.NoError(t, err, v)
		}
	}
}
