package cache_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// benchStep is a step whose launches rotate over states that no cache holds together.
type benchStep struct {
	compressor
	tokens   int
	save     *cache.SaveState
	compress *cache.Compress
	saves    []cache.SaveStateArgs
	args     []cache.CompressArgs
	closing  int
}

// newBenchStep makes decode steps in which every token is a request's and completes a
// group, or the prefill of one request.
func newBenchStep(b *testing.B, dev *vk.Device, k compressor, tokens int, prefill bool) *benchStep {
	s := &benchStep{compressor: k, tokens: tokens}
	channels, rng := k.c.Channels(), rand.New(rand.NewPCG(1, 9))
	requests, width, first := tokens, 2*k.c.Window()/k.statePage, 2*k.c.Window()-1
	if prefill {
		requests, width, first = 1, tokens/k.statePage, 0
	}
	l := must[cache.StateLayout](b)(cache.NewStateLayout(k.c, k.statePage, 0))
	used := requests * width
	sets := max(1, min(32, (512<<20)/(used*l.Stride)))
	cfg := k.config()
	cfg.MaxBytes = uint64(sets*used) * uint64(l.Stride)
	s.save = must[*cache.SaveState](b)(cache.NewSaveState(dev, cache.SaveStateConfig{Compression: k.c, Page: k.statePage, MaxBytes: cfg.MaxBytes}))
	s.compress = must[*cache.Compress](b)(cache.NewCompress(dev, cfg))
	state := must[cache.StateCache](b)(cache.NewState(dev, cache.StateConfig{Pages: sets * used, Layout: l}))
	b.Cleanup(func() { state.Pool.Close() })
	fill(b, state.Pool, 0x3C) // small positive numbers
	var kv cache.KVCache
	var keys cache.IndexKeyCache
	pages := tokens/k.page + 1
	if k.keys == 0 {
		kv = newCache(b, dev, pages, k.page, 0)
	} else {
		kl := must[cache.IndexKeyLayout](b)(cache.NewIndexKeyLayout(k.keys, k.page, 0))
		keys = must[cache.IndexKeyCache](b)(cache.NewIndexKeys(dev, cache.IndexKeysConfig{Pages: pages, Layout: kl}))
		b.Cleanup(func() { keys.Pool.Close() })
	}
	positions, toReq, slots := make([]int32, tokens), make([]int32, tokens), make([]int64, tokens)
	for i := range tokens {
		positions[i], toReq[i] = int32(first), int32(i)
		if prefill {
			positions[i], toReq[i] = int32(i), 0
		}
		slots[i] = -1
		if (int(positions[i])+1)%k.c.Ratio == 0 {
			slots[i] = int64(s.closing)
			s.closing++
		}
	}
	at, req := upload(b, dev, tensor.I32, positions, tokens), upload(b, dev, tensor.I32, toReq, tokens)
	out := upload(b, dev, tensor.I64, slots, tokens)
	rows := upload(b, dev, tensor.F32, make([]float32, tokens*2*channels), tokens, 2*channels)
	ape := upload(b, dev, tensor.F32, make([]float32, k.c.Ratio*channels), k.c.Ratio, channels)
	norm := upload(b, dev, tensor.BF16, make([]uint16, k.c.Dim), k.c.Dim)
	turns := (max(tokens, first) + 1) / k.c.Ratio
	cosSin := upload(b, dev, tensor.F32, make([]float32, turns*64), turns, 64)
	perm := rng.Perm(sets * used)
	for set := range sets {
		table, stateSlots := make([]int32, used), make([]int64, tokens)
		for i := range table {
			table[i] = int32(perm[set*used+i])
		}
		for i, p := range positions {
			stateSlots[i] = int64(table[int(toReq[i])*width+int(p)/k.statePage])*int64(k.statePage) + int64(int(p)%k.statePage)
		}
		st := upload(b, dev, tensor.I64, stateSlots, tokens)
		s.saves = append(s.saves, cache.SaveStateArgs{KvScore: rows, Ape: ape, Positions: at, Slots: st, State: state})
		s.args = append(s.args, cache.CompressArgs{Positions: at, TokenToReq: req, StateSlots: st, Slots: out, State: state,
			StateTable: upload(b, dev, tensor.I32, table, requests, width), Norm: norm, CosSin: cosSin, Cache: kv, Keys: keys})
	}
	return s
}

func (s *benchStep) recordSave(rec *vk.Recorder, i int) error {
	return s.save.Record(rec, s.saves[i%len(s.saves)])
}

func (s *benchStep) recordCompress(rec *vk.Recorder, i int) error {
	return s.compress.Record(rec, s.args[i%len(s.args)])
}

func (s *benchStep) recordBoth(rec *vk.Recorder, i int) error {
	return errors.Join(s.recordSave(rec, i), s.recordCompress(rec, i))
}

// BenchmarkCompress times both dispatches, and each alone. The bytes are those that
// have to move: rows in and state out, window in and entry out. Part none is a compress
// in which no token has a slot for its entry: what a launch costs.
func BenchmarkCompress(b *testing.B) {
	dev := testkit.Device(b)
	for _, k := range compressors {
		for _, n := range []int{1, 32, 128, 4096} {
			b.Run(fmt.Sprintf("%s/tokens=%d", k.name, n), func(b *testing.B) {
				s := newBenchStep(b, dev, k, n, n > 1000)
				saved, read := s.tokens*16*k.c.Channels(), s.read()
				b.Run("save", func(b *testing.B) { timeGPU(b, dev, saved, s.recordSave) })
				b.Run("compress", func(b *testing.B) { timeGPU(b, dev, read, s.recordCompress) })
				b.Run("both", func(b *testing.B) { timeGPU(b, dev, saved+read, s.recordBoth) })
				none := upload(b, dev, tensor.I64, slices.Repeat([]int64{-1}, n), n)
				b.Run("none", func(b *testing.B) {
					timeGPU(b, dev, 0, func(rec *vk.Recorder, i int) error {
						a := s.args[i%len(s.args)]
						a.Slots = none
						return s.compress.Record(rec, a)
					})
				})
			})
		}
	}
}

// read returns the bytes that a compress has to move.
func (s *benchStep) read() int {
	return s.closing * (8*s.c.Window()*s.c.Dim + cache.RecordV4.SlotBytes())
}
