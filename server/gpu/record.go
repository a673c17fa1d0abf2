package gpu

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Sections lists the parts of a step beside attention, as they are timed.
var Sections = []string{"streams", "shared expert, router", "experts, up", "experts, down", "head"}

// Between is pipeline.EngineOptions.Between: it records what is in front of a layer of attention,
// or after the last one.
func (g *GPU) Between(rec *vk.Recorder, at pipeline.Between) error {
	T, from := at.Tokens, source{kind: fromAttention, view: at.Output.View()}
	first, end := 0, g.own
	if at.Draft {
		first, end = g.own, len(g.layers)
	}
	switch {
	case T > g.most:
		return fmt.Errorf("gpu: a step of %d tokens, want at most %d", T, g.most)
	case at.Layer > end: // of the context the layers that draft keep what the first of them was given
		return nil
	case at.Layer == first:
		if err := g.begin(rec, at.QueryStart.View()); err != nil {
			return err
		}
		from = g.embedding()
	default:
		l := &g.layers[at.Layer-1]
		if err := g.leave(rec, T, from, &l.ffnHC); err != nil {
			return err
		}
		if err := g.enter(rec, T, &l.ffnHC, l.ffnNorm, to{view: g.x.plain, quads: quads(g.cfg.Hidden), placed: true}); err != nil {
			return err
		}
		if err := g.experts(rec, T, l); err != nil {
			return err
		}
		from = source{kind: fromExperts}
	}
	if at.Layer == end {
		return g.end(rec, at, from)
	}
	l := &g.layers[at.Layer]
	if err := g.leave(rec, T, from, &l.attnHC); err != nil {
		return err
	}
	if err := g.keepState(rec, T, at.Layer-1); err != nil {
		return err
	}
	return g.enter(rec, T, &l.attnHC, l.attnNorm, to{view: at.Input.View(), quads: g.cfg.Hidden / 8})
}

// end records what follows the last layer that runs.
func (g *GPU) end(rec *vk.Recorder, at pipeline.Between, from source) error {
	if at.Draft {
		return g.follow(rec, at.Tokens, from)
	}
	if err := g.finish(rec, at.Tokens, from); err != nil || g.draft == nil {
		return err
	}
	if err := g.keepState(rec, at.Tokens, at.Layer-1); err != nil {
		return err
	}
	return g.context(rec, at.Tokens, at.Input.View())
}

// begin brings to the device what the host says of the step. How many tokens it has is the engine's
// to say, which also takes steps of its own.
func (g *GPU) begin(rec *vk.Recorder, queryStart vk.View) error {
	if err := rec.Copy(g.step, g.host); err != nil {
		return err
	}
	last := queryStart
	last.Offset, last.Size = last.Offset+last.Size-4, 4
	return rec.Copy(g.step.Buffer.View(g.step.Offset, 4), last)
}

// Kinds of sources, as leave.comp numbers them.
const (
	fromEmbedding = iota
	fromEmbeddingF32
	fromAttention
	fromExperts
)

// source describes the values that are mixed into the streams.
type source struct {
	kind uint32
	view vk.View // but for experts
}

func (g *GPU) embedding() source {
	if g.embed.format == f32 {
		return source{fromEmbeddingF32, g.embed.codes}
	}
	return source{fromEmbedding, g.embed.codes}
}

// leave records leave.comp, up to the products of the next hyper-connection.
func (g *GPU) leave(rec *vk.Recorder, T int, from source, next *hyper) error {
	c, tokens := g.cfg, min(T, mixTokens)
	rec.Section(Sections[0])
	push := struct{ d, from uint32 }{size(c.Hidden), from.kind}
	return launch(rec, &g.built, "leave", [3]uint32{size(opkit.CeilDiv(c.Hidden, slice)), size(opkit.CeilDiv(T, tokens)), 1},
		float64(T*next.rows*c.Streams*c.Hidden), &push, []uint32{size(c.Streams), size(next.rows), size(tokens), size(c.PerToken)},
		g.step, from.view, g.routedY, g.sharedY, g.mix, g.streams, next.fn, g.parts)
}

