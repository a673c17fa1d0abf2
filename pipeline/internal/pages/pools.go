// Package pages keeps what sequences have of a model's caches: pools of pages that grow, and block
// tables, on the host and on the device. A caller claims the pages of more tokens, and gets the
// entries of tables that changed; what it computes with them is not known here.
//
// The caller excludes other calls meanwhile. Some call Config.Run or Config.Wait, which may let
// others in that open, fork, truncate or close sequences without a claim.
package pages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sort"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/blocks"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Config describes pools.
type Config struct {
	Dev    *vk.Device
	Layers []Layer
	Drafts int // the first layer that drafts; as many as there are without any
	Window int // tokens of the window

	MaxTokens, MaxSequences, MaxStep, Rewind int
	CacheBytes, MaxCacheBytes                uint64
	Records                                  model.Records
	Keys                                     cache.IndexKeyFormat

	Op   string                                                           // of errors of arguments
	Run  func(ctx context.Context, record func(*vk.Recorder) error) error // records commands, runs them and waits
	Wait func(wait func() error) error                                    // calls what waits for the device
	Drop func() error                                                     // drops recorded commands, whose memory is replaced
	Log  func(level slog.Level, event string, a ...any)                   // tells a rare event
}

// Layer is a layer with caches.
type Layer struct {
	Number  int // of the model
	Spec    *model.Layer
	Entries int // the index in Config.Layers of the layer whose entries it has, itself or an earlier one
}

// Pools are all pools of a list of layers.
type Pools struct {
	All   []*Pool
	Seats []Seat // by row of the block tables
	Stats Stats

	cfg       Config
	caches    []*Cache       // of all layers
	layers    []layer.Caches // what each layer has of its own
	sequences []*Sequence    // by row; nil: free
	drafts    int            // the first pool of the layers that draft; all later ones are theirs, too
	arena     *tensor.Arena  // of all block tables
	pending   []work
	cramped   bool // see cannotGrow

	need    counts  // of the last claim
	changed []claim // tables that may have entries that the device does not have
}

// Stats counts what pools have done.
type Stats struct {
	Grown   uint64        // times that caches grew, or that pages moved from one pool to another
	Full    uint64        // times that cache.ErrPoolFull was returned
	Growing time.Duration // what growing took
}

// Pool holds what the caches of one model.PoolSpec share in all layers: page numbers and a block
// table.
type Pool struct {
	model.PoolSpec
	Index     int    // in Pools.All
	Width     int    // entries of a row of the block table
	PageBytes uint64 // of a page in all layers
	SlotBytes uint64 // of a slot in all layers
	IDs       *blocks.Pool
	Table     tensor.Tensor // [MaxSequences, Width] i32
	Caches    []*Cache      // in the order of layers

	keep  int // tokens before the next one that a step reads, or model.KeepAll
	reach int // pages that sequences can ever use, if memory has room
	most  int // those that a buffer holds
}

// KeepsAll reports whether pages stay as long as their tokens.
func (p *Pool) KeepsAll() bool { return p.keep == model.KeepAll }

// Slots returns the number of slots that `tokens` tokens fill.
func (p *Pool) Slots(tokens int) int { return tokens / p.Tokens }

// Oldest returns the first slot that a sequence still reads after it is truncated to floor tokens.
func (p *Pool) Oldest(floor int) int {
	if p.KeepsAll() {
		return 0
	}
	return max(0, floor-p.keep)
}

// Gone returns the number of pages before that slot.
func (p *Pool) Gone(floor int) int { return p.Oldest(floor) / p.Page }

// Needs returns the first slot that tokens at positions from `length` on read, for a pool that does
// not keep all. For a compressor it is the first one of the incomplete group, or with Overlap of
// the group before.
func (p *Pool) Needs(length int) int {
	first := p.Slots(length)
	for _, c := range p.Caches {
		at := p.Oldest(length)
		if c.store == model.StoreState || c.store == model.StoreKeyState {
			group := length - length%c.spec.Ratio
			if c.spec.Overlap {
				group -= c.spec.Ratio
			}
			at = max(at, group)
		}
		first = min(first, at)
	}
	return first
}

