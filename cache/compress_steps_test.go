package cache_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// compressor is a kind of compressor with the page sizes of the model.
type compressor struct {
	name            string
	c               cache.Compression
	keys            cache.IndexKeyFormat
	hadamard        bool
	statePage, page int
	saves           [2]string // variants of the kernels that save: for steps of one token, of more
}

var (
	bothSave = [2]string{opkit.Base, opkit.DA}
	baseSave = [2]string{opkit.Base, opkit.Base}
	daSave   = [2]string{opkit.DA, opkit.DA}
)

// A kernel takes long to compile. Kinds that differ in little else therefore have one variant that
// saves, and constants are those of cases of internal/lab/verify where possible.
var compressors = []compressor{
	{"c4 main", cache.C4Main, 0, false, 4, 64, bothSave},
	{"c4 index fp8", cache.C4Index, cache.IndexKeyFP8, false, 4, 64, baseSave},
	{"c4 index mxfp4", cache.C4Index, cache.IndexKeyMXFP4, false, 4, 64, daSave},
	{"c4 index mxfp4 rotated", cache.C4Index, cache.IndexKeyMXFP4, true, 4, 64, baseSave},
	{"c128 main", cache.C128Main, 0, false, 8, 2, bothSave},
	{"ratio 1", cache.Compression{Dim: cache.D, Ratio: 1}, 0, false, 8, 64, daSave},
	{"ratio 2", cache.Compression{Dim: cache.D, Ratio: 2}, 0, false, 8, 64, baseSave},
	{"ratio 2 index mxfp4", cache.Compression{Dim: cache.IndexDim, Ratio: 2}, cache.IndexKeyMXFP4, false, 4, 64, daSave},
	{"ratio 3, overlap", cache.Compression{Dim: cache.D, Ratio: 3, Overlap: true}, 0, false, 4, 5, daSave},
	{"ratio 24", cache.Compression{Dim: cache.D, Ratio: 24}, 0, false, 8, 2, baseSave},
}

func (k compressor) config() cache.CompressConfig {
	return cache.CompressConfig{Compression: k.c, StatePage: k.statePage, Page: k.page, Keys: k.keys, Hadamard: k.hadamard, RopeStep: k.c.Ratio}
}

// sequence is one request whose tokens are compressed step by step.
type sequence struct {
	compressor
	t        testing.TB
	dev      *vk.Device
	save     *cache.SaveState
	compress *cache.Compress
	saving   *cache.Compress // unless nil, for all steps
	n        int             // tokens
	kvScore  []float32

	// Device memory of a step of up to n tokens.
	rows, positions, toReq, stateSlots, slots, table tensor.Tensor
	ape, norm, cosSin                                tensor.Tensor
}

func newSequence(t testing.TB, dev *vk.Device, k compressor, n int) *sequence {
	t.Helper()
	s := &sequence{compressor: k, t: t, dev: dev, n: n}
	s.save = must[*cache.SaveState](t)(cache.NewSaveState(dev, cache.SaveStateConfig{Compression: k.c, Page: k.statePage}))
	s.compress = must[*cache.Compress](t)(cache.NewCompress(dev, k.config()))
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	floats := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	channels := k.c.Channels()
	s.kvScore = floats(n * 2 * channels)
	s.rows = testkit.Upload(t, dev, tensor.F32, s.kvScore, n, 2*channels)
	s.ape = testkit.Upload(t, dev, tensor.F32, floats(k.c.Ratio*channels), k.c.Ratio, channels)
	s.norm = testkit.Upload(t, dev, tensor.F32, floats(k.c.Dim), k.c.Dim)
	entries := n/k.c.Ratio + 1
	table := make([]float32, entries*cache.RopeDim)
	for i := range table {
		angle := float64(i/cache.RopeDim*k.c.Ratio) / math.Pow(160000, float64(i%32)/32)
		table[i] = float32(math.Cos(angle - math.Pi/2*float64(i%64/32)))
	}
	s.cosSin = testkit.Upload(t, dev, tensor.F32, table, entries, cache.RopeDim)
	s.positions, s.toReq = testkit.Zeros(t, dev, tensor.I32, n), testkit.Zeros(t, dev, tensor.I32, n)
	s.stateSlots, s.slots = testkit.Zeros(t, dev, tensor.I64, n), testkit.Zeros(t, dev, tensor.I64, n)
	width := (n + k.statePage - 1) / k.statePage
	s.table = testkit.Zeros(t, dev, tensor.I32, 1, width)
	return s
}

// caches are the paged memory of a sequence.
type caches struct {
	state cache.StateCache
	kv    cache.KVCache
	keys  cache.IndexKeyCache
	// pages of the sequence: of state one for every statePage tokens, of entries one
	// for every page*Ratio tokens. -1: none.
	stateTable, table []int32
}

// newCaches makes poisoned caches whose tables name pages in random order.
func (s *sequence) newCaches(seed uint64) *caches {
	t, rng := s.t, rand.New(rand.NewPCG(seed, 3))
	statePages := (s.n + s.statePage - 1) / s.statePage
	pages := s.n/s.c.Ratio/s.page + 1
	c := &caches{}
	ids := func(n int) (v []int32) {
		for _, id := range rng.Perm(n + 2)[:n] {
			v = append(v, int32(id))
		}
		return v
	}
	c.stateTable, c.table = ids(statePages), ids(pages)
	c.state = newState(t, s.dev, statePages+2, s.c, s.statePage)
	if s.keys == 0 {
		c.kv = newCache(t, s.dev, pages+2, s.page, 0)
	} else {
		c.keys = newKeys(t, s.dev, pages+2, s.keys, s.page)
	}
	c.poison(t)
	return c
}