// to describes the place of a sub-layer's input.
type to struct {
	view   vk.View
	quads  int  // of a row
	placed bool // as products read it
	wanted bool // only the rows that are wanted
}

// enter records enter.comp.
func (g *GPU) enter(rec *vk.Recorder, T int, h *hyper, norm vk.View, x to) error {
	c, groups := g.cfg, uint32(2)
	push := struct {
		slices, steps  uint32
		eps, hyperEps  float32
		xQuads, placed uint32
		wantedAt       uint32
	}{size(opkit.CeilDiv(c.Hidden, slice)), size(c.SinkhornSteps), c.Eps, c.HyperEps, size(x.quads), flag(x.placed), 0}
	if x.wanted {
		push.wantedAt, groups = size(g.wantedAt()), 1
	}
	return launch(rec, &g.built, "enter", [3]uint32{size(T), groups, 1}, 0, &push, []uint32{size(c.Streams), size(h.rows), size(c.Hidden)},
		g.step, g.parts, h.base, g.streams, norm, g.mix, x.view)
}

// rows says which rows a product has.
type rows struct {
	routed uint32 // as lib/rows.glsl has it
	at     int    // in step: how many; unless routed
	most   int    // tokens that share weights
	items  int    // groups of them, at most
	turns  int    // of these, how many run side by side
	full   bool   // groups nearly always have that many tokens
	tiles  bool   // they share weights in shared memory
	cm     bool   // and matrices multiply
}

// groups returns the workgroups of a product of n rows, ofTeam for each team. A tile has
// rows of all matrices.
func (r rows) groups(n, ofTeam, matrices int) [3]uint32 {
	each := teams * ofTeam
	switch {
	case r.cm:
		each = matrixRows / matrices
	case r.tiles:
		each = tileRows / matrices
	}
	return [3]uint32{size(opkit.CeilDiv(n, each)), size(r.turns), 1}
}

// ofTeam returns the rows that a team has of a product's matrix, where it may have n. Q4_K, whose
// chunks have 32 columns and not 64, is faster with half of them; Q8_0 has chunks like these.
func (m *matrix) ofTeam(n int) int {
	if m.format == q8_0 || m.format == q4K {
		return max(n/2, 1)
	}
	return n
}

// kernel returns the name of a product's kernel.
func (r rows) kernel(name string) string {
	switch {
	case r.cm:
		return name + "_cm"
	case r.tiles:
		return name + "_tiles"
	}
	return name
}

// constants are those of a product of a matrix.
func (g *GPU) constants(m *matrix, ofTeam int, r rows) []uint32 {
	if r.cm {
		return g.matrices.constants(m, g.halves, r.most)
	}
	return []uint32{uint32(m.format), g.halves, size(ofTeam), size(r.most), flag(r.full), flag(m.k%128 == 0)}
}

// activations are rows that products read: bf16 by place, and whole numbers for formats that take
// these.
type activations struct{ plain, whole vk.View }

// of returns the form of rows of k numbers that a product takes, and the quads of one.
func (a activations) of(m *matrix, r rows) (vk.View, uint32) {
	if m.format.whole() && !r.cm {
		return a.whole, size(wholeQuads(m.k))
	}
	return a.plain, size(quads(m.k))
}

// reader is a product that reads activations.
type reader struct {
	m *matrix
	r rows
}

// whole records whole.comp for T rows of activations, if one of their readers takes whole numbers.
func (g *GPU) whole(rec *vk.Recorder, T int, x activations, readers ...reader) error {
	for _, p := range readers {
		if !p.m.format.whole() || p.r.cm {
			continue
		}
		push := struct{ k, xQuads, qQuads uint32 }{size(p.m.k), size(quads(p.m.k)), size(wholeQuads(p.m.k))}
		return launch(rec, &g.built, "whole", [3]uint32{size(T), size(opkit.CeilDiv(p.m.k, 1024)), 1}, 0, &push, nil, x.plain, x.whole)
	}
	return nil
}

