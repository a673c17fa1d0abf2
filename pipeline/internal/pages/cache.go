package pages

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// Cache is a cache of a layer.
type Cache struct {
	Pool   *Pool
	Stride int // bytes of a page
	// Parts are the bytes of a slot's parts: a page has the first part of all its slots, then the
	// second.
	Parts []int

	layer int           // in Config.Layers
	of    *layer.Caches // of the layer
	spec  *model.LayerSpec
	store model.Store
}

// SlotBytes returns the sum of a slot's parts.
func (c *Cache) SlotBytes() (sum int) {
	for _, n := range c.Parts {
		sum += n
	}
	return sum
}

// Memory returns the tensor of the pages: [pages, Stride] u8.
func (c *Cache) Memory() *tensor.Tensor { return memoryOf(c.of, c.store) }

func memoryOf(c *layer.Caches, s model.Store) *tensor.Tensor {
	switch s {
	case model.StoreWindow:
		return &c.Window.Pool
	case model.StoreEntries:
		return &c.Compressed.Pool
	case model.StoreKeys:
		return &c.Keys.Pool
	case model.StoreState:
		return &c.State.Pool
	}
	return &c.IndexState.Pool
}

// lay fills in the layout of the cache, and gives its memory the shape of a page.
func (c *Cache) lay(o *Config) (err error) {
	to, page := c.of, c.Pool.Page
	state := func(s *cache.StateCache, dim int) {
		s.Layout, err = cache.NewStateLayout(c.spec.Compression(dim), page, 0)
		c.Stride, c.Parts = s.Layout.Stride, []int{s.Layout.SlotBytes()}
	}
	rows := func(kv *cache.KVCache) {
		record := o.Records.Record(c.store)
		kv.Layout, err = cache.NewRecordLayout(record, page, 0)
		c.Stride, c.Parts = kv.Layout.Stride, []int{record.RowBytes(), record.ScaleBytes()}
	}
	switch c.store {
	case model.StoreWindow:
		rows(&to.Window)
	case model.StoreEntries:
		rows(&to.Compressed)
	case model.StoreState:
		state(&to.State, cache.D)
	case model.StoreKeyState:
		state(&to.IndexState, cache.IndexDim)
	case model.StoreKeys:
		to.Keys.Layout, err = cache.NewIndexKeyLayout(o.Keys, page, o.Records.KeyStride(o.Keys, page))
		c.Stride, c.Parts = to.Keys.Layout.Stride, []int{o.Keys.RowBytes(), cache.IndexScaleBytes}
	}
	*c.Memory() = c.shape(1)
	return err
}

// shape returns a tensor of `pages` pages without memory.
func (c *Cache) shape(pages int) tensor.Tensor {
	return tensor.Tensor{DType: tensor.U8, Shape: []int{pages, c.Stride}}
}

// Caches returns the caches that a layer writes and reads.
func (ps *Pools) Caches(i int) layer.Caches {
	c := ps.layers[i]
	if from := ps.cfg.Layers[i].Entries; from != i {
		c.Compressed, c.Keys = ps.layers[from].Compressed, ps.layers[from].Keys
	}
	return c
}

// Greatest returns the caches that a layer reads at their final size, without memory. Kernels are
// chosen for that size.
func (ps *Pools) Greatest(i int) layer.Caches {
	all, entries := ps.Caches(i), ps.cfg.Layers[i].Entries
	for _, c := range ps.caches {
		if c.layer != i && (c.layer != entries || c.store != model.StoreEntries && c.store != model.StoreKeys) {
			continue
		}
		n := c.Pool.reach
		if limit := ps.cfg.MaxCacheBytes; limit > 0 {
			n = min(n, int(limit/c.Pool.PageBytes))
		}
		*memoryOf(&all, c.store) = c.shape(max(n, c.Pool.IDs.Capacity()))
	}
	return all
}

// Table returns the block table of the pool that holds a store of a layer, a zero tensor without
// one. A layer that borrows its entries has the tables of the layer that it borrows from.
func (ps *Pools) Table(i int, s model.Store) tensor.Tensor {
	if s == model.StoreEntries || s == model.StoreKeys {
		i = ps.cfg.Layers[i].Entries
	}
	if spec := ps.cfg.Layers[i].Spec.Pool(s); spec != nil {
		return ps.pool(*spec).Table
	}
	return tensor.Tensor{}
}

// Tables returns all block tables as one tensor.
func (ps *Pools) Tables() tensor.Tensor {
	v := ps.arena.Whole()
	return tensor.Of(v, tensor.I32, int(v.Size/4))
}

// EachCache calls f for every cache, layer by layer.
func (ps *Pools) EachCache(f func(c *Cache)) {
	for _, c := range ps.caches {
		f(c)
	}
}
