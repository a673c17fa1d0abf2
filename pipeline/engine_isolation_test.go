package pipeline_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
)

// foreign are bf16 numbers that a session may be given and that must stay in it.
var foreign = []struct {
	name string
	bits []uint16
}{
	{"NaN", []uint16{0x7FC0, 0xFFFF, 0x7F81}},
	{"+Inf", []uint16{0x7F80}},
	{"-Inf", []uint16{0xFF80}},
	{"3e38", []uint16{0x7F62, 0xFF62}},
	{"denormals", []uint16{0x0001, 0x807F}},
	{"all", []uint16{0x7FC0, 0x7F80, 0xFF80, 0x7F62, 0xFF62, 0x0001, 0x3F80}},
}

// shares are the tokens of two sessions in each step: prompts, drafts and decoding, past the window's
// wrap and the first entries of all kinds of layers.
var shares = [][2]int{{30, 20}, {3, 50}, {61, 0}, {1, 40}, {1, 1}, {40, 1}, {5, 20}, {1, 3}, {0, 1}}

// gave is what a session gave and keeps.
type gave struct {
	out   [][]float32
	picks [][]int32
	saved []byte
}

func (a *gave) same(t *testing.T, b *gave, what string) {
	t.Helper()
	for i := range a.out {
		if !slices.Equal(a.out[i], b.out[i]) {
			assert.Fail(t, "other numbers", "%s: result %d", what, i)
			break
		}
	}
	for i := range a.picks {
		if !slices.Equal(a.picks[i], b.picks[i]) {
			assert.Fail(t, "other picks", "%s: result %d", what, i)
			break
		}
	}
	assert.True(t, bytes.Equal(a.saved, b.saved), "%s: other bytes in caches", what)
}

// beside runs a session beside one with foreign numbers, which comes before or behind it, and then
// another in the pages that this one gives back.
func (x *sessions) beside(t *testing.T, o pipeline.EngineOptions, first bool, numbers []uint16) (victim, heir gave) {
	t.Helper()
	o.MaxTokens, o.MaxSessions, o.MaxStep, o.KeepTopK, o.KeepLSE = 200, 2, 64, true, true
	e := x.engine(t, o)
	var list [2]*pipeline.Session
	order := []int{0, 1}
	if !first {
		order = []int{1, 0}
	}
	for _, i := range order {
		list[i] = must[*pipeline.Session](t)(e.Open())
	}
	x.steps(t, e, list, order, numbers, &victim)
	require.NoError(t, list[0].Close())
	list[0] = list[1]
	list[1] = must[*pipeline.Session](t)(e.Open())
	require.NoError(t, list[0].Truncate(0))
	x.steps(t, e, list, []int{1}, nil, &heir)
	return victim, heir
}

func (x *sessions) steps(t *testing.T, e *pipeline.Engine, list [2]*pipeline.Session, order []int, numbers []uint16, g *gave) {
	t.Helper()
	for _, n := range shares {
		var chunks []pipeline.Chunk
		var of []int
		for _, i := range order {
			if n[i] > 0 {
				chunks, of = append(chunks, pipeline.Chunk{Session: list[i], Tokens: n[i]}), append(of, i)
			}
		}
		if len(chunks) == 0 {
			continue
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
		for l := range x.layers {
			for k, c := range chunks {
				at := c.Session.Len()
				var values []uint16
				for i, v := range x.tokens(at, at+c.Tokens) {
					b := numfmt.BF16Encode(v)
					if of[k] == 0 && numbers != nil && (i/7+at)%3 == 0 {
						b = numbers[(i/7)%len(numbers)]
					}
					values = append(values, b)
				}
				require.NoError(t, st.SetInputBF16(l, k, values))
			}
		}
		require.NoError(t, st.Run(t.Context()))
		if k := slices.Index(of, 1); k >= 0 {
			for l := range x.layers {
				out, lse := make([]float32, n[1]*x.cfg.Hidden), make([]float32, n[1]*x.cfg.Heads)
				require.NoError(t, st.ReadOutput(l, k, out))
				require.NoError(t, st.ReadLSE(l, k, lse))
				g.out = append(g.out, out, lse)
				if !st.TopK(l).IsZero() {
					picks := make([]int32, n[1]*e.TopK())
					require.NoError(t, st.ReadTopK(l, k, picks))
					g.picks = append(g.picks, picks)
				}
			}
		}
		require.NoError(t, st.Commit())
	}
	var w bytes.Buffer
	require.NoError(t, list[1].Save(t.Context(), &w))
	g.saved = w.Bytes()
}

func TestIsolation(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	_ = full
	for _, storage := range []fakemodel.Storage{fakemodel.FP8, fakemodel.BF16, fakemodel.NVFP4} {
		x := &sessions{dev: dev}
		c := fakemodel.Config(4, 0, 128)
		c.Hidden, c.ORank = 256, 128
		x.cfg, x.layers = uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: storage})))
		x.hidden = normals(200 * x.cfg.Hidden)
		for k, o := range []pipeline.EngineOptions{
			{}, {Invariant: true}, {QuantiseActivations: true}, {Invariant: true, QuantiseActivations: true},
			{Variant: attention.TwoPassPrefix + attention.VariantBase}, {Hadamard: true}, {Keys: 2},
		} {
			var base [2]*[2]gave
			for i, f := range foreign {
				if storage != fakemodel.FP8 && f.name != "all" {
					continue
				}
				order := (i + k) % 2
				if base[order] == nil {
					base[order] = &[2]gave{}
					base[order][0], base[order][1] = x.beside(t, o, order == 0, nil)
				}
				name := fmt.Sprintf("%s/%v-%v-%s-%v-%v/%v", storage, o.Invariant, o.QuantiseActivations, o.Variant, o.Hadamard, o.Keys, order)
				t.Run(name+"/"+f.name, func(t *testing.T) {
					v, h := x.beside(t, o, order == 0, f.bits)
					base[order][0].same(t, &v, "beside it")
					base[order][1].same(t, &h, "in its pages")
				})
			}
		}
	}
}