// product records product.comp: y from x.
func (g *GPU) product(rec *vk.Recorder, m *matrix, ofTeam int, r rows, x activations, y vk.View) error {
	from, quads := x.of(m, r)
	ofTeam = m.ofTeam(ofTeam)
	push := struct{ n, k, xQuads, side, routed, rowsAt, orderAt, stride uint32 }{size(m.n), size(m.k), quads, size(m.side),
		r.routed, size(r.at), size(g.orderAt()), size(r.turns)}
	plan := g.step
	if r.routed > 0 {
		plan = g.plan
	}
	return launch(rec, &g.built, r.kernel("product"), r.groups(m.n, ofTeam, 1),
		float64(r.items*r.most)*float64(m.n*m.k), &push, g.constants(m, ofTeam, r),
		plan, m.codes, m.scale, from, y)
}

// up records up.comp: h from x.
func (g *GPU) up(rec *vk.Recorder, w1, w3 *matrix, r rows, h vk.View) error {
	from, xQuads := g.x.of(w1, r)
	push := struct {
		n, k, xQuads, side, routed, rowsAt, orderAt, stride, per, hQuads uint32
		limit                                                            float32
	}{size(w1.n), size(w1.k), xQuads, size(w1.side), r.routed, size(r.at), size(g.orderAt()), size(r.turns),
		1, size(quads(w1.n)), g.cfg.Limit}
	plan, v := g.step, vk.View{} // the shared expert waits for no choice
	if r.routed > 0 {
		plan, v, push.per = g.plan, g.v, size(g.cfg.PerToken)
	}
	return launch(rec, &g.built, r.kernel("up"), r.groups(w1.n, g.tiles.up, 2),
		2*float64(r.items*r.most)*float64(w1.n*w1.k), &push, g.constants(w1, g.tiles.up, r),
		plan, w1.codes, w1.scale, w3.codes, w3.scale, from, v, h)
}

// allRows are products of all of T tokens.
func (g *GPU) allRows(T int) rows {
	all := rows{most: g.tiles.tokensOf(T), full: true}
	if tile := g.tileOf(T); tile > 0 {
		all.most, all.tiles = tile, true
	}
	all.items = opkit.CeilDiv(T, all.most)
	all.turns = all.items
	return all
}

// sharedRows are allRows of the shared expert, which matrices multiply instead of tiles.
func (g *GPU) sharedRows(T int, l *layer) rows {
	if g.tileOf(T) == 0 || g.matrices == nil || !l.sharedFit {
		return g.allRows(T)
	}
	r := rows{cm: true, most: g.matrices.tokensOf(T)}
	r.items = opkit.CeilDiv(T, r.most)
	r.turns = r.items
	return r
}

// routedRows are products of the pairs of T tokens and their experts.
func (g *GPU) routedRows(T int, l *layer) (r rows) {
	c := g.cfg
	pairs := T * c.PerToken
	if T == 1 {
		return rows{routed: 2, most: 1, items: c.PerToken, turns: c.PerToken, full: T*c.PerToken >= c.Experts}
	}
	r = rows{routed: 1, most: g.tiles.pairsOf(T, c.PerToken, c.Experts)}
	r.full = pairs >= c.Experts*r.most
	if g.tiles.routed > 0 && pairs >= c.Experts*g.tiles.routed && l.w1.format.whole() && l.w2.format.whole() {
		r.tiles, r.most = true, g.tileMost()
	}
	if g.matrices != nil && l.routedFit && pairs >= c.Experts*g.tiles.matrices {
		r.cm, r.tiles, r.most = true, false, g.matrices.tokensOf(pairs/c.Experts)
	}
	r.items = min(c.Experts, pairs) + pairs/r.most
	r.turns = r.items
	return r
}

