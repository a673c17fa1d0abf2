package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// opRig is the device memory of a case and what to do with it.
type opRig struct {
	ctx context.Context
	dev *vk.Device
	o   IndexerOptions
	p   Progress
	rng *rand.Rand
	err error // the first one of put, out and scratch

	variant string
	sets    int // input sets that the parts rotate
	check   func(ctx context.Context) (verify.Result, error)
	parts   []opPart

	arenas []*tensor.Arena
	room   uint64 // of the last arena
	pools  []tensor.Tensor
	spread []float32 // random numbers that operands are cut from
}

// opPart is something to time. record records launch i, on set i modulo the sets.
type opPart struct {
	name        string
	bytes, flop float64
	record      func(r *vk.Recorder, i int) error
	// inner launches lie between two timestamps, and a sample is their time over their number, as others time short
	// kernels; 0: one.
	inner int
	floor bool // what takes its time is bytes, or launches: a floor says more than a share of the limits
}

func newOpRig(ctx context.Context, dev *vk.Device, o IndexerOptions, p Progress) *opRig {
	return &opRig{ctx: ctx, dev: dev, o: o, p: p, rng: rand.New(rand.NewPCG(o.Seed, 1))}
}

// Close frees the memory.
func (r *opRig) Close() error {
	var errs []error
	for _, a := range r.arenas {
		errs = append(errs, a.Close())
	}
	for _, t := range r.pools {
		errs = append(errs, t.Close())
	}
	r.arenas, r.pools = nil, nil
	return errors.Join(errs...)
}

// rotate decides how many sets of so many bytes it takes to get past the last-level
// cache.
func (r *opRig) rotate(bytes int) { r.rotateUpTo(64, bytes) }

func (r *opRig) rotateUpTo(most, bytes int) {
	r.sets = min(most, max(2, rotateBytes/max(bytes, 1)))
	if r.dev.Adapter().Type == vk.TypeCPU {
		r.sets = 2
	}
}

// out makes a tensor whose content is undefined.
func (r *opRig) out(dt tensor.DType, shape ...int) tensor.Tensor {
	const chunk = 64 << 20
	need := tensor.Need(dt, shape...)
	if r.err == nil && need > r.room {
		size := max(need, chunk)
		a, err := tensor.NewArena(r.dev, vk.DeviceLocal, "bench inputs", size)
		if r.err = err; err == nil {
			r.arenas, r.room = append(r.arenas, a), size
		}
	}
	if r.err != nil {
		return tensor.Tensor{}
	}
	var t tensor.Tensor
	t, r.err = r.arenas[len(r.arenas)-1].Alloc(dt, shape...)
	r.room -= need
	return t
}

// put makes a tensor of a slice's values.
func put[T any](r *opRig, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t := r.out(dt, shape...)
	if r.err == nil {
		r.err = t.Upload(r.ctx, bytesOf(v))
	}
	return t
}

// scratch makes a buffer range; none for 0 bytes.
func (r *opRig) scratch(bytes uint64) vk.View {
	if bytes == 0 {
		return vk.View{}
	}
	t := r.out(tensor.U8, int(bytes))
	if r.err != nil {
		return vk.View{}
	}
	return t.View()
}

// normal is n numbers of a normal distribution, which nobody changes: a random cut of a store
// of them, so that large cases do not wait for their making.
func (r *opRig) normal(n int) []float32 {
	if len(r.spread) < 2*n {
		r.spread = normals(r.o.Seed, max(2*n, 1<<20))
	}
	at := r.rng.IntN(len(r.spread) - n)
	return r.spread[at : at+n]
}

// stored are the numbers of the seed that was asked for last: to make them takes a processor
// longer than most of its cases. It keeps up to mostStored.
var stored struct {
	sync.Mutex
	seed uint64
	rng  *rand.Rand
	v    []float32
}

const mostStored = 1 << 24

// normals are the first n numbers of a seed.
func normals(seed uint64, n int) []float32 {
	stored.Lock()
	defer stored.Unlock()
	if stored.rng == nil || stored.seed != seed {
		stored.seed, stored.rng, stored.v = seed, rand.New(rand.NewPCG(seed, 2)), nil
	}
	for len(stored.v) < min(n, mostStored) {
		stored.v = append(stored.v, float32(stored.rng.NormFloat64()))
	}
	if n <= mostStored {
		return stored.v[:n:n]
	}
	v, rng := slices.Grow(slices.Clone(stored.v), n-len(stored.v)), rand.New(rand.NewPCG(seed, 3))
	for len(v) < n {
		v = append(v, float32(rng.NormFloat64()))
	}
	return v
}

func (r *opRig) normalBF16(n int) []uint16 { return numfmt.BF16EncodeSlice(nil, r.normal(n)) }

