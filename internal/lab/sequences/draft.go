package sequences

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// draftMistake names a mistake that others made with the draft block of DeepSeek-V4.
type draftMistake int

const (
	statesBefore draftMistake = iota + 1 // what target layers get, as in DeepSeek-V4.1, not what they leave
	ownKeys                              // keys of the context are of what goes into the draft, as in MTP
	causal                               // a token of a block does not see those after it
)

// draftWithin bounds how far a draft block is from its definition, which rounds only what is kept,
// by the length of its outputs. It is 0.017 to 0.028, and with any of the mistakes 0.36 or more.
const draftWithin = 0.06

// draftedModel is a DeepSeek-V4 with a draft block, and what its tokens and blocks are made of.
type draftedModel struct {
	l             *Lab
	cfg           model.Config
	m             *fakemodel.Model
	layers        []*model.DeviceLayer
	project, norm []float32 // main_proj and main_norm
	tokens, block []float32 // hidden states that go into the first layer, and into the block's
	steps         []int     // tokens of each step, after which the block is drafted
}

// draftBlock runs all layers of a model of random weights, each on what the one before left, the
// draft block on the states of its target layers, and compares the block's layers with the
// definition.
func draftBlock(p *player) {
	c := fakemodel.Config(0, 4, 128)
	c.Heads, c.TopK, c.Window = 2, 64, 40 // so few tokens have no more entries
	c = c.WithDrafts(2)
	c.DraftTargets = []int{1, 2}
	m, err := fakemodel.New(fakemodel.Options{Config: c, Storage: fakemodel.FP8})
	if p.do(err); !p.ok() {
		return
	}
	rng := rand.New(rand.NewPCG(3, 46))
	numbers := func(n int) (v []float32) {
		for range n {
			v = append(v, numfmt.BF16Round(float32(rng.NormFloat64())))
		}
		return v
	}
	x := &draftedModel{l: p.l, m: m, steps: []int{3, 59, 1, 64, 5}, block: numbers(c.DraftBlock * c.Hidden)}
	x.project, x.norm = numbers(c.Hidden*len(c.DraftTargets)*c.Hidden), numbers(c.Hidden)
	for _, n := range x.steps {
		x.tokens = append(x.tokens, numbers(n*c.Hidden)...)
	}
	if x.cfg, x.layers, err = upload(p.ctx, p.l.dev, m, true); err == nil {
		err = errors.Join(x.run(p.ctx), closed(x.layers))
	}
	p.do(err)
}

// main returns the number of layers that do not draft.
func (x *draftedModel) main() int {
	return slices.IndexFunc(x.cfg.Layers, func(l model.Layer) bool { return l.Block })
}

// run compares what layers of the block give after each step.
func (x *draftedModel) run(ctx context.Context) error {
	sizes := []int{x.cfg.DraftBlock}
	if x.l.spoil.draft == causal { // with either mask the last token of a block sees the same
		for n := range x.cfg.DraftBlock {
			sizes = append(sizes[:n], n+1)
		}
	}
	want := x.defined()
	got := make([][]float32, len(want))
	for _, size := range sizes {
		all, err := x.drafted(ctx, size)
		if err != nil {
			return err
		}
		for i, out := range all {
			got[i] = append(got[i], out[len(got[i]):]...)
		}
	}
	for i := range want {
		far := distance(got[i], want[i])
		if x.l.o.Log("output %d of a draft block: %.4f", i, far); !(far < draftWithin) {
			return fmt.Errorf("output %d of a draft block: %.4f from its definition, want less than %g: %w", i, far, draftWithin, errResult)
		}
	}
	return nil
}

