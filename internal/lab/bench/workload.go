package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	page = 64 // slots of a page, of both caches of a C4A layer
	// rotateBytes is what the input sets of a batch touch together: past the
	// last-level cache of every GPU that we know of.
	rotateBytes = 256 << 20
	maxSets     = 512
	// pattern is the number of distinct random KV rows that the caches are filled
	// with, over and over: slot s of a cache holds row s % pattern.
	pattern = 4096
)

// workload is the device memory of one batch size: caches, and input sets that
// touch different parts of them.
type workload struct {
	dev    *vk.Device
	o      DecodeOptions
	batch  int
	rng    *rand.Rand
	decode *pipeline.Decode
	arena  *tensor.Arena

	window, comp cache.KVCache
	rows         []uint16 // [pattern, 512] bf16
	sink         []float32
	sets         []inputSet
}

// inputSet is the input of one step. The host copies serve the check.
type inputSet struct {
	step  pipeline.StepArgs
	layer pipeline.LayerArgs
	host  *hostSet
}

type hostSet struct {
	seqLens, winTable, compTable, picks []int32
	q, kv                               []uint16
}

func newWorkload(ctx context.Context, dev *vk.Device, o DecodeOptions, batch int, p Progress) (*workload, error) {
	w := &workload{dev: dev, o: o, batch: batch, rng: rand.New(rand.NewPCG(o.Seed, uint64(batch)))}
	if err := w.build(ctx, p); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Close frees the workload's memory.
func (w *workload) Close() error {
	var errs []error
	if w.decode != nil {
		errs = append(errs, w.decode.Close())
	}
	if w.arena != nil {
		errs = append(errs, w.arena.Close())
	}
	for _, c := range []cache.KVCache{w.window, w.comp} {
		if !c.Pool.IsZero() {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func (w *workload) build(ctx context.Context, p Progress) error {
	o, t := w.o, w.batch
	touched := t * ((o.TopK+o.Window)*cache.SlotBytes + o.Heads*2*2*512)
	sets, rotate := min(maxSets, max(2, rotateBytes/touched)), rotateBytes
	if w.dev.Adapter().Type == vk.TypeCPU {
		sets, rotate = 2, 8<<20
	}

	// Compressed pages: enough requests that picks rotate past the cache, too.
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return err
	}
	perRequest := (o.Context/4 + page - 1) / page
	requests := max(t, rotate/(perRequest*layout.Stride))
	if w.comp, err = cache.NewKV(w.dev, cache.KVConfig{Label: "compressed cache", Pages: requests * perRequest, Layout: layout}); err != nil {
		return err
	}
	// Window pages: each set has its own requests, whose older pages are recycled.
	winPages := (o.Window-1+page-1)/page + 1
	if w.window, err = cache.NewKV(w.dev, cache.KVConfig{Label: "window cache", Pages: sets * t * winPages, Layout: layout}); err != nil {
		return err
	}
	if w.decode, err = pipeline.NewDecode(w.dev, pipeline.DecodeConfig{
		Tokens: t, Heads: o.Heads, Ratio: pipeline.RatioC4A, Window: o.Window, TopK: o.TopK, Variant: o.Variant,
		WindowCache: w.window, CompressedCache: w.comp,
	}); err != nil {
		return err
	}
	w.rows = w.normal(pattern*512, 1)
	for _, c := range []cache.KVCache{w.window, w.comp} {
		if err := w.fill(ctx, c, p); err != nil {
			return err
		}
	}
	return w.inputs(ctx, sets, requests, perRequest, winPages)
}

// normal returns n bf16 values of a normal distribution.
func (w *workload) normal(n int, sigma float32) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = numfmt.BF16Encode(float32(w.rng.NormFloat64()) * sigma)
	}
	return v
}

// fill quantises the pattern rows into every slot of a cache, on the device.
func (w *workload) fill(ctx context.Context, c cache.KVCache, p Progress) error {
	ins, err := cache.NewInsert(w.dev, cache.InsertConfig{Page: page, MaxBytes: c.Pool.Bytes()})
	if err != nil {
		return err
	}
	k, err := tensor.New(w.dev, "bench fill", tensor.BF16, pattern, 512)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.Upload(ctx, bytesOf(w.rows)); err != nil {
		return err
	}
	// The slots of 64 launches at a time: one submission must stay short.
	const launches = 64
	slots, err := tensor.NewIn(w.dev, vk.Upload, "bench fill", tensor.I64, launches, pattern)
	if err != nil {
		return err
	}
	defer slots.Close()
	total := c.Slots()
	for at := int64(0); at < total; at += launches * pattern {
		n := min(launches, (total-at+pattern-1)/pattern)
		host := slots.Buffer.Mapped()
		for i := range n * pattern {
			s := at + i
			if s >= total {
				s = -1
			}
			binary.LittleEndian.PutUint64(host[8*i:], uint64(s))
		}
		if err := run(ctx, w.dev, func(r *vk.Recorder) error {
			for i := range int(n) {
				row := slots.Rows(i, i+1)
				row.Shape = []int{pattern}
				// Launches write different slots, so nothing orders them.
				if err := ins.Record(r, cache.InsertArgs{K: k, Slots: row, Cache: c}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		p.Advance(min(at+launches*pattern, total), total)
	}
	return nil
}

func run(ctx context.Context, dev *vk.Device, f func(r *vk.Recorder) error) error {
	r, err := dev.NewRecorder()
	if err != nil {
		return err
	}
	if err := f(r); err != nil {
		r.Close()
		return err
	}
	c, err := r.End()
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	return errors.Join(err, c.Close())
}

// bytesOf is the little-endian image of a slice.
func bytesOf[T any](v []T) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(err) // only for types without a fixed size, which nobody passes
	}
	return b
}

func (w *workload) inputs(ctx context.Context, sets, requests, perRequest, winPages int) error {
	o, t := w.o, w.batch
	winWidth := (o.Context + page - 1) / page
	shapes := []struct {
		dt    tensor.DType
		shape []int
	}{
		{tensor.I32, []int{t + 1}}, {tensor.I32, []int{t}}, {tensor.I32, []int{t}}, {tensor.U8, []int{t}},
		{tensor.I32, []int{t, winWidth}}, {tensor.I32, []int{t, perRequest}},
		{tensor.BF16, []int{t, o.Heads, 512}}, {tensor.BF16, []int{t, 512}}, {tensor.I32, []int{t, o.TopK}},
	}
	common := tensor.Need(tensor.F32, o.Heads) + tensor.Need(tensor.BF16, t, o.Heads, 512) + tensor.Need(tensor.F32, t, o.Heads)
	var perSet uint64
	for _, s := range shapes {
		perSet += tensor.Need(s.dt, s.shape...)
	}
	var err error
	if w.arena, err = tensor.NewArena(w.dev, vk.DeviceLocal, "bench inputs", common+uint64(sets)*perSet); err != nil {
		return err
	}
	alloc := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x, e := w.arena.Alloc(dt, shape...)
		err = errors.Join(err, e)
		return x
	}
	sink, out, lse := alloc(tensor.F32, o.Heads), alloc(tensor.BF16, t, o.Heads, 512), alloc(tensor.F32, t, o.Heads)
	for range o.Heads {
		w.sink = append(w.sink, float32(w.rng.NormFloat64()))
	}
	if err != nil {
		return err
	}
	if err := sink.Upload(ctx, bytesOf(w.sink)); err != nil {
		return err
	}
	compPages, winPerm := w.rng.Perm(requests*perRequest), w.rng.Perm(sets*t*winPages)
	qs := w.normal(2*t*o.Heads*512, 1) // sets take their queries from different places of it
	queryStart, toReq, valid := make([]int32, t+1), make([]int32, t), make([]byte, t)
	for i := range t {
		queryStart[i+1], toReq[i], valid[i] = int32(i+1), int32(i), 1
	}
	for s := range sets {
		h := &hostSet{
			seqLens: make([]int32, t), winTable: make([]int32, t*winWidth), compTable: make([]int32, t*perRequest),
			picks: make([]int32, 0, t*o.TopK), kv: w.normal(t*512, 1),
		}
		at := w.rng.IntN(t*o.Heads*512/8) * 8
		h.q = qs[at : at+t*o.Heads*512]
		for i := range t {
			h.seqLens[i] = int32(o.Context - w.rng.IntN(min(4*page, o.Context-max(o.Window, 4*o.TopK)+1)))
			row := h.winTable[i*winWidth : (i+1)*winWidth]
			for j := range row {
				row[j] = -1
			}
			last := int(h.seqLens[i]-1) / page
			for j := range min(winPages, last+1) {
				row[last-j] = int32(winPerm[(s*t+i)*winPages+j])
			}
			r := (s*t + i) % requests
			for j := range perRequest {
				h.compTable[i*perRequest+j] = int32(compPages[r*perRequest+j])
			}
			h.picks = append(h.picks, w.pick(int(h.seqLens[i])/4)...)
		}
		x := inputSet{host: h}
		x.step = pipeline.StepArgs{
			QueryStart: alloc(tensor.I32, t+1), SeqLens: alloc(tensor.I32, t), TokenToReq: alloc(tensor.I32, t), IsValid: alloc(tensor.U8, t),
			WindowTable: alloc(tensor.I32, t, winWidth), CompressedTable: alloc(tensor.I32, t, perRequest),
		}
		x.layer = pipeline.LayerArgs{
			Q: alloc(tensor.BF16, t, o.Heads, 512), KV: alloc(tensor.BF16, t, 512), TopK: alloc(tensor.I32, t, o.TopK),
			Sink: sink, Window: w.window, Compressed: w.comp, Out: out, LSE: lse,
		}
		if err != nil {
			return err
		}
		if err := errors.Join(
			x.step.QueryStart.Upload(ctx, bytesOf(queryStart)), x.step.SeqLens.Upload(ctx, bytesOf(h.seqLens)),
			x.step.TokenToReq.Upload(ctx, bytesOf(toReq)), x.step.IsValid.Upload(ctx, valid),
			x.step.WindowTable.Upload(ctx, bytesOf(h.winTable)), x.step.CompressedTable.Upload(ctx, bytesOf(h.compTable)),
			x.layer.Q.Upload(ctx, bytesOf(h.q)), x.layer.KV.Upload(ctx, bytesOf(h.kv)), x.layer.TopK.Upload(ctx, bytesOf(h.picks)),
		); err != nil {
			return err
		}
		if s > 0 {
			x.host = nil // only the first set is checked
		}
		w.sets = append(w.sets, x)
	}
	return nil
}

// pick draws TopK different entries of n, ascending as the indexer gives them.
func (w *workload) pick(n int) []int32 {
	picks := make([]int32, 0, w.o.TopK)
	need := w.o.TopK
	for i := 0; need > 0; i++ { // selection sampling: each subset is equally likely
		if w.rng.IntN(n-i) < need {
			picks = append(picks, int32(i))
			need--
		}
	}
	return picks
}

// verify runs the step of the first set and checks the index lists of all tokens
// and the attention of some.
func (w *workload) verify(ctx context.Context) (verify.Result, error) {
	s, t, o := w.sets[0], w.batch, w.o
	if err := run(ctx, w.dev, func(r *vk.Recorder) error {
		// Poison: what the step does not write must not pass.
		return errors.Join(r.Fill(s.layer.Out.View(), 0xffffffff), r.Fill(s.layer.LSE.View(), 0xffffffff), w.recordStep(r, 0))
	}); err != nil {
		return verify.Result{}, err
	}
	winT, winLensT, compT, compLensT := w.decode.Indices()
	var read error
	fetch := func(x tensor.Tensor, as vectors.Type) vectors.Array {
		a := vectors.New(as, x.Shape...)
		read = errors.Join(read, x.Download(ctx, a.Data))
		return a
	}
	win, winLens, comp, compLens := fetch(winT, vectors.I32), fetch(winLensT, vectors.I32), fetch(compT, vectors.I32), fetch(compLensT, vectors.I32)
	out, lse := fetch(s.layer.Out, vectors.U16), fetch(s.layer.LSE, vectors.F32)
	if read != nil {
		return verify.Result{}, read
	}

	h := s.host
	queryStart, toReq, valid := make([]int32, t+1), make([]int32, t), make([]byte, t)
	for i := range t {
		queryStart[i+1], toReq[i], valid[i] = int32(i+1), int32(i), 1
	}
	winTable := attention.Table{Blocks: h.winTable, R: t, W: len(h.winTable) / t, Page: page}
	compTable := attention.Table{Blocks: h.compTable, R: t, W: len(h.compTable) / t, Page: page}
	wantWin, wantWinLens := make([]int32, t*o.Window), make([]int32, t)
	attention.WindowIndicesRef(t, o.Window, queryStart, h.seqLens, toReq, valid, winTable, wantWin, wantWinLens)
	wantComp, wantCompLens := attention.GlobalTopKRef(h.picks, o.TopK, toReq, compTable, valid)

	lists := verify.NewComparison(verify.ClassExact).
		Exact("window slots", win, vectors.FromI32(wantWin, t, o.Window)).Exact("window lens", winLens, vectors.FromI32(wantWinLens, t)).
		Exact("compressed slots", comp, vectors.FromI32(wantComp, t, o.TopK)).Exact("compressed lens", compLens, vectors.FromI32(wantCompLens, t)).Result()
	if !lists.Pass {
		return lists, nil
	}
	return w.verifyAttention(out, lse, wantWin, wantComp)
}

func (w *workload) verifyAttention(out, lse vectors.Array, win, comp []int32) (verify.Result, error) {
	o, t, h := w.o, w.batch, w.sets[0].host
	tokens := []int{0}
	if t > 1 {
		tokens = append(tokens, t-1)
	}
	if t > 2 {
		tokens = append(tokens, t/2)
	}
	// The caches as the host knows them: the pattern rows, and behind them the new
	// row of each token that is checked.
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return verify.Result{}, err
	}
	pool := make([]byte, layout.PoolBytes(pattern/page+1))
	rows, slots := w.rows, make([]int64, pattern+len(tokens))
	for i := range slots {
		slots[i] = int64(i)
	}
	for _, i := range tokens {
		rows = append(rows[:len(rows):len(rows)], h.kv[i*512:(i+1)*512]...)
	}
	if err := cache.InsertRef(pool, layout, rows, slots); err != nil {
		return verify.Result{}, err
	}
	c := verify.NewComparison(verify.ClassTolerance)
	width := o.Heads * 512
	for n, i := range tokens {
		local := func(global []int32) []int32 {
			l := make([]int32, len(global))
			for j, g := range global {
				l[j] = g % pattern
			}
			return l
		}
		winLocal := local(win[i*o.Window : (i+1)*o.Window])
		winLocal[o.Window-1] = int32(pattern + n) // the newest row of the window is the inserted one
		window := &attention.Slots{Pool: pool, Layout: layout, Indices: winLocal, Width: o.Window, Lens: []int32{int32(o.Window)}}
		picks := &attention.Slots{Pool: pool, Layout: layout, Indices: local(comp[i*o.TopK : (i+1)*o.TopK]), Width: o.TopK, Lens: []int32{int32(o.TopK)}}
		wantOut, wantLSE, err := attention.DecodeRef(h.q[i*width:(i+1)*width], o.Heads, window, picks, w.sink, attention.DefaultScale)
		if err != nil {
			return verify.Result{}, err
		}
		// The reference rounds no weights; see verify.CloseWeighted.
		sides := 0
		if verify.RoundsWeights(w.decode.Variant()) {
			sides = 1
		}
		c.CloseWeighted(fmt.Sprintf("out of token %d", i), vectors.FromU16(out.U16()[i*width:(i+1)*width], o.Heads, 512), vectors.FromBF16(wantOut, o.Heads, 512),
			verify.DecodeOut, sides, func() ([]float32, error) {
				return attention.DecodeSpreadRef(h.q[i*width:(i+1)*width], o.Heads, window, picks, w.sink, attention.DefaultScale)
			})
		c.Close(fmt.Sprintf("lse of token %d", i), vectors.FromF32(lse.F32()[i*o.Heads:(i+1)*o.Heads], o.Heads), vectors.FromF32(wantLSE, o.Heads), verify.DecodeLSE)
	}
	r := c.Result()
	if math.IsNaN(r.Error) {
		r.Pass = false
	}
	return r, nil
}
