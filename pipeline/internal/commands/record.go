package commands

import (
	"cmp"
	"fmt"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Commands returns the commands for a key, for a step with so much work. They are recorded if there
// are none, if they have to be divided into other submissions, and once workgroups starved.
func (b *Size) Commands(key Key, work float64) (*Commands, error) {
	old, plain := b.Recorded[key], b.z.cfg.Dev.Starved()
	like := cmp.Or(old, b.forgotten[key])
	if like != nil && like.plain != plain {
		like = nil // it has other operations
	} else if old != nil && b.z.Suits(old, work) {
		return old, nil
	}
	began := time.Now()
	rec, err := b.z.cfg.Dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := door.Prove(rec); err != nil {
		return nil, err
	}
	fresh, err := b.z.divide(rec, like, work)
	if err == nil {
		err = b.z.cfg.Time(rec)
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
	b.Recorded[key] = fresh
	b.z.Recorded++
	b.z.Recording += time.Since(began)
	if old != nil {
		err = old.Close()
	}
	return fresh, err
}

// record records what a key says.
func (b *Size) record(rec *vk.Recorder, key Key) error {
	if key.Layer < 0 {
		if err := b.recordTables(rec); err != nil {
			return err
		}
	}
	first, end := key.Layer, key.Layer+1
	switch key.Layer {
	case Prologue:
		return b.recordLists(rec, key.Draft)
	case Whole:
		first, _ = b.z.Given(key.Draft)
		end = len(b.Layers)
	}
	whole := key.Layer == Whole
	if key.copiesAll() {
		if err := rec.Copy(b.in.arena.Whole(), b.hostIn.arena.Whole()); err != nil {
			return err
		}
	}
	for i := first; i < end; i++ {
		var beside func(*vk.Recorder) error
		if whole && i == first {
			beside = func(rec *vk.Recorder) error { return b.recordLists(rec, key.Draft) }
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
func (k Key) copiesAll() bool { return k.Host && k.Layer == Whole && !k.Draft }

// recordTables records what a step begins with: it copies the metadata to the device and, beside
// that, writes the changed entries of block tables, whose list is read in host memory.
func (b *Size) recordTables(rec *vk.Recorder) error {
	to := b.device.arena.Whole()
	if err := rec.Copy(to, vk.View{Buffer: b.host.arena.Whole().Buffer, Size: to.Size}); err != nil {
		return err
	}
	return b.z.update.Record(rec, cache.TableUpdateArgs{List: b.host.updates, Tables: b.z.cfg.Pages.Tables()})
}

// recordLists records what is computed once for a step: where rows go, and index lists. In a
// recording of all layers it runs beside the products of the first one, which do not need it.
func (b *Size) recordLists(rec *vk.Recorder, draft bool) error {
	for _, k := range b.Kinds {
		if draft && !b.z.cfg.Layers[k.like].Spec.Block {
			continue
		}
		if err := k.RecordStep(rec, b.args(k, draft)); err != nil {
			return err
		}
	}
	return nil
}

// args are the arguments of a step for layers of a kind.
func (b *Size) args(k *Kind, draft bool) layer.StepArgs {
	in, table := &b.device, func(s model.Store) tensor.Tensor { return b.z.cfg.Pages.Table(k.like, s) }
	return layer.StepArgs{Drafts: draft,
		QueryStart: in.queryStart, SeqLens: in.seqLens, TokenToReq: in.request, Positions: in.positions, IsValid: in.valid,
		Tables: layer.Tables{Window: table(model.StoreWindow), Compressed: table(model.StoreEntries), Keys: table(model.StoreKeys),
			State: table(model.StoreState), IndexState: table(model.StoreKeyState)}}
}

// recordLayer records a layer, with the caller's commands in front of it, and after the last one.
// With key.Host its hidden states come from host memory and go back there, unless those of all
// layers are copied at once. beside is that of layer.Args.
func (b *Size) recordLayer(rec *vk.Recorder, i int, key Key, beside func(*vk.Recorder) error) error {
	l, host := b.z.cfg.Layers[i], key.Host && !key.copiesAll()
	_, given := b.z.Given(key.Draft)
	in, out, topK := b.in.of(i), b.out.of(i), b.topK.of(i)
	if host && i < given {
		if err := rec.Copy(in.View(), b.hostIn.of(i).View()); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if err := b.recordBetween(rec, i, key); err != nil {
		return err
	}
	x := &b.Layers[i]
	step := b.args(x.kind, key.Draft)
	b.rowArgs(&step, x.kind, key.Pieces)
	err := x.Record(rec, step, layer.Args{Hidden: in, CosSin: b.z.cfg.Ropes(l.Rope), Out: out, Caches: b.z.cfg.Pages.Caches(i),
		Picks: x.picks, Blocks: x.blocks, Beside: beside})
	keep := !topK.IsZero() && l.Spec.Picks == model.PickOwn
	if err == nil && keep {
		err = rec.Copy(topK.View(), x.kind.TopK().View())
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", i, err)
	}
	if i == len(b.Layers)-1 {
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

// recordBetween records what the caller has in front of a layer, or after the last one.
func (b *Size) recordBetween(rec *vk.Recorder, layer int, key Key) error {
	z, in := b.z, &b.device
	if !z.Chained() {
		return nil
	}
	first, _ := z.Given(key.Draft)
	at := Place{Layer: layer, Tokens: b.Tokens, Draft: key.Draft, QueryStart: in.queryStart, SeqLens: in.seqLens,
		TokenToReq: in.request, Positions: in.positions, IsValid: in.valid}
	where := fmt.Sprintf("in front of layer %d", layer)
	if layer > first {
		at.Output = b.out.of(layer - 1)
	}
	if layer < len(z.cfg.Layers) {
		at.Input = b.in.of(layer)
	} else {
		where = fmt.Sprintf("behind layer %d", layer-1)
	}
	rec.Section("between")
	if err := z.cfg.Between(rec, at); err != nil {
		return fmt.Errorf("EngineOptions.Between, %s: %w", where, err)
	}
	if layer == first && !key.Host { // else the copy from host memory has written it
		b.begins[key.Draft] = door.Overwrites(rec, at.Input.View())
	}
	return nil
}