func (c *caches) poison(t testing.TB) {
	t.Helper()
	fill(t, c.state.Pool, 0xFF)
	fill(t, c.pool(), 0xFF)
}

func (c *caches) pool() tensor.Tensor {
	if c.keys.Pages() > 0 {
		return c.keys.Pool
	}
	return c.kv.Pool
}

// step processes the tokens at positions from up to to, those excluded.
func (s *sequence) step(c *caches, from, to int) {
	t, n := s.t, to-from
	t.Helper()
	positions, stateSlots, slots := make([]int32, n), make([]int64, n), make([]int64, n)
	for i := range n {
		p := from + i
		positions[i], slots[i] = int32(p), -1
		stateSlots[i] = int64(c.stateTable[p/s.statePage])*int64(s.statePage) + int64(p%s.statePage)
		if (p+1)%s.c.Ratio == 0 {
			q := p / s.c.Ratio
			slots[i] = int64(c.table[q/s.page])*int64(s.page) + int64(q%s.page)
		}
	}
	channels := s.c.Channels()
	saves := cache.SaveStateArgs{
		KvScore: put(t, s.rows, s.kvScore[from*2*channels:to*2*channels], n, 2*channels), Ape: s.ape,
		Positions: put(t, s.positions, positions, n), Slots: put(t, s.stateSlots, stateSlots, n), State: c.state,
	}
	toReq := s.toReq
	toReq.Shape = []int{n}
	args := cache.CompressArgs{
		Positions: saves.Positions, TokenToReq: toReq, StateSlots: saves.Slots, Slots: put(t, s.slots, slots, n), State: c.state,
		StateTable: put(t, s.table, c.stateTable, 1, len(c.stateTable)), Norm: s.norm, CosSin: s.cosSin, Cache: c.kv, Keys: c.keys,
	}
	do(t, s.dev, func(rec *vk.Recorder) error {
		if s.saving != nil {
			args.KvScore, args.Ape = saves.KvScore, saves.Ape
			return s.saving.Record(rec, args)
		}
		if err := s.save.Record(rec, saves); err != nil {
			return err
		}
		return s.compress.Record(rec, args)
	})
}

// put writes values to the beginning of a tensor, which it returns.
func put[T any](t testing.TB, x tensor.Tensor, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	x.Shape = shape
	testkit.Put(t, x, v)
	return x
}

// entries are the bytes of the sequence's entries, in order.
func (s *sequence) entries(c *caches) []byte {
	pool := testkit.Download[byte](s.t, bytesOf(c.pool()))
	var all []byte
	for q := range s.n / s.c.Ratio {
		slot := int64(c.table[q/s.page])*int64(s.page) + int64(q%s.page)
		if s.keys != 0 {
			l := c.keys.Layout
			all = append(all, pool[l.RowOffset(slot):][:l.Format.RowBytes()]...)
			all = append(all, pool[l.ScaleOffset(slot):][:cache.IndexScaleBytes]...)
			continue
		}
		l := c.kv.Layout
		all = append(all, pool[l.RowOffset(slot):][:cache.RecordV4.RowBytes()]...)
		all = append(all, pool[l.ScaleOffset(slot):][:cache.RecordV4.ScaleBytes()]...)
	}
	return all
}

// Any split of a sequence into steps gives the same bytes.
func TestCompressStepSplits(t *testing.T) {
	dev := testkit.Device(t)
	for _, k := range compressors {
		t.Run(k.name, func(t *testing.T) {
			n := max(77, 2*k.c.Ratio+17)
			s := newSequence(t, dev, k, n)
			whole := s.newCaches(1)
			s.step(whole, 0, n)
			want := s.entries(whole)
			require.LessOrEqual(t, bytes.Count(want, []byte{0xFF}), len(want)/4, "entries were not written")
			rng := rand.New(rand.NewPCG(5, 5))
			for name, next := range map[string]func(at int) int{
				"one at a time":                func(at int) int { return 1 },
				"three":                        func(at int) int { return 3 },
				"four":                         func(at int) int { return 4 },
				"any":                          func(at int) int { return 1 + rng.IntN(50) },
				"all that save, one at a time": func(at int) int { return 1 },
				"all that save, up to fifty":   func(at int) int { return 1 + rng.IntN(50) },
				"prompt then decode": func(at int) int {
					if at == 0 {
						return n - 15
					}
					return 1
				},
			} {
				c := s.newCaches(2)
				if s.saving = nil; strings.Contains(name, "that save") {
					cfg := k.config()
					cfg.Save, cfg.Variant = true, k.saves[0]
					if strings.HasSuffix(name, "fifty") {
						cfg.Variant = k.saves[1]
					}
					var err error
					if s.saving, err = cache.NewCompress(dev, cfg); errors.Is(err, vk.ErrMissingFeature) {
						t.Log(err)
					} else if err != nil {
						t.Fatal(err)
					}
				}
				for at := 0; at < n; {
					to := min(at+next(at), n)
					s.step(c, at, to)
					at = to
				}
				assert.True(t, bytes.Equal(s.entries(c), want), "steps of %s give other bytes than one step", name)
			}
			s.saving = nil
			// A rejected token's positions are processed again, with other data before.
			c := s.newCaches(3)
			s.step(c, 0, n)
			s.kvScore = slices.Clone(s.kvScore)
			right := slices.Clone(s.kvScore)
			for i := range s.kvScore[(n-20)*2*k.c.Channels():] {
				s.kvScore[(n-20)*2*k.c.Channels()+i] *= -0.5
			}
			s.step(c, n-20, n)
			s.kvScore = right
			s.step(c, n-20, n)
			assert.True(t, bytes.Equal(s.entries(c), want), "processing positions again leaves other bytes")
		})
	}
}
