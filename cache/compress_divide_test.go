package cache_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// divideToken is a token of a step whose entries are shared out.
type divideToken struct {
	p, request  int32
	state, slot int64
}

// divideRequests and divideWidth are the shape of the table of pages of states.
const divideRequests, divideWidth = 48, 17

// divideStep is a step in which 40 requests complete an entry, in the slots of their numbers,
// and others have something that keeps them from it.
func divideStep() (tokens []divideToken, table []int32) {
	const width, requests = divideWidth, divideRequests
	for i := range requests * width {
		table = append(table, int32((i*7)%(requests*width)))
	}
	add := func(r, p int32) *divideToken {
		state := int64(-1)
		if p >= 0 {
			state = int64(table[r*width+p/8])*8 + int64(p%8)
		}
		tokens = append(tokens, divideToken{p, r, state, int64(r)})
		return &tokens[len(tokens)-1]
	}
	for r := range int32(40) {
		switch {
		case r%4 == 1: // rows that are tokens of the step, and stored nowhere
			for p := 127 - r%8; p < 127; p++ {
				x := add(r, p)
				x.state, x.slot = -1, -1
			}
		case r%4 == 2: // absent rows
			table[r*width+3], table[r*width+r%16] = -1, 1<<30
			table[r*width+15] = table[r*width+16] // that of the token itself
		}
		add(r, 127)
	}
	add(40, 126) // completes nothing
	add(41, 127).slot = -1
	add(42, 127).slot = 1 << 20
	add(43, 127).state = 1 << 20
	add(44, 127).request = requests
	add(45, -1)
	add(0, 127) // the same entry again, of the same numbers
	return tokens, table
}

// divideRun runs the step in one form or the other, and then twice in one submission, and
// returns what the pools of entries and of states are each time.
func divideRun(t *testing.T, dev *vk.Device, divide bool) (pools, states [][]byte) {
	t.Helper()
	k := compressors[4]
	cfg := k.config()
	cfg.Save, cfg.Divide = true, divide
	c := must[*cache.Compress](t)(cache.NewCompress(dev, cfg))
	if divide != c.Divides() {
		t.Skipf("device cannot divide entries: it lacks %v", dev.Caps().Missing(cache.CompressVariants[1].Requires))
	}
	list, table := divideStep()
	n, rng := len(list), rand.New(rand.NewPCG(4, 4))
	floats := func(n int) (v []float32) {
		for range n {
			v = append(v, float32(rng.NormFloat64()))
		}
		return v
	}
	var positions, requests []int32
	var stateSlots, slots []int64
	for _, x := range list {
		positions, requests = append(positions, x.p), append(requests, x.request)
		stateSlots, slots = append(stateSlots, x.state), append(slots, x.slot)
	}
	l := must[cache.StateLayout](t)(cache.NewStateLayout(k.c, k.statePage, 0))
	state := must[cache.StateCache](t)(cache.NewState(dev, cache.StateConfig{Pages: len(table), Layout: l}))
	defer state.Close()
	if err := state.Pool.Upload(t.Context(), encode(floats(int(state.Pool.Bytes()/4)))); err != nil {
		t.Fatal(err)
	}
	rows := floats(n * 1024)
	copy(rows[(n-1)*1024:], rows[:1024])
	kv := newCache(t, dev, 24, k.page, 0)
	a := cache.CompressArgs{
		Positions: upload(t, dev, tensor.I32, positions, n), TokenToReq: upload(t, dev, tensor.I32, requests, n),
		StateSlots: upload(t, dev, tensor.I64, stateSlots, n), Slots: upload(t, dev, tensor.I64, slots, n), State: state,
		StateTable: upload(t, dev, tensor.I32, table, divideRequests, divideWidth), Norm: upload(t, dev, tensor.F32, floats(512), 512),
		CosSin: upload(t, dev, tensor.F32, floats(64), 1, 64), Cache: kv,
		KvScore: upload(t, dev, tensor.F32, rows, n, 1024), Ape: upload(t, dev, tensor.F32, floats(128*512), 128, 512),
	}
	if divide {
		a.Pooled = upload(t, dev, tensor.F32, slices.Repeat([]float32{float32(math.NaN())}, n*512), n, 512)
		a.Arrived = upload(t, dev, tensor.U32, make([]uint32, n), n)
	}
	for range 2 {
		if err := kv.Fill(t.Context(), 0xFF); err != nil {
			t.Fatal(err)
		}
		do(t, dev, func(rec *vk.Recorder) error {
			if len(pools) == 0 {
				return c.Record(rec, a)
			}
			return errors.Join(c.Record(rec, a), c.Record(rec, a))
		})
		pools, states = append(pools, download[byte](t, bytesOf(kv.Pool))), append(states, download[byte](t, bytesOf(state.Pool)))
	}
	if divide && slices.Max(download[uint32](t, a.Arrived)) != 0 {
		t.Error("counters are not as they were")
	}
	return pools, states
}