// useful returns the most pages that sequences can hold. If pages are kept, that is all pages of
// their longest sequences. Otherwise it is, for each of them, the pages of what a step reads, a
// page begun at either end and one for a copy, and the pages of the tokens that are claimed.
func (p *Pool) useful(c *Config, sequences int) int {
	whole := sequences * (p.Width + 1)
	if p.KeepsAll() {
		return whole
	}
	return min(whole, sequences*(ceilDiv(p.keep+c.Rewind, p.Page)+3)+ceilDiv(c.MaxStep, p.Page))
}

// counts are numbers of pages, of each pool.
type counts []int

// New makes the pools that the layers' specs name, without pages.
func New(cfg Config) (*Pools, error) {
	ps := &Pools{cfg: cfg, layers: make([]layer.Caches, len(cfg.Layers)), sequences: make([]*Sequence, cfg.MaxSequences),
		Seats: make([]Seat, cfg.MaxSequences), drafts: math.MaxInt}
	for i, l := range cfg.Layers {
		for _, spec := range l.Spec.Pools {
			p := ps.pool(spec)
			if i >= cfg.Drafts {
				ps.drafts = min(ps.drafts, p.Index)
			}
			for _, store := range spec.Stores {
				c := &Cache{Pool: p, layer: i, of: &ps.layers[i], spec: &l.Spec.LayerSpec, store: store}
				if err := c.lay(&ps.cfg); err != nil {
					return nil, err
				}
				ps.caches, p.Caches = append(ps.caches, c), append(p.Caches, c)
			}
		}
	}
	for _, p := range ps.All {
		for _, c := range p.Caches {
			p.PageBytes += uint64(c.Stride)
			p.SlotBytes += uint64(c.SlotBytes())
		}
		p.Width = max(1, ceilDiv(p.Slots(cfg.MaxTokens), p.Page))
	}
	return ps, nil
}

// pool returns the pool of a spec, a new one for the first layer that names it.
func (ps *Pools) pool(spec model.PoolSpec) *Pool {
	for _, p := range ps.All {
		if p.Name == spec.Name {
			return p
		}
	}
	p := &Pool{PoolSpec: spec, Index: len(ps.All), keep: spec.Kept(ps.cfg.Window)}
	ps.All = append(ps.All, p)
	return p
}

// Arrange decides how many pages there are and can be, and checks that a descriptor of the device
// holds the block tables.
func (ps *Pools) Arrange() error {
	ps.need = make(counts, len(ps.All))
	caps := ps.cfg.Dev.Caps()
	addresses := len(caps.Missing([]string{"bufferDeviceAddress", "shaderInt64"})) == 0
	for _, p := range ps.All {
		limit := math.MaxInt32
		for _, c := range p.Caches {
			if !addresses { // then a descriptor has to hold the memory
				limit = min(limit, int(caps.MaxStorageBufferRange/uint64(c.Stride)))
			}
		}
		p.reach = min(p.useful(&ps.cfg, ps.cfg.MaxSequences), limit, math.MaxInt32/p.Page)
		p.most = p.reach
		for _, c := range p.Caches {
			p.most = int(min(uint64(p.most), memory.OrMost(caps.MaxBuffer)/uint64(c.Stride)))
		}
	}
	if err := ps.firstPages(); err != nil {
		return err
	}
	return ps.checkTables()
}

// firstTokens is the length of a sequence for which there are caches at first.
const firstTokens = 4096

// first returns the number of pages at first, for some sequences with `tokens` tokens in all. A
// sequence keeps windows and states whatever its length, so each gets pages for those.
func (p *Pool) first(c *Config, tokens, sequences int) int {
	n := ceilDiv(p.Slots(tokens), p.Page) + sequences - 1
	if !p.KeepsAll() {
		n = min(ceilDiv(tokens, p.Page)+sequences, p.useful(c, sequences))
	}
	return max(1, min(n, p.most))
}