// fill writes a pattern into a pool over and over, from its beginning.
func (r *opRig) fill(pool tensor.Tensor, pattern []byte) error {
	flat := tensor.Tensor{Buffer: pool.Buffer, Offset: pool.Offset, DType: tensor.U8, Shape: []int{int(pool.Bytes())}}
	total := flat.Shape[0]
	done := min(len(pattern), total)
	if err := flat.Rows(0, done).Upload(r.ctx, pattern[:done]); err != nil {
		return err
	}
	for done < total { // what is there doubles
		n := min(done, total-done)
		if err := run(r.ctx, r.dev, func(rec *vk.Recorder) error {
			return rec.Copy(flat.Rows(done, done+n).View(), flat.Rows(0, n).View())
		}); err != nil {
			return err
		}
		done += n
	}
	return nil
}

// pages makes a pool of so many pages, filled with a pattern.
func (r *opRig) pages(n, stride int, pattern []byte) (tensor.Tensor, error) {
	t, err := tensor.New(r.dev, "bench pool", tensor.U8, n, stride)
	if err != nil {
		return t, err
	}
	r.pools = append(r.pools, t)
	return t, r.fill(t, pattern)
}

// keyPages is how many different pages of keys there are: page p of a pool holds the
// bytes of page p % keyPages.
const keyPages = 256

// keys makes a pool of indexer keys, and the pages that it repeats.
func (r *opRig) keys(l cache.IndexKeyLayout, n int) (cache.IndexKeyCache, []byte, error) {
	pattern := make([]byte, min(n, keyPages)*l.Stride)
	x := r.normalBF16(cache.IndexDim * 4096)
	for slot := range int64(min(n, keyPages) * l.Page) {
		at := r.rng.IntN(4096-1) * cache.IndexDim
		shift := r.rng.IntN(cache.IndexDim)
		codes, scale := cache.QuantiseKeyRef(x[at+shift:][:cache.IndexDim], l.Format)
		copy(pattern[l.RowOffset(slot):], codes)
		copy(pattern[l.ScaleOffset(slot):], scale[:])
	}
	pool, err := r.pages(n, l.Stride, pattern)
	return cache.IndexKeyCache{Pool: pool, Layout: l}, pattern, err
}

// tables makes a block table for every set, [requests, width] in random order, and says
// how many pages they name: enough that the sets' keys get past the last-level cache.
func (r *opRig) tables(requests, width, stride int) (pages int, tables [][]int32) {
	all := min(max(requests, rotateBytes/(width*stride)), requests*r.sets)
	free := r.shuffledPages(all * width)
	for s := range r.sets {
		var table []int32
		for i := range requests {
			at := (s*requests + i) % all
			table = append(table, free[at*width:][:width]...)
		}
		tables = append(tables, table)
	}
	return len(free), tables
}

// shuffledPages are the numbers 0..n-1 in random order.
func (r *opRig) shuffledPages(n int) []int32 {
	v := make([]int32, n)
	for i, p := range r.rng.Perm(n) {
		v[i] = int32(p)
	}
	return v
}

// fetch reads a tensor's elements back.
func fetch[T any](ctx context.Context, t tensor.Tensor) ([]T, error) {
	b, v := make([]byte, t.Bytes()), make([]T, t.Len())
	if err := t.Download(ctx, b); err != nil {
		return nil, err
	}
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return v, err
}

// some are up to n indices below of, the first and the last among them.
func some(n, of int) []int {
	if of <= n {
		n = of
	}
	at := make([]int, n)
	for i := range at {
		at[i] = i * (of - 1) / max(n-1, 1)
	}
	return at
}

// formatOf is the key format that an operation's name ends in, 0 if it has none.
func formatOf(op string) cache.IndexKeyFormat {
	for _, f := range []cache.IndexKeyFormat{cache.IndexKeyFP8, cache.IndexKeyMXFP4} {
		if strings.HasSuffix(op, "_"+f.String()) {
			return f
		}
	}
	return 0
}

// Launches that are shorter than shortLaunch are timed several at a time: a timestamp
// behind each would add what it costs itself, about 2 us on an H100.
const (
	shortLaunch = 50e3 // ns
	launches    = 16
)

// floor tells whether any part has one.
func (r *opRig) floor() bool {
	return slices.ContainsFunc(r.parts, func(p opPart) bool { return p.floor })
}

// settle decides how many launches lie between two timestamps.
func (p opPart) settle(ctx context.Context, dev *vk.Device) (opPart, error) {
	if p.inner > 0 {
		return p, nil
	}
	p.inner = 1
	if dev.Adapter().Type == vk.TypeCPU {
		return p, nil
	}
	t, err := sample(ctx, dev, 3, 5, p.record)
	if err == nil && t.Median*1e3 < shortLaunch {
		p.inner = launches
	}
	return p, err
}

// sample times a part that is settled: reps samples after warmup launches, each launch behind
// the end of the one before. A sample is one launch, or the average of several short ones.
func (p opPart) sample(ctx context.Context, dev *vk.Device, warmup, reps int) (Time, error) {
	n := p.inner
	t, err := sample(ctx, dev, (warmup+n-1)/n, reps, func(r *vk.Recorder, i int) error {
		for k := range n {
			if err := errors.Join(r.Separate(), p.record(r, i*n+k)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range t.Samples {
		t.Samples[i] /= float64(n)
	}
	t.Median, t.P95 = t.Median/float64(n), t.P95/float64(n)
	return t, err
}