// drafted returns what an engine's layers make of the first tokens of the block, after each step.
func (x *draftedModel) drafted(ctx context.Context, size int) (outs [][]float32, err error) {
	cfg := x.cfg
	cfg.DraftBlock = size
	o := pipeline.EngineOptions{MaxTokens: 300, MaxStep: 64, LayerByLayer: true, Variant: x.l.o.Engines.Variant}
	e, err := pipeline.NewEngine(ctx, x.l.dev, cfg, x.layers, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	s, err := e.Open()
	if err != nil {
		return nil, err
	}
	for _, n := range x.steps {
		at := s.Len() * cfg.Hidden
		if err := x.step(ctx, e, s, x.tokens[at:at+n*cfg.Hidden]); err != nil {
			return nil, err
		}
		some, err := x.draft(ctx, e, s, x.block[:size*cfg.Hidden])
		if err != nil {
			return nil, err
		}
		outs = append(outs, some...)
	}
	return outs, nil
}

// step takes tokens through all layers. Those of the block get what target layers leave.
func (x *draftedModel) step(ctx context.Context, e *pipeline.Engine, s *pipeline.Session, hidden []float32) error {
	st, err := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: len(hidden) / x.cfg.Hidden})
	if err != nil {
		return err
	}
	defer st.Abort()
	first, main := hidden, x.main()
	var states [][][]float64
	for i := range main {
		before := hidden
		out := make([]float32, len(hidden))
		if err := through(ctx, st, i, hidden, out); err != nil {
			return err
		}
		hidden = sum(hidden, out)
		if state := hidden; slices.Contains(x.cfg.DraftTargets, i) {
			if x.l.spoil.draft == statesBefore {
				state = before
			}
			states = append(states, x.wide(state))
		}
	}
	hidden = narrow(formula.States(x.cfg.Eps, x.project, x.norm, states...))
	if x.l.spoil.draft == ownKeys {
		hidden = first
	}
	for i := main; i < len(x.cfg.Layers); i++ {
		if err := through(ctx, st, i, hidden, nil); err != nil {
			return err
		}
	}
	return st.Commit()
}

// draft takes a block through the layers that draft, and returns what each gives.
func (x *draftedModel) draft(ctx context.Context, e *pipeline.Engine, s *pipeline.Session, hidden []float32) (outs [][]float32, err error) {
	st, err := e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: len(hidden) / x.cfg.Hidden, Draft: true})
	if err != nil {
		return nil, err
	}
	defer st.Abort()
	for i := x.main(); i < len(x.cfg.Layers); i++ {
		out := make([]float32, len(hidden))
		if err := through(ctx, st, i, hidden, out); err != nil {
			return nil, err
		}
		outs, hidden = append(outs, out), sum(hidden, out)
	}
	return outs, st.Commit()
}

// through runs a layer; nil: what it gives is not read.
func through(ctx context.Context, st *pipeline.Step, layer int, hidden, out []float32) error {
	err := st.SetInput(layer, 0, hidden)
	if err == nil {
		err = st.RunLayer(ctx, layer)
	}
	if err == nil && out != nil {
		err = st.ReadOutput(layer, 0, out)
	}
	return err
}

// defined returns what the definition gives for what drafted does.
func (x *draftedModel) defined() (outs [][]float32) {
	c, main, hidden := x.cfg, x.main(), x.tokens
	kept := func(product string, v []float64) []float64 {
		if strings.HasSuffix(product, ".cache") {
			v = slices.Clone(v)
			asKept(cache.RecordV4, v)
		}
		return v
	}
	var states [][][]float64
	for i := range main {
		hidden = sum(hidden, narrow(formula.Run(c, i, x.m.Values, kept, hidden).Out))
		if slices.Contains(c.DraftTargets, i) {
			states = append(states, x.wide(hidden))
		}
	}
	context, n := narrow(formula.States(c.Eps, x.project, x.norm, states...)), 0
	for _, tokens := range x.steps {
		n += tokens
		block := x.block
		for i := main; i < len(c.Layers); i++ {
			out := narrow(formula.Draft(c, i, x.m.Values, kept, context[:n*c.Hidden], block))
			outs, block = append(outs, out), sum(block, out)
		}
	}
	return outs
}

// sum adds what a layer gave to what it got, as bf16 numbers.
func sum(hidden, out []float32) []float32 {
	y := make([]float32, len(hidden))
	for i, v := range hidden {
		y[i] = numfmt.BF16Round(v + out[i])
	}
	return y
}

// wide returns hidden states by token.
func (x *draftedModel) wide(hidden []float32) (rows [][]float64) {
	for row := range slices.Chunk(hidden, x.cfg.Hidden) {
		var y []float64
		for _, v := range row {
			y = append(y, float64(v))
		}
		rows = append(rows, y)
	}
	return rows
}

func narrow(rows [][]float64) (hidden []float32) {
	for _, v := range slices.Concat(rows...) {
		hidden = append(hidden, float32(v))
	}
	return hidden
}
