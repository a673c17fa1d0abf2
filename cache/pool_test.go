package cache

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

func newPool(t *testing.T, n int) *BlockPool {
	t.Helper()
	p, err := NewBlockPool(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolAllOrNothing(t *testing.T) {
	p := newPool(t, 5)
	got, err := p.Alloc(3)
	if err != nil || len(got) != 3 || p.Free() != 2 {
		t.Fatalf("Alloc(3) = %v, %v, %d free", got, err, p.Free())
	}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"more than free":         {func() error { _, err := p.Alloc(3); return err }, ErrPoolFull},
		"negative":               {func() error { _, err := p.Alloc(-1); return err }, vk.ErrArgument},
		"release of a free page": {func() error { return p.Release(got[0], 4) }, ErrDoubleFree},
		"release once too often": {func() error { return p.Release(got[0], got[1], got[0]) }, ErrDoubleFree},
		"release beyond":         {func() error { return p.Release(got[0], 5) }, ErrForeignBlock},
		"release of -1":          {func() error { return p.Release(got[0], -1) }, ErrForeignBlock},
		"retain of a free page":  {func() error { return p.Retain(got[0], 4) }, ErrForeignBlock},
		"retain beyond":          {func() error { return p.Retain(got[0], 99) }, ErrForeignBlock},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if p.Free() != 2 || p.Refs(got[0]) != 1 || p.Refs(got[1]) != 1 {
			t.Fatalf("%s: changed the pool", name)
		}
	}
	if err := p.Retain(got[0], got[0]); err != nil || p.Refs(got[0]) != 3 {
		t.Fatalf("Retain twice: %v, %d holders", err, p.Refs(got[0]))
	}
	if err := p.Release(got[0], got[0], got[0]); err != nil || p.Free() != 3 || p.Refs(got[0]) != 0 {
		t.Fatalf("Release of three holders at once: %v, %d free", err, p.Free())
	}
	if _, err := NewBlockPool(-1); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("NewBlockPool(-1): %v", err)
	}
}

// A pool against a plain map of holders, under random calls, good and bad.
func FuzzPool(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity := rng.IntN(20)
		p, model := newPool(t, capacity), map[int32]int{}
		for range 400 {
			ids := make([]int32, rng.IntN(4))
			for i := range ids {
				ids[i] = int32(rng.IntN(capacity+2)) - 1
			}
			switch rng.IntN(3) {
			case 0:
				n := rng.IntN(6)
				got, err := p.Alloc(n)
				if fits := n <= capacity-len(model); fits != (err == nil) || err != nil && !errors.Is(err, ErrPoolFull) {
					t.Fatalf("Alloc(%d) with %d of %d held: %v", n, len(model), capacity, err)
				}
				for _, b := range got {
					if model[b] != 0 || b < 0 || int(b) >= capacity {
						t.Fatalf("Alloc gave page %d, held %d times", b, model[b])
					}
					model[b] = 1
				}
			case 1:
				ok := true
				for _, b := range ids {
					ok = ok && model[b] > 0
				}
				if err := p.Retain(ids...); ok != (err == nil) {
					t.Fatalf("Retain(%v): %v, model %v", ids, err, model)
				} else if ok {
					for _, b := range ids {
						model[b]++
					}
				}
			case 2:
				count := map[int32]int{}
				ok := true
				for _, b := range ids {
					count[b]++
					ok = ok && model[b] >= count[b]
				}
				if err := p.Release(ids...); ok != (err == nil) {
					t.Fatalf("Release(%v): %v, model %v", ids, err, model)
				} else if ok {
					for b, n := range count {
						if model[b] -= n; model[b] == 0 {
							delete(model, b)
						}
					}
				}
			}
			if p.Free() != capacity-len(model) {
				t.Fatalf("%d free, want %d", p.Free(), capacity-len(model))
			}
			for b := range int32(capacity) {
				if p.Refs(b) != model[b] {
					t.Fatalf("page %d has %d holders, want %d", b, p.Refs(b), model[b])
				}
			}
		}
	})
}

func TestPoolConcurrent(t *testing.T) {
	p := newPool(t, 64)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, err := p.Alloc(8)
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(p.Retain(got...), p.Release(got...), p.Release(got...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if p.Free() != 64 {
		t.Errorf("%d pages free at the end, want 64", p.Free())
	}
}
