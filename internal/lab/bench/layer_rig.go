package bench

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Slots of a page of each cache.
const (
	c128Page  = 2
	statePage = 16
)

// layerRig is a kind of layer with caches and the inputs of a step, and layers of it
// with weights of their own that share the caches.
type layerRig struct {
	*opRig
	cfg    pipeline.LayerKindConfig
	shape  stepShape
	kind   *pipeline.LayerKind
	layers []*pipeline.Layer
	step   pipeline.SparseStepArgs
	args   pipeline.WholeLayerArgs
	host   layerHost
	closes []func() error
}

// layerHost is what the check knows of a step's inputs.
type layerHost struct {
	toReq, positions []int32
	tables           map[string][]int32 // [R, width] of each cache, by label
	widths           map[string]int
	cosSin           func(p int32) []float32 // a row of the table
}

// Close frees everything but the weights.
func (r *layerRig) Close() error {
	var err error
	for i := len(r.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closes[i]())
	}
	r.closes = nil
	return errors.Join(err, r.opRig.Close())
}

// closing makes Close call f, before what was made earlier is closed.
func (r *layerRig) closing(f func() error) { r.closes = append(r.closes, f) }

// pool makes a pool of pages and a random table of them, for all requests. An entry of
// the table is for tokens tokens; of a request those pages are there that hold tokens
// from keep before its first new one on, or all if keep is below 0.
func (r *layerRig) pool(label string, stride, tokens, keep int, pattern []byte) (pool, table tensor.Tensor, err error) {
	width, total := 0, 0
	r.shape.requests(func(first, end int) {
		low := 0
		if keep >= 0 {
			low = max(0, first-keep) / tokens
		}
		n := (end + tokens - 1) / tokens
		width, total = max(width, n), total+n-low
	})
	width = max(width, 1)
	perm, rows := r.rng.Perm(max(total, 1)), make([]int32, 0, len(r.shape.lens)*width)
	r.shape.requests(func(first, end int) {
		low := 0
		if keep >= 0 {
			low = max(0, first-keep) / tokens
		}
		for j := range width {
			id := int32(-1)
			if j >= low && j < (end+tokens-1)/tokens {
				id, perm = int32(perm[0]), perm[1:]
			}
			rows = append(rows, id)
		}
	})
	if pool, err = tensor.New(r.dev, label, tensor.U8, max(total, 1), stride); err != nil {
		return pool, table, err
	}
	r.closing(pool.Close)
	if err = r.fill(pool, pattern); err != nil {
		return pool, table, err
	}
	if table, err = tensor.New(r.dev, "step inputs", tensor.I32, len(r.shape.lens), width); err != nil {
		return pool, table, err
	}
	r.closing(table.Close)
	r.host.tables[label], r.host.widths[label] = rows, width
	return pool, table, table.Upload(r.ctx, bytesOf(rows))
}

// kvPattern is pages of random rows, as the insertion would have written them.
func (r *layerRig) kvPattern(l cache.Layout) ([]byte, error) {
	const rows = 2048
	slots := make([]int64, rows)
	for i := range slots {
		slots[i] = int64(i)
	}
	pattern := make([]byte, l.PoolBytes(rows/l.Page))
	return pattern, cache.InsertRef(pattern, l, r.normalBF16(rows*512), slots)
}

func (r *layerRig) kv(label string, pageSlots, ratio, keep int) (c cache.KVCache, table tensor.Tensor, err error) {
	if c.Layout, err = cache.NewLayout(pageSlots, 0); err != nil {
		return c, table, err
	}
	pattern, err := r.kvPattern(c.Layout)
	if err != nil {
		return c, table, err
	}
	c.Pool, table, err = r.pool(label, c.Layout.Stride, pageSlots*ratio, keep, pattern)
	return c, table, err
}

func (r *layerRig) state(label string, comp cache.Compression) (c cache.StateCache, table tensor.Tensor, err error) {
	if c.Layout, err = cache.NewStateLayout(comp, statePage, 0); err != nil {
		return c, table, err
	}
	c.Pool, table, err = r.pool(label, c.Layout.Stride, statePage, comp.Window()-1, r.statePattern(c.Layout))
	return c, table, err
}

// statePattern is pages of random states.
func (r *layerRig) statePattern(l cache.StateLayout) []byte {
	return bytesOf(r.normal(max(1, 64<<10/l.Stride) * l.Stride / 4))
}

// keyPattern is pages of random indexer keys.
func (r *layerRig) keyPattern(l cache.IndexKeyLayout) []byte {
	const pages = 64
	pattern, x := make([]byte, pages*l.Stride), r.normalBF16(cache.IndexDim*pages*l.Page)
	for slot := range int64(pages * l.Page) {
		codes, scale := cache.QuantiseKeyRef(x[slot*cache.IndexDim:][:cache.IndexDim], l.Format)
		copy(pattern[l.RowOffset(slot):], codes)
		copy(pattern[l.ScaleOffset(slot):], scale[:])
	}
	return pattern
}