// firstPages makes the block pools, with pages for a sequence of firstTokens or for what CacheBytes
// hold.
func (ps *Pools) firstPages() error {
	o := &ps.cfg
	bytes := func(tokens, sequences int) (sum uint64) {
		for _, p := range ps.All {
			sum += uint64(p.first(o, tokens, sequences)) * p.PageBytes
		}
		return sum
	}
	limit := min(memory.OrMost(o.CacheBytes), memory.OrMost(o.MaxCacheBytes))
	if bytes(1, 1) > limit {
		return ps.bad("CacheBytes, MaxCacheBytes", limit, "at least %d bytes", bytes(1, 1))
	}
	sequences, most := 1, min(max(o.MaxStep, firstTokens), o.MaxTokens)
	if o.CacheBytes > 0 {
		// For as many sequences as take half of it before they have tokens, if the longest one
		// finds room beside them: there may be few long ones or many short ones.
		sequences += sort.Search(o.MaxSequences-1, func(i int) bool { return bytes(1, i+2) > limit/2 || bytes(o.MaxTokens, i+2) > limit })
		most = o.MaxTokens * sequences
	}
	tokens := 1 + sort.Search(most-1, func(i int) bool { return bytes(i+2, sequences) > limit })
	for _, p := range ps.All {
		p.IDs = blocks.NewPool(p.first(o, tokens, sequences))
	}
	return nil
}

// checkTables demands that all block tables fit, which are bound as one tensor.
func (ps *Pools) checkTables() error {
	limit := memory.Bound(ps.cfg.Dev)
	bytes := func(sequences int) (sum uint64) {
		for _, p := range ps.All {
			sum += tensor.Need(tensor.I32, sequences, p.Width)
		}
		return sum
	}
	n := ps.cfg.MaxSequences
	most := sort.Search(n, func(i int) bool { return bytes(i+1) > limit })
	if most == n {
		return nil
	}
	return ps.bad("MaxSessions", n, "at most %d with %d tokens, so that a descriptor of %d bytes holds the block tables",
		most, ps.cfg.MaxTokens, limit)
}

// bad says what is wrong with an option.
func (ps *Pools) bad(arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: ps.cfg.Op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}

// Estimate returns the bytes that sequences of some lengths hold, those of the caches with them and
// with a step, and those of the block tables.
func (ps *Pools) Estimate(op string, lengths []int) (held, caches, tables uint64, err error) {
	for _, p := range ps.All {
		pages := 0
		for _, n := range lengths {
			pages += p.Held(n, ps.cfg.Window, ps.cfg.Rewind)
		}
		if pages > p.most {
			return 0, 0, 0, &vk.ArgumentError{Op: op, Arg: "lengths", Got: fmt.Sprintf("%d pages of %s", pages, p.Name),
				Want: fmt.Sprintf("at most %d, which a buffer holds", p.most)}
		}
		held += uint64(pages) * p.PageBytes
		if !p.KeepsAll() {
			pages += ceilDiv(ps.cfg.MaxStep, p.Page) + 1
		}
		caches += uint64(max(p.IDs.Capacity(), min(pages, p.most))) * p.PageBytes
	}
	list := ps.tableList()
	return held, caches, list.Bytes(), nil
}

// Memory returns the bytes of all pages, of those that sequences hold, and of the block tables.
func (ps *Pools) Memory() (caches, held, tables uint64) {
	for _, c := range ps.caches {
		caches += c.Memory().Bytes()
	}
	for _, p := range ps.All {
		held += uint64(p.IDs.Capacity()-p.IDs.Free()) * p.PageBytes
	}
	return caches, held, ps.arena.Whole().Size
}

// Allocate makes the memory of the caches, and the block tables, all -1.
func (ps *Pools) Allocate(ctx context.Context) error {
	for _, c := range ps.caches {
		err := ctx.Err()
		if err == nil {
			*c.Memory(), err = tensor.New(ps.cfg.Dev, "caches", tensor.U8, c.Pool.IDs.Capacity(), c.Stride)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", ps.cfg.Layers[c.layer].Number, err)
		}
	}
	list := ps.tableList()
	var err error
	if ps.arena, err = list.Allocate(ps.cfg.Dev, vk.DeviceLocal, "block tables"); err != nil {
		return err
	}
	return ps.cfg.Run(ctx, func(rec *vk.Recorder) error { return rec.Fill(ps.arena.Whole(), math.MaxUint32) })
}

// tableList lists the block tables.
func (ps *Pools) tableList() (list memory.List) {
	for _, p := range ps.All {
		list.Add(&p.Table, tensor.I32, ps.cfg.MaxSequences, p.Width)
	}
	return list
}

// Close frees caches and block tables.
func (ps *Pools) Close() (err error) {
	for _, c := range ps.caches {
		err = errors.Join(err, c.Memory().Close())
	}
	if ps.arena != nil {
		err = errors.Join(err, ps.arena.Close())
	}
	return err
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
