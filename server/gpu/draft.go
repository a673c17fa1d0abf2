package gpu

import (
	"slices"
	"unsafe"

	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// draft holds what a DSpark block has beside its layers, and memory that drafting works with.
type draft struct {
	main           matrix
	mainNorm, norm vk.View
	headHC         hyper
	in, out        matrix

	states  activations // [T, targets*D]: what layers left of tokens
	x       activations // [R, rank]: of the last drafts
	sums    vk.View     // [R, V]: likewise
	drafts  vk.View     // [T] u32
	results vk.View     // mapped: their copy
}

// blocks returns the number of blocks of drafts that T tokens have room for.
func (g *GPU) blocks(T int) int { return max(1, T/g.cfg.DraftBlock) }

// drafts asks for memory with a draft block, if there is one.
func (g *GPU) drafts(l *loader, w *weights.Model) {
	from := w.Draft
	if from == nil {
		return
	}
	d := &draft{}
	g.draft = d
	l.matrix(&d.main, &from.Main)
	l.floats(&d.mainNorm, "norms", from.MainNorm)
	l.floats(&d.norm, "norms", from.Norm)
	l.hyper(&d.headHC, &from.HeadHC)
	l.embedding(&d.in, &from.MarkovIn)
	l.matrix(&d.out, &from.MarkovOut)
	T, R := g.most, g.blocks(g.most)
	l.activations(&d.states, "drafts", T, from.Main.K)
	l.activations(&d.x, "drafts", R, from.MarkovIn.K)
	l.scratch(&d.sums, "drafts", 4*R*g.cfg.Vocab)
	l.scratch(&d.drafts, "drafts", 4*T)
	l.host(&d.results, "drafts", vk.Readback, 4*T)
}

// keepState records state.comp, if drafts are made of what a layer left.
func (g *GPU) keepState(rec *vk.Recorder, T, layer int) error {
	k := slices.Index(g.cfg.DraftTargets, layer)
	if g.draft == nil || k < 0 {
		return nil
	}
	q := g.cfg.Hidden / 8
	push := struct{ quads, at, sQuads uint32 }{size(q), size(k * q), size(quads(g.draft.main.k))}
	return launch(rec, &g.built, "state", [3]uint32{size(T), 1, 1}, 0, &push, []uint32{size(g.cfg.Streams)},
		g.step, g.streams, g.draft.states.plain)
}

// context records what the layers that draft keep of the tokens of a step.
func (g *GPU) context(rec *vk.Recorder, T int, x vk.View) error {
	d := g.draft
	if err := g.whole(rec, T, d.states, reader{&d.main, g.allRows(T)}); err != nil {
		return err
	}
	if err := g.product(rec, &d.main, g.tiles.down, g.allRows(T), d.states, g.routedY); err != nil {
		return err
	}
	push := struct {
		d   uint32
		eps float32
	}{size(g.cfg.Hidden), g.cfg.Eps}
	return launch(rec, &g.built, "context", [3]uint32{size(T), 1, 1}, 0, &push, nil, g.step, g.routedY, d.mainNorm, x)
}

// follow records what follows the last layer of a draft block, up to the drafts in host memory.
func (g *GPU) follow(rec *vk.Recorder, T int, from source) error {
	c, d := g.cfg, g.draft
	if err := g.leave(rec, T, from, &d.headHC); err != nil {
		return err
	}
	if err := g.enter(rec, T, &d.headHC, d.norm, to{view: g.headX.plain, quads: quads(c.Hidden), placed: true}); err != nil {
		return err
	}
	rec.Section(Sections[4])
	if err := g.whole(rec, T, g.headX, reader{&g.head, g.allRows(T)}); err != nil {
		return err
	}
	if err := g.product(rec, &g.head, g.tiles.head, g.allRows(T), g.headX, g.headY); err != nil {
		return err
	}
	R := g.blocks(T)
	each := g.allRows(R)
	each.at = 2
	push := struct{ vocab, block, place, rank, xQuads, f32 uint32 }{size(c.Vocab), size(c.DraftBlock), 0, size(d.in.k),
		size(quads(d.in.k)), flag(d.in.format == f32)}
	for ; ; push.place++ {
		if err := launch(rec, &g.built, "follow", [3]uint32{size(R), 1, 1}, 0, &push, nil,
			g.step, g.headY, d.sums, d.in.codes, d.x.plain, d.drafts); err != nil {
			return err
		}
		if push.place == push.block {
			return rec.Copy(d.results, d.drafts)
		}
		if err := g.whole(rec, R, d.x, reader{&d.out, each}); err != nil {
			return err
		}
		if err := g.product(rec, &d.out, g.tiles.head, each, d.x, d.sums); err != nil {
			return err
		}
	}
}

// Drafts returns what the last step drafted in rows first to first+Config.DraftBlock-1.
func (g *GPU) Drafts(first int) []int32 {
	all := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(g.draft.results.Buffer.Mapped()))), g.most)
	return slices.Clone(all[first:][:g.cfg.DraftBlock])
}