// newLayerRig makes the caches of a layer of a ratio for a step, and the step's inputs.
func newLayerRig(ctx context.Context, dev *vk.Device, cfg pipeline.LayerKindConfig, shape stepShape, ropes *ropeTables, seed uint64, p Progress) (*layerRig, error) {
	r := &layerRig{opRig: newOpRig(ctx, dev, IndexerOptions{Common: Common{Seed: seed}}, p), cfg: cfg, shape: shape,
		host: layerHost{tables: map[string][]int32{}, widths: map[string]int{}}}
	r.rng = rand.New(rand.NewPCG(seed, 5))
	err := r.build(ropes)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *layerRig) build(ropes *ropeTables) (err error) {
	c, s := &r.cfg.Caches, &r.step
	if c.Window, s.WindowTable, err = r.kv("window cache", page, 1, r.cfg.Model.Window-1); err != nil {
		return err
	}
	switch r.cfg.Ratio {
	case pipeline.RatioC4A:
		if c.Compressed, s.CompressedTable, err = r.kv("compressed cache", page, pipeline.RatioC4A, -1); err != nil {
			return err
		}
		if c.State, s.StateTable, err = r.state("compressor state", cache.C4Main); err != nil {
			return err
		}
		if c.IndexState, s.IndexStateTable, err = r.state("indexer's compressor state", cache.C4Index); err != nil {
			return err
		}
		if err = r.indexKeys(); err != nil {
			return err
		}
	case pipeline.RatioC128A:
		if c.Compressed, s.CompressedTable, err = r.kv("compressed cache", c128Page, pipeline.RatioC128A, -1); err != nil {
			return err
		}
		if c.State, s.StateTable, err = r.state("compressor state", cache.C128Main); err != nil {
			return err
		}
	}
	if r.kind, err = pipeline.NewLayerKind(r.dev, r.cfg); err != nil {
		return err
	}
	r.closing(r.kind.Close)
	return r.inputs(ropes)
}

func (r *layerRig) indexKeys() (err error) {
	l, err := cache.NewIndexKeyLayout(r.shape.keys, page, 0)
	if err != nil {
		return err
	}
	r.cfg.Caches.Keys.Layout = l
	r.cfg.Caches.Keys.Pool, r.step.KeysTable, err = r.pool("indexer keys", l.Stride, page*pipeline.RatioC4A, -1, r.keyPattern(l))
	return err
}

// inputs makes what a step reads beside its tables.
func (r *layerRig) inputs(ropes *ropeTables) (err error) {
	t, n := r.shape.tokens(), len(r.shape.lens)
	start, lens, valid := []int32{0}, []int32{}, make([]byte, t)
	r.shape.requests(func(first, end int) {
		for p := first; p < end; p++ {
			r.host.toReq, r.host.positions = append(r.host.toReq, int32(len(lens))), append(r.host.positions, int32(p))
		}
		start, lens = append(start, int32(len(r.host.toReq))), append(lens, int32(end))
	})
	for i := range valid {
		valid[i] = 1
	}
	s, a := &r.step, &r.args
	hidden := r.cfg.Model.Hidden
	s.QueryStart, s.SeqLens = put(r.opRig, tensor.I32, start, n+1), put(r.opRig, tensor.I32, lens, n)
	s.TokenToReq, s.Positions = put(r.opRig, tensor.I32, r.host.toReq, t), put(r.opRig, tensor.I32, r.host.positions, t)
	s.IsValid = put(r.opRig, tensor.U8, valid, t)
	a.Hidden, a.Out = put(r.opRig, tensor.BF16, r.normalBF16(t*hidden), t, hidden), r.out(r.kindOut(), t, hidden)
	a.Caches = r.cfg.Caches
	if r.err != nil {
		return r.err
	}
	a.CosSin, r.host.cosSin, err = ropes.table(r.ctx, r.rope())
	return err
}

func (r *layerRig) rope() model.Rope {
	if r.cfg.Ratio == pipeline.RatioWindow {
		return r.cfg.Model.Main
	}
	return r.cfg.Model.Compress
}

func (r *layerRig) kindOut() tensor.DType {
	if r.cfg.Out == 0 {
		return tensor.BF16
	}
	return r.cfg.Out
}

// use makes layers of weights.
func (r *layerRig) use(weights []*randomLayer) error {
	for _, w := range weights {
		l, err := r.kind.NewLayer(r.ctx, w.DeviceLayer)
		if err != nil {
			return err
		}
		r.closing(l.Close)
		r.layers = append(r.layers, l)
	}
	return nil
}

// record records launch i: the layer with the weights of set i modulo the sets.
func (r *layerRig) record(rec *vk.Recorder, i int) error {
	return r.layers[i%len(r.layers)].Record(rec, r.step, r.args)
}

// ropeTables are the cosines and sines of a number of positions, which rigs share.
type ropeTables struct {
	dev    *vk.Device
	rows   int
	tables map[model.Rope]ropeTable
}

type ropeTable struct {
	t    tensor.Tensor
	rows []float32
}

func newRopeTables(dev *vk.Device, rows int) *ropeTables {
	return &ropeTables{dev, rows, map[model.Rope]ropeTable{}}
}

func (x *ropeTables) table(ctx context.Context, rope model.Rope) (tensor.Tensor, func(int32) []float32, error) {
	t, ok := x.tables[rope]
	if !ok {
		rows, err := rope.Table(x.rows, 1)
		if err != nil {
			return tensor.Tensor{}, nil, err
		}
		dst, err := tensor.New(x.dev, "rope tables", tensor.F32, x.rows, model.RopeRow)
		if err != nil {
			return dst, nil, err
		}
		t = ropeTable{dst, rows}
		x.tables[rope] = t
		if err := dst.Upload(ctx, bytesOf(rows)); err != nil {
			return dst, nil, err
		}
	}
	return t.t, func(p int32) []float32 { return t.rows[int(p)*model.RopeRow:][:model.RopeRow] }, nil
}

// Close frees the tables.
func (x *ropeTables) Close() error {
	var err error
	for _, t := range x.tables {
		err = errors.Join(err, t.t.Close())
	}
	x.tables = nil
	return err
}
