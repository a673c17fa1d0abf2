package pipeline

import (
	"fmt"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// commands returns the commands for a key, for a step with so much work. They are recorded if there
// are none, if they have to be divided into other submissions, and once workgroups starved.
func (b *stepSize) commands(key commandKey, work float64) (*stepCommands, error) {
	old, plain := b.recorded[key], b.e.dev.Starved()
	like := old
	if old != nil && old.plain != plain {
		like = nil // it has other operations
	} else if old != nil && old.suits(b.e.sizes.budget, work) {
		return old, nil
	}
	began := time.Now()
	rec, err := b.e.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := rec.Prove(); err != nil {
		return nil, err
	}
	fresh, err := b.e.divide(rec, like)
	if err == nil {
		err = b.e.time(rec)
	}
	if err != nil {
		return nil, err
	}
	fresh.plain = plain
	if err := b.record(rec, key); err != nil {
		return nil, err
	}
	if fresh.Commands, err = rec.End(); err != nil {
		return nil, err
	}
	fresh.parts = fresh.Division()
	b.recorded[key] = fresh
	b.e.stats.Recorded++
	b.e.stats.Recording += time.Since(began)
	if old != nil {
		err = old.Close()
	}
	return fresh, err
}

// record records what a key says.
func (b *stepSize) record(rec *vk.Recorder, key commandKey) error {
	if key.layer < 0 {
		if err := b.recordTables(rec); err != nil {
			return err
		}
	}
	first, end := key.layer, key.layer+1
	switch key.layer {
	case prologue:
		return b.recordLists(rec, key.draft)
	case wholeStep:
		first, _ = b.e.given(key.draft)
		end = len(b.layers)
	}
	whole := key.layer == wholeStep
	if key.copiesAll() {
		if err := rec.Copy(b.in.arena.Whole(), b.hostIn.arena.Whole()); err != nil {
			return err
		}
	}
	for i := first; i < end; i++ {
		var beside func(*vk.Recorder) error
		if whole && i == first {
			beside = func(rec *vk.Recorder) error { return b.recordLists(rec, key.draft) }
		}
		if err := b.recordLayer(rec, i, key, beside); err != nil {
			return err
		}
	}
	if !key.copiesAll() {
		return nil
	}
	for _, x := range b.results() {
		if x.device.arena == nil {
			continue
		}
		if err := rec.Copy(x.host.arena.Whole(), x.device.arena.Whole()); err != nil {
			return err
		}
	}
	return nil
}

// copiesAll tells whether the hidden states of all layers are copied at once.
func (k commandKey) copiesAll() bool { return k.host && k.layer == wholeStep && !k.draft }

// recordTables records what a step begins with: it copies the metadata to the device and, beside
// that, writes the changed entries of block tables, whose list is read in host memory.
func (b *stepSize) recordTables(rec *vk.Recorder) error {
	to := b.device.arena.Whole()
	if err := rec.Copy(to, vk.View{Buffer: b.host.arena.Whole().Buffer, Size: to.Size}); err != nil {
		return err
	}
	return b.e.update.Record(rec, cache.TableUpdateArgs{List: b.host.updates, Tables: b.e.pages.Tables()})
}

// recordLists records what is computed once for a step: where rows go, and index lists. In a
// recording of all layers it runs beside the products of the first one, which do not need it.
func (b *stepSize) recordLists(rec *vk.Recorder, draft bool) error {
	for _, k := range b.kinds {
		if draft && !k.like.spec.Block {
			continue
		}
		if err := k.RecordStep(rec, b.args(k, draft)); err != nil {
			return err
		}
	}
	return nil
}

// args are the arguments of a step for layers of a kind.
func (b *stepSize) args(k *stepKind, draft bool) layer.StepArgs {
	in, table := &b.device, func(s model.Store) tensor.Tensor { return b.e.pages.Table(k.like.at, s) }
	return layer.StepArgs{Drafts: draft,
		QueryStart: in.queryStart, SeqLens: in.seqLens, TokenToReq: in.request, Positions: in.positions, IsValid: in.valid,
		Tables: layer.Tables{Window: table(model.StoreWindow), Compressed: table(model.StoreEntries), Keys: table(model.StoreKeys),
			State: table(model.StoreState), IndexState: table(model.StoreKeyState)}}
}

// recordLayer records a layer, with the caller's commands in front of it, and after the last one.
// With key.host its hidden states come from host memory and go back there, unless those of all
// layers are copied at once. beside is that of layer.Args.
func (b *stepSize) recordLayer(rec *vk.Recorder, i int, key commandKey, beside func(*vk.Recorder) error) error {
	l, host := b.e.layers[i], key.host && !key.copiesAll()
	_, given := b.e.given(key.draft)
	in, out, topK := b.in.of(i), b.out.of(i), b.topK.of(i)
	if host && i < given {
		if err := rec.Copy(in.View(), b.hostIn.of(i).View()); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if err := b.recordBetween(rec, i, key); err != nil {
		return err
	}
	x := &b.layers[i]
	step := b.args(x.kind, key.draft)
	b.rowArgs(&step, x.kind, key.pieces)
	err := x.Record(rec, step, layer.Args{Hidden: in, CosSin: b.e.ropes[l.rope], Out: out, Caches: b.e.pages.Caches(i),
		Picks: x.picks, Blocks: x.blocks, Beside: beside})
	keep := !topK.IsZero() && l.spec.Picks == model.PickOwn
	if err == nil && keep {
		err = rec.Copy(topK.View(), x.kind.TopK().View())
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", i, err)
	}
	if i == len(b.layers)-1 {
		if err := b.recordBetween(rec, i+1, key); err != nil {
			return err
		}
	}
	if !host {
		return nil
	}
	for _, x := range b.results() {
		if x.device.arena == nil || x.device == &b.topK && !keep {
			continue
		}
		if err := rec.Copy(x.host.of(i).View(), x.device.of(i).View()); err != nil {
			return err
		}
	}
	return nil
}