// Entries that workgroups share have the bytes of those that one makes.
func TestCompressDivided(t *testing.T) {
	dev := testkit.Device(t)
	pools, states := divideRun(t, dev, false)
	gotPools, gotStates := divideRun(t, dev, true)
	for i := range pools {
		if !bytes.Equal(gotPools[i], pools[0]) || !bytes.Equal(gotStates[i], states[0]) {
			t.Errorf("submission %d gives other bytes", i)
		}
	}
	l := must[cache.Layout](t)(cache.NewLayout(compressors[4].page, 0))
	for slot := range int64(divideRequests) {
		if made := bytes.Count(pools[0][l.RowOffset(slot):][:cache.RowBytes], []byte{0xFF}) < cache.RowBytes/2; made != (slot < 40) {
			t.Errorf("slot %d written: %v", slot, made)
		}
	}
}

// What passes between workgroups is there where entries are shared, and only there.
func TestCompressDividedArguments(t *testing.T) {
	dev := testkit.Device(t)
	s := newSequence(t, dev, compressors[4], 9)
	c := s.newCaches(1)
	cfg := s.config()
	cfg.Save = true
	whole := must[*cache.Compress](t)(cache.NewCompress(dev, cfg))
	cfg.Divide = true
	parts := must[*cache.Compress](t)(cache.NewCompress(dev, cfg))
	cfg.Variant = "base"
	if base := must[*cache.Compress](t)(cache.NewCompress(dev, cfg)); whole.Divides() || base.Divides() {
		t.Error("entries are divided that should not be")
	}
	with := func(x *cache.Compress, pooled, arrived tensor.Tensor) func(*vk.Recorder) error {
		return func(rec *vk.Recorder) error {
			return x.Record(rec, cache.CompressArgs{Positions: s.positions, TokenToReq: s.toReq, StateSlots: s.stateSlots, Slots: s.slots, State: c.state,
				StateTable: s.table, Norm: s.norm, CosSin: s.cosSin, Cache: c.kv, KvScore: s.rows, Ape: s.ape, Pooled: pooled, Arrived: arrived})
		}
	}
	refuses(t, dev, c.kv.Pool, map[string]func(*vk.Recorder) error{"not divided": with(whole, s.pooled, s.arrived)})
	if !parts.Divides() {
		t.Skip("device cannot divide entries")
	}
	few, wide, other := s.pooled, s.pooled, s.arrived
	few.Shape, wide.Shape, other.DType = []int{8, 512}, []int{18, 256}, tensor.F32
	refuses(t, dev, c.kv.Pool, map[string]func(*vk.Recorder) error{
		"neither":      with(parts, tensor.Tensor{}, tensor.Tensor{}),
		"no counters":  with(parts, s.pooled, tensor.Tensor{}),
		"few rows":     with(parts, few, s.arrived),
		"other rows":   with(parts, wide, s.arrived),
		"counter type": with(parts, s.pooled, other),
	})
}
