package pipeline

import (
	"context"
	"errors"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Slots of a page of each cache, as vLLM has them.
const (
	c128StatePage = 32
	keysPage      = 64
)

// runnerCache is the pages of one of a layer's caches.
type runnerCache struct {
	pool  *cache.BlockPool
	table *cache.Table
	ratio int // tokens of a slot
	keep  int // tokens before the next that a step reads; 0: all
	width int // entries of the table for the longest sequence
}

// newRunnerCache counts the pages that a layer needs of a cache: for all slots of the
// longest sequence, or for those that a step reads and writes, which may begin
// anywhere in a page.
func newRunnerCache(o RunnerOptions, page, ratio, keep int) (c runnerCache, err error) {
	c = runnerCache{ratio: ratio, keep: keep, width: max(1, ceilDiv(o.MaxTokens/ratio, page))}
	pages := c.width
	if keep > 0 {
		pages = min(pages, ceilDiv(keep+o.Chunk, page)+1)
	}
	if c.pool, err = cache.NewBlockPool(pages); err == nil {
		c.table, err = cache.NewTable(c.pool, page)
	}
	return c, err
}

// grow makes room for tokens up to length, and lets go of what a step from token
// first on does not read.
func (c *runnerCache) grow(first, length int) error {
	if c.keep > 0 {
		if err := c.table.Recycle(max(0, first-c.keep)); err != nil {
			return err
		}
	}
	_, err := c.table.Append(length/c.ratio - c.table.Len())
	return err
}

// runnerLayer is a layer with its caches and commands.
type runnerLayer struct {
	caches LayerCaches
	all    []runnerCache // in the order of runnerKind.rows
	length int           // tokens so far
	steps  []runnerStep  // for one token, then for up to Chunk, if that is more
}

// runnerStep is a layer's commands for a number of tokens.
type runnerStep struct {
	kind  *runnerKind
	layer *Layer
	cmd   *vk.Commands
}

// allocate makes the caches.
func (l *runnerLayer) allocate(dev *vk.Device, w *DeviceLayer, o RunnerOptions, cfg Config) error {
	var err error
	pages := func(page, ratio, keep int) int {
		var c runnerCache
		if err != nil {
			return 0
		}
		if c, err = newRunnerCache(o, page, ratio, keep); err != nil {
			return 0
		}
		l.all = append(l.all, c)
		return c.pool.Capacity()
	}
	kv := func(label string, page, ratio, keep int) (c cache.KVCache) {
		if n := pages(page, ratio, keep); err == nil {
			var layout cache.Layout
			if layout, err = cache.NewLayout(page, 0); err == nil {
				c, err = cache.NewKV(dev, cache.KVConfig{Label: label, Pages: n, Layout: layout})
			}
		}
		return c
	}
	state := func(comp cache.Compression, page int) (c cache.StateCache) {
		if n := pages(page, 1, comp.Window()-1); err == nil {
			var layout cache.StateLayout
			if layout, err = cache.NewStateLayout(comp, page, 0); err == nil {
				c, err = cache.NewState(dev, cache.StateConfig{Pages: n, Layout: layout})
			}
		}
		return c
	}
	l.caches.Window = kv("window cache", windowPage, 1, cfg.Window-1)
	switch w.Ratio {
	case RatioC128A:
		l.caches.Compressed = kv("compressed cache", c128aPage, RatioC128A, 0)
		l.caches.State = state(cache.C128Main, c128StatePage)
	case RatioC4A:
		l.caches.Compressed = kv("compressed cache", c4aPage, RatioC4A, 0)
		l.caches.State = state(cache.C4Main, c4aStatePage)
		l.caches.IndexState = state(cache.C4Index, c4aStatePage)
		if n := pages(keysPage, RatioC4A, 0); err == nil {
			var layout cache.IndexKeyLayout
			if layout, err = cache.NewIndexKeyLayout(o.Keys, keysPage, 0); err == nil {
				l.caches.Keys, err = cache.NewIndexKeys(dev, cache.IndexKeysConfig{Pages: n, Layout: layout})
			}
		}
	}
	return err
}

// record records the layer's commands for steps of a kind: inputs to the device, the
// layer, results back.
func (l *runnerLayer) record(ctx context.Context, k *runnerKind, w *DeviceLayer, table tensor.Tensor) error {
	layer, err := k.kind.NewLayer(ctx, w)
	if err != nil {
		return err
	}
	l.steps = append(l.steps, runnerStep{kind: k, layer: layer})
	rec, err := k.dev.NewRecorder()
	if err != nil {
		return err
	}
	defer rec.Close()
	in := &k.device
	if err := rec.Copy(in.hidden.Buffer.Whole(), k.host.hidden.Buffer.Whole()); err != nil {
		return err
	}
	step := in.args(k.ratio)
	if err := k.kind.RecordStep(rec, step); err != nil {
		return err
	}
	if err := layer.Record(rec, step, WholeLayerArgs{Hidden: in.hidden, CosSin: table, Caches: l.caches, Out: k.out}); err != nil {
		return err
	}
	if err := rec.Copy(k.outHost.View(), k.out.View()); err != nil {
		return err
	}
	if top := k.kind.TopK(); !top.IsZero() {
		if err := rec.Copy(k.topHost.View(), top.View()); err != nil {
			return err
		}
	}
	l.steps[len(l.steps)-1].cmd, err = rec.End()
	return err
}

// step runs n tokens, of which hidden has the rows, and appends what they gave.
func (l *runnerLayer) step(hidden []float32, n int, res *Appended) (err error) {
	s := l.steps[0]
	if n > 1 {
		s = l.steps[1]
	}
	for i := range l.all {
		c := &l.all[i]
		before := c.table.Len()
		if err = c.grow(l.length, l.length+n); err != nil {
			break
		}
		defer func() { // the step did not happen
			if err != nil {
				err = errors.Join(err, c.table.Truncate(before))
			}
		}()
	}
	if err != nil {
		return err
	}
	if err = s.kind.fill(l, hidden, n); err != nil {
		return err
	}
	// Nothing may write the inputs while the device reads them, so that there is no
	// leaving early.
	if err = s.cmd.Run(context.Background()); err != nil {
		return err
	}
	l.length += n
	res.Out = appendFloats(res.Out, s.kind.outHost.Mapped()[:2*len(hidden)])
	if t := s.kind.topHost; !t.IsZero() {
		for data := t.Mapped()[:4*n*t.Shape[1]]; len(data) > 0; data = data[4:] {
			res.TopK = append(res.TopK, int32(le.Uint32(data)))
		}
	}
	return nil
}

func (l *runnerLayer) close() error {
	var err error
	for _, s := range l.steps {
		if s.cmd != nil {
			err = errors.Join(err, s.cmd.Close())
		}
		err = errors.Join(err, s.layer.Close())
	}
	c := l.caches
	return errors.Join(err, c.Window.Close(), c.Compressed.Close(), c.State.Close(), c.IndexState.Close(), c.Keys.Close())
}

// runnerInputs are the inputs of a step, in one buffer.
type runnerInputs struct {
	arena                        *tensor.Arena
	queryStart, seqLens, request tensor.Tensor   // [2], [1], [T] i32
	positions, valid             tensor.Tensor   // [T] i32, u8
	rows                         []tensor.Tensor // [1, W] i32: tables, in the order of runnerLayer.all
	hidden                       tensor.Tensor   // [T, Hidden] bf16
}

func newRunnerInputs(dev *vk.Device, mem vk.Memory, tokens, width int, caches []runnerCache) (in runnerInputs, err error) {
	in.rows = make([]tensor.Tensor, len(caches))
	list := []wanted{
		{&in.queryStart, tensor.I32, []int{2}}, {&in.seqLens, tensor.I32, []int{1}}, {&in.request, tensor.I32, []int{tokens}},
		{&in.positions, tensor.I32, []int{tokens}}, {&in.valid, tensor.U8, []int{tokens}}, {&in.hidden, tensor.BF16, []int{tokens, width}},
	}
	for i, c := range caches {
		list = append(list, wanted{&in.rows[i], tensor.I32, []int{1, c.width}})
	}
	in.arena, err = allocateIn(dev, mem, "runner", list)
	return in, err
}

// args are the arguments of a step.
func (in *runnerInputs) args(ratio int) SparseStepArgs {
	a := SparseStepArgs{StepArgs: StepArgs{QueryStart: in.queryStart, SeqLens: in.seqLens, TokenToReq: in.request,
		Positions: in.positions, IsValid: in.valid, WindowTable: in.rows[0]}}
	if ratio != RatioWindow {
		a.CompressedTable, a.StateTable = in.rows[1], in.rows[2]
	}
	if ratio == RatioC4A {
		a.IndexStateTable, a.KeysTable = in.rows[3], in.rows[4]
	}
	return a
}

// runnerKind is a kind of layer with what its layers share beside it.
type runnerKind struct {
	ratio, tokens    int
	dev              *vk.Device
	kind             *LayerKind
	host, device     runnerInputs // the same layout twice
	out              tensor.Tensor
	outHost, topHost tensor.Tensor
}

func (k *runnerKind) build(dev *vk.Device, cfg LayerKindConfig, like *runnerLayer) (err error) {
	k.dev = dev
	if k.kind, err = NewLayerKind(dev, cfg); err != nil {
		return err
	}
	if k.host, err = newRunnerInputs(dev, vk.Upload, k.tokens, cfg.Model.Hidden, like.all); err != nil {
		return err
	}
	if k.device, err = newRunnerInputs(dev, vk.DeviceLocal, k.tokens, cfg.Model.Hidden, like.all); err != nil {
		return err
	}
	clear(k.host.hidden.Buffer.Mapped())
	if k.out, err = tensor.New(dev, "runner", tensor.BF16, k.tokens, cfg.Model.Hidden); err != nil {
		return err
	}
	if k.outHost, err = tensor.NewIn(dev, vk.Readback, "runner", tensor.BF16, k.tokens, cfg.Model.Hidden); err != nil {
		return err
	}
	if top := k.kind.TopK(); !top.IsZero() {
		k.topHost, err = tensor.NewIn(dev, vk.Readback, "runner", tensor.I32, top.Shape...)
	}
	return err
}

// fill writes the inputs of a step of n tokens. Padding keeps hidden states of steps
// before, which nothing comes of.
func (k *runnerKind) fill(l *runnerLayer, hidden []float32, n int) error {
	in := &k.host
	ints(in.queryStart, 0, int32(n))
	ints(in.seqLens, int32(l.length+n))
	positions, valid := in.positions.Mapped(), in.valid.Mapped()
	for i := range k.tokens {
		p, ok := 0, byte(0)
		if i < n {
			p, ok = l.length+i, 1
		}
		le.PutUint32(positions[4*i:], uint32(p))
		valid[i] = ok
	}
	for i, c := range l.all {
		row := make([]int32, c.width)
		if err := c.table.Row(row); err != nil {
			return err
		}
		ints(in.rows[i], row...)
	}
	data := in.hidden.Mapped()
	for i, v := range hidden {
		le.PutUint16(data[2*i:], numfmt.BF16Encode(v))
	}
	return nil
}

// ints writes values to a mapped tensor.
func ints(t tensor.Tensor, values ...int32) {
	data := t.Mapped()
	for i, v := range values {
		le.PutUint32(data[4*i:], uint32(v))
	}
}

func (k *runnerKind) close() error {
	err := errors.Join(k.kind.Close(), k.out.Close(), k.outHost.Close(), k.topHost.Close())
	for _, a := range []*tensor.Arena{k.host.arena, k.device.arena} {
		if a != nil {
			err = errors.Join(err, a.Close())
		}
	}
	return err
}
