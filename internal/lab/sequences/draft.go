package sequences

import (
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// draftWithin bounds how far a draft block is from its definition, which rounds only what is kept,
// by the length of its outputs. It is 0.011 to 0.016, and with a causal mask 0.5 or more.
const draftWithin = 0.06

// draftBlock gives layers of random weights that draft the states of a context in steps, drafts a
// block after each, and compares the block's layers with the definition.
func draftBlock(p *player) {
	c := fakemodel.Config(0).WithDrafts(2)
	c.Heads, c.Window = 2, 40
	p.weights(fakemodel.FP8, c, func(p *player, m *fakemodel.Model) {
		x := p.open(p.script(1))
		for _, n := range []int{3, 59, 1, 64, 5} {
			var given []gave
			p.take(x, n, n)
			p.step(chunk{session: x, n: c.DraftBlock, draft: true, keep: &given})
			for i, g := range given {
				layer, block := p.l.main()+i, x.sc.inputs(p.l.main()+i, x.len(), x.len()+c.DraftBlock)
				want := p.l.defined(m, layer, x.sc.inputs(layer, 0, x.len()), block)
				far := formula.Apart(g.out, want)
				if p.l.o.Log("layer %d of a draft block after %d tokens: %.4f", i, x.len(), far); !(far < draftWithin) {
					p.do(fmt.Errorf("layer %d of a draft block after %d tokens: %.4f from its definition, want less than %g: %w",
						i, x.len(), far, draftWithin, errResult))
				}
			}
		}
	})
}

// defined returns what a layer makes of a block after a context by the definition, which has a
// mistake where tests want one: a token does not see those after it.
func (l *Lab) defined(m *fakemodel.Model, layer int, context, block []float32) (out []float32) {
	q := formula.NewSequence(l.cfg, formula.Numerics{Exact: true, Records: model.RecordsV4}, m.Values)
	q.Context(layer, context)
	of := func(n int) []formula.Rounded {
		return q.Draft(layer, len(context)/l.cfg.Hidden-1, block[:n*l.cfg.Hidden])
	}
	rows := of(l.cfg.DraftBlock)
	for i := range rows {
		if l.spoil.causal {
			rows[i] = of(i + 1)[i]
		}
		out = append(out, rows[i].Out...)
	}
	return out
}

// weights plays with a lab of random weights in a format, and an engine of it.
func (p *player) weights(s fakemodel.Storage, c model.Config, play func(p *player, m *fakemodel.Model)) {
	if !p.ok() {
		return
	}
	m := fakemodel.New(fakemodel.Options{Config: c, Storage: s})
	l, err := Open(p.ctx, p.l.dev, Options{Model: p.l.o.Model, Random: m, Engines: p.l.o.Engines, Log: p.l.o.Log})
	if p.do(err); err != nil {
		return
	}
	l.spoil = p.l.spoil
	inner := &player{l: l, ctx: p.ctx, rng: p.rng}
	inner.in(pipeline.EngineOptions{MaxStep: 64}, func(p *player) { play(p, m) })
	p.do(errors.Join(inner.err, l.Close()))
}