// experts records the sub-layer up to what each expert gives. What the shared one does needs no
// router: its first half runs beside it, its second half beside that of the routed ones.
func (g *GPU) experts(rec *vk.Recorder, T int, l *layer) error {
	all, shared, routed := g.allRows(T), g.sharedRows(T, l), g.routedRows(T, l)
	for _, record := range []func() error{
		func() error { rec.Section(Sections[1]); return nil },
		func() error {
			return g.whole(rec, T, g.x, reader{&l.gate, all}, reader{&l.shared1, shared}, reader{&l.w1, routed})
		},
		func() error { return g.product(rec, &l.gate, g.tiles.gate, all, g.x, g.logits) },
		func() error { return g.up(rec, &l.shared1, &l.shared3, shared, g.sharedH.plain) },
		func() error { return g.choose(rec, T, l) },
		func() error { return g.group(rec, T, routed.most) },
		func() error { return g.whole(rec, T, g.sharedH, reader{&l.shared2, shared}) },
		func() error { rec.Section(Sections[2]); return nil },
		func() error { return g.up(rec, &l.w1, &l.w3, routed, g.routedH.plain) },
		func() error { rec.Section(Sections[3]); return nil },
		func() error { return g.whole(rec, T*g.cfg.PerToken, g.routedH, reader{&l.w2, routed}) },
		func() error { return g.product(rec, &l.w2, g.tiles.down, routed, g.routedH, g.routedY) },
		func() error { rec.Section(Sections[1]); return nil },
		func() error { return g.product(rec, &l.shared2, g.tiles.down, shared, g.sharedH, g.sharedY) },
	} {
		if err := record(); err != nil {
			return err
		}
	}
	return nil
}

var scorings = map[string]uint32{"sqrtsoftplus": 0, "sigmoid": 1, "softmax": 2}

// choose records choose.comp: each token's experts and their weights.
func (g *GPU) choose(rec *vk.Recorder, T int, l *layer) error {
	c := g.cfg
	push := struct {
		hash, normalise uint32
		factor          float32
		alone           uint32
	}{flag(l.bias.IsZero()), flag(c.Normalise), c.Factor, flag(T == 1)}
	return launch(rec, &g.built, "choose", [3]uint32{size(T), 1, 1}, 0, &push,
		[]uint32{size(c.Experts), size(c.PerToken), scorings[c.Scoring]}, g.step, g.logits, l.bias, l.table, g.chosen, g.v, g.plan)
}

// group records group.comp: the pairs by expert. A token alone has none to be ordered.
func (g *GPU) group(rec *vk.Recorder, T, most int) error {
	if T == 1 {
		return nil
	}
	push := struct{ per, most, orderAt uint32 }{size(g.cfg.PerToken), size(most), size(g.orderAt())}
	return launch(rec, &g.built, "group", [3]uint32{1, 1, 1}, 0, &push, []uint32{size(opkit.CeilDiv(g.cfg.Experts, 256))},
		g.step, g.chosen, g.plan)
}

// finish records what follows the last layer, up to the logits in host memory.
func (g *GPU) finish(rec *vk.Recorder, T int, from source) error {
	c := g.cfg
	if err := g.leave(rec, T, from, &g.headHC); err != nil {
		return err
	}
	if err := g.enter(rec, T, &g.headHC, g.norm, to{view: g.headX.plain, quads: quads(c.Hidden), placed: true, wanted: true}); err != nil {
		return err
	}
	// Of the tokens of a prompt few are wanted: they take turns.
	rec.Section(Sections[4])
	wanted := rows{full: true, at: 1, most: g.tiles.tokensOf(T), turns: 1}
	wanted.items = opkit.CeilDiv(T, wanted.most)
	if err := g.whole(rec, T, g.headX, reader{&g.head, wanted}); err != nil {
		return err
	}
	if err := g.product(rec, &g.head, g.tiles.head, wanted, g.headX, g.headY); err != nil {
		return err
	}
	groups := min(opkit.CeilDiv(T*c.Vocab, 256), 1024)
	push := struct{ width, stride uint32 }{size(c.Vocab), size(groups)}
	return launch(rec, &g.built, "send", [3]uint32{size(groups), 1, 1}, 0, &push, nil, g.step, g.headY, g.results)
}
