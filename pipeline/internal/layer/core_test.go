package layer

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// core is the schedule between the projections of a layer: it stores states and entries, scores and
// picks, and attends. Tests give it what projections would.
var core = schedule{
	{save, indexSave},
	{compress, indexCompress, indexQuantise},
	{indexScores}, {indexSelect},
	{attend},
}

// coreCase is a kind of layer.
type coreCase struct {
	name     string
	spec     model.LayerSpec
	format   cache.IndexKeyFormat
	hadamard bool
}

var coreCases = []coreCase{
	{"window", model.Window, 0, false},
	{"c4a fp8", model.C4A, cache.IndexKeyFP8, false},
	{"c4a mxfp4", model.C4A, cache.IndexKeyMXFP4, false},
	{"c4a mxfp4 rotated", model.C4A, cache.IndexKeyMXFP4, true},
	{"c128a", model.C128A, 0, false},
	{"ratio 2, all entries", model.LayerSpec{Name: "all", Ratio: 2}, 0, false},
	{"ratio 1, picked", model.LayerSpec{Name: "picked", Ratio: 1, Picks: model.PickOwn}, cache.IndexKeyFP8, false},
}

const (
	coreHeads, coreIndexHeads, coreTopK = 3, 4, 17
	coreLonger, coreShorter             = 301, 133 // tokens of the two requests
)

// Indices of the pools of a layer in coreLayer.host.
const (
	winPool = iota
	compPool
	statePool
	indexStatePool
	keysPool
	pools
)

// coreLayer is a layer with two requests: what their tokens bring, by position, and the caches
// with the pages of both, in random order among others.
type coreLayer struct {
	coreCase
	rng    *rand.Rand
	cfg    model.Config
	caches Caches // layouts only

	q, kv, iq, weights        [2][]uint16 // of a token: [H, 512], [512], [Hi, 128], [Hi]
	gates, indexGates         [2][]float32
	ape, norm, iApe, iNorm    []float32
	cosSin                    []float32
	sink                      []float32
	tables                    [pools][]int32 // [2, widths[i]]
	widths, pageTokens, pages [pools]int
	strides                   [pools]int
	host                      [pools][]byte
	workspace                 uint64                         // of gathered rows; 0: the default
	entries                   [pools][]cache.CompressedEntry // what the references stored in host[compPool] and host[keysPool]
}

// compression and keys say how entries and index keys are made.
func (l *coreLayer) compression() cache.Compression { return l.spec.Compression(headDim) }
func (l *coreLayer) keys() cache.Compression        { return l.spec.Compression(indexDim) }

func newCoreLayer(t testing.TB, c coreCase) *coreLayer {
	rng := rand.New(rand.NewPCG(11, uint64(len(c.name))))
	l := &coreLayer{coreCase: c, rng: rng, cfg: model.Config{Hidden: 64, Heads: coreHeads, Groups: 1, QRank: 64, ORank: 64, Window: 128,
		Hadamard: c.hadamard, TopK: coreTopK, IndexHeads: coreIndexHeads}}
	floats := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	set := func(pool, pageTokens, stride int) {
		n := (coreLonger + pageTokens - 1) / pageTokens
		l.widths[pool], l.pageTokens[pool], l.pages[pool], l.strides[pool] = n, pageTokens, 2*n+3, stride
		for _, id := range rng.Perm(2*n + 3)[:2*n] {
			l.tables[pool] = append(l.tables[pool], int32(id))
		}
		l.host[pool] = filled((2*n+3)*stride, byte(0xFF))
	}
	x, spec := &l.caches, &l.spec
	x.Window.Layout = must[cache.Layout](t)(cache.NewLayout(64, 0))
	set(winPool, 64, x.Window.Layout.Stride)
	channels, indexChannels := 1, 1
	if spec.Compresses() {
		x.Compressed.Layout = must[cache.Layout](t)(cache.NewLayout(max(2, 64/spec.Ratio), 0))
		x.State.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(l.compression(), 8, 0))
		set(compPool, x.Compressed.Layout.Page*spec.Ratio, x.Compressed.Layout.Stride)
		set(statePool, 8, x.State.Layout.Stride)
		channels = l.compression().Channels()
		l.ape, l.norm = floats(spec.Ratio*channels), floats(headDim)
	}
	if spec.Picks == model.PickOwn {
		x.IndexState.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(l.keys(), 4, 0))
		x.Keys.Layout = must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(c.format, 16, 0))
		set(indexStatePool, 4, x.IndexState.Layout.Stride)
		set(keysPool, 16*spec.Ratio, x.Keys.Layout.Stride)
		indexChannels = l.keys().Channels()
		l.iApe, l.iNorm = floats(spec.Ratio*indexChannels), floats(indexDim)
	}
	for r, n := range []int{coreLonger, coreShorter} {
		l.q[r], l.kv[r] = testkit.Normal(rng, n*coreHeads*512), testkit.Normal(rng, n*512)
		l.iq[r], l.weights[r] = testkit.Normal(rng, n*coreIndexHeads*128), testkit.Normal(rng, n*coreIndexHeads)
		l.gates[r], l.indexGates[r] = floats(n*2*channels), floats(n*2*indexChannels)
	}
	l.cosSin = cosSin(coreLonger)
	l.sink = []float32{float32(math.Inf(-1)), 0, 1}
	return l
}

// part is the tokens from a position to before another of a request.
type part struct{ request, from, to int }

// coreStep is a step in host memory.
type coreStep struct {
	parts                                      []part
	queryStart, seqLens, tokenToReq, positions []int32
	valid                                      []byte
}

func newCoreStep(tokens int, parts []part) coreStep {
	s := coreStep{parts: parts, queryStart: []int32{0}, tokenToReq: make([]int32, tokens), positions: make([]int32, tokens),
		valid: make([]byte, tokens)}
	at := 0
	for _, p := range parts { // one for each request, in order; it may be empty
		for i := p.from; i < p.to; i++ {
			s.tokenToReq[at], s.positions[at], s.valid[at] = int32(p.request), int32(i), 1
			at++
		}
		s.queryStart, s.seqLens = append(s.queryStart, int32(at)), append(s.seqLens, int32(p.to))
	}
	return s
}

// rowsOf lines up what the tokens of a step bring, with poison for padding.
func rowsOf[T any](s coreStep, of [2][]T, width int, poison T) []T {
	v := make([]T, 0, len(s.valid)*width)
	for _, p := range s.parts {
		v = append(v, of[p.request][p.from*width:p.to*width]...)
	}
	return append(v, filled(len(s.valid)*width-len(v), poison)...)
}

// oneByOne gives a step for every token of the longer request, tokens being what a
// step has room for.
func oneByOne() (tokens int, steps [][]part) {
	for i := range coreLonger {
		j := min(i, coreShorter)
		steps = append(steps, []part{{0, i, i + 1}, {1, j, min(i+1, coreShorter)}})
	}
	return 3, steps
}

// inChunks gives steps of very different lengths, some without a token of one request.
func inChunks() (tokens int, steps [][]part) {
	a, b := 0, 0
	for i := 0; a < coreLonger || b < coreShorter; i++ {
		n, m := min(coreLonger, a+[]int{61, 3, 1, 130}[i%4]), min(coreShorter, b+[]int{5, 69, 0}[i%3])
		steps = append(steps, []part{{0, a, n}, {1, b, m}})
		a, b = n, m
	}
	return 200, steps
}

// coreResult holds the results of a division: the pools, and for every token its picks and output.
type coreResult struct {
	pools [pools][]byte
	topK  [2][]int32
	out   [2][]uint16
}

// kind makes a kind for steps of `tokens` tokens, and a layer of it without projections. The
// attention takes queries as they are and leaves RoPE in its output.
func (l *coreLayer) kind(t *testing.T, dev *vk.Device, tokens int, variant string) (*Kernels, *Layer) {
	t.Helper()
	k := must[*Kernels](t)(NewKernels(dev, Config{Spec: l.spec, Model: &l.cfg, Tokens: tokens, MaxLen: coreLonger, Caches: l.caches,
		Variant: variant, Group: tokens / 4, Out: tensor.BF16, Requests: 2, Workspace: l.workspace,
		Scratch: &memory.Scratch{}}))
	t.Cleanup(func() { k.Close() })
	k.cfg.Scratch.Keep() // the inputs of all operations come first
	place(t, dev, k)
	k.mla.normsQueries, k.mla.unropes = false, false
	w := &model.DeviceLayer{Sink: put(t, dev, tensor.F32, l.sink, coreHeads)}
	if l.spec.Compresses() {
		w.Compressor = l.compressor(t, dev, l.compression(), l.ape, l.norm)
	}
	if l.spec.Picks == model.PickOwn {
		w.Indexer = &model.DeviceIndexer{}
		if l.spec.Compresses() {
			w.Indexer.Compressor = l.compressor(t, dev, l.keys(), l.iApe, l.iNorm)
		}
	}
	return k, &Layer{kernels: k, w: w}
}

func (l *coreLayer) compressor(t *testing.T, dev *vk.Device, c cache.Compression, ape, norm []float32) *model.DeviceCompressor {
	t.Helper()
	return &model.DeviceCompressor{Ape: put(t, dev, tensor.F32, ape, c.Ratio, c.Channels()), Norm: put(t, dev, tensor.F32, norm, c.Dim)}
}

// core is the part of the schedule core that the layer has.
func (l *Layer) core() schedule {
	k := l.kernels
	x := traits{indexer: k.indexer != nil, compresses: k.main != nil, keys: k.keys != nil, saves: k.want.saves,
		rawScores: k.indexer != nil && k.indexer.query == nil}
	return core.of(x)
}

// memory puts pools and block tables on the device.
func (l *coreLayer) memory(t *testing.T, dev *vk.Device) (c Caches, tables Tables) {
	t.Helper()
	var pool, table [pools]tensor.Tensor
	for i := range pool {
		if l.pages[i] > 0 {
			pool[i] = put(t, dev, tensor.U8, filled(l.pages[i]*l.strides[i], byte(0xFF)), l.pages[i], l.strides[i])
			table[i] = put(t, dev, tensor.I32, l.tables[i], 2, l.widths[i])
		}
	}
	c = l.caches
	c.Window.Pool, c.Compressed.Pool, c.State.Pool, c.IndexState.Pool, c.Keys.Pool = pool[winPool], pool[compPool],
		pool[statePool], pool[indexStatePool], pool[keysPool]
	return c, Tables{Window: table[winPool], Compressed: table[compPool], State: table[statePool],
		IndexState: table[indexStatePool], Keys: table[keysPool]}
}

// newStepArgs makes a step's inputs, for two requests.
func newStepArgs(t *testing.T, dev *vk.Device, tokens int, tables Tables) StepArgs {
	t.Helper()
	return StepArgs{Tables: tables,
		QueryStart: alloc(t, dev, tensor.I32, 3), SeqLens: alloc(t, dev, tensor.I32, 2),
		TokenToReq: alloc(t, dev, tensor.I32, tokens), Positions: alloc(t, dev, tensor.I32, tokens),
		IsValid: alloc(t, dev, tensor.U8, tokens)}
}

// corePieces are the pieces that steps over gathered rows are recorded for.
const corePieces = 12

// gather makes room for gathered rows and their plan, full of poison.
func (a *StepArgs) gather(t *testing.T, dev *vk.Device, k *Kernels) {
	t.Helper()
	room := k.Room()
	if room.Rows() == 0 {
		return
	}
	n := k.cfg.Tokens
	a.Pieces, a.Workspace = corePieces, put(t, dev, tensor.BF16, filled(room.Rows()*headDim, uint16(0x7FC0)), room.Rows(), headDim)
	a.Plan = attention.PlanTensors{Places: alloc(t, dev, tensor.I32, n, 4), Heads: alloc(t, dev, tensor.I32, corePieces, 2, 2),
		Runs: alloc(t, dev, tensor.I32, attention.RunsOf(n), 4)}
}

// plan uploads the plan of a step.
func (a *StepArgs) plan(t *testing.T, k *Kernels, h coreStep) {
	t.Helper()
	if a.Pieces == 0 {
		return
	}
	var p attention.RowPlan
	p.Begin(k.Room())
	for _, x := range h.parts {
		p.Add(x.request, x.to-x.from, x.to)
	}
	p.End(k.cfg.Tokens)
	require.LessOrEqual(t, p.Pieces(), corePieces)
	p.Pad(corePieces)
	for len(p.Runs) < a.Plan.Runs.Shape[0] {
		p.Runs = append(p.Runs, [4]int32{-1 << 30, -1, 7, 1}) // poison
	}
	for _, x := range []struct {
		to   tensor.Tensor
		from [][4]int32
	}{{a.Plan.Places, p.Places}, {a.Plan.Heads, p.Heads}, {a.Plan.Runs, p.Runs}} {
		var flat []int32
		for _, v := range x.from {
			flat = append(flat, v[:]...)
		}
		testkit.Put(t, x.to, flat)
	}
}

// put uploads a step.
func (a *StepArgs) put(t *testing.T, h coreStep) {
	t.Helper()
	testkit.Put(t, a.QueryStart, h.queryStart)
	testkit.Put(t, a.SeqLens, h.seqLens)
	testkit.Put(t, a.TokenToReq, h.tokenToReq)
	testkit.Put(t, a.Positions, h.positions)
	testkit.Put(t, a.IsValid, h.valid)
}

// inputs uploads what projections would give, and poison for padding.
func (l *coreLayer) inputs(t *testing.T, k *Kernels, kv tensor.Tensor, h coreStep) {
	t.Helper()
	const nan = uint16(0x7FC0)
	nan32 := float32(math.NaN())
	testkit.Put(t, k.mla.q, rowsOf(h, l.q, coreHeads*512, nan))
	testkit.Put(t, k.mla.o, filled(k.mla.o.Len(), nan))
	testkit.Put(t, kv, rowsOf(h, l.kv, 512, nan))
	if k.main != nil {
		testkit.Put(t, k.main.gates, rowsOf(h, l.gates, 2*l.compression().Channels(), nan32))
	}
	if k.keys != nil {
		testkit.Put(t, k.keys.gates, rowsOf(h, l.indexGates, 2*l.keys().Channels(), nan32))
	}
	if k.indexer != nil {
		testkit.Put(t, k.indexer.q, rowsOf(h, l.iq, coreIndexHeads*128, nan))
		testkit.Put(t, k.indexer.weights, rowsOf(h, l.weights, coreIndexHeads, nan))
	}
}

// recordCore records a step: KV rows are stored as they are.
func (l *coreLayer) recordCore(t *testing.T, rec *vk.Recorder, layer *Layer, step StepArgs, a Args, kv tensor.Tensor) error {
	t.Helper()
	k := layer.kernels
	insert := must[*cache.Insert](t)(cache.NewInsert(k.dev, cache.PagesConfig{Page: l.caches.Window.Layout.Page,
		MaxBytes: a.Caches.Window.Pool.Bytes()}))
	err := k.RecordStep(rec, step)
	if err == nil {
		err = insert.Record(rec, cache.InsertArgs{K: kv, Slots: k.lists.slots, Cache: a.Caches.Window})
	}
	r := &recording{l: layer, k: k, rec: rec, step: &step, a: &a}
	return errors.Join(err, r.schedule(layer.core()))
}

// device runs a division on the device with commands that are recorded once.
func (l *coreLayer) device(t *testing.T, dev *vk.Device, tokens int, steps [][]part, variant string) (res coreResult) {
	t.Helper()
	k, layer := l.kind(t, dev, tokens, variant)
	caches, tables := l.memory(t, dev)
	step, kv := newStepArgs(t, dev, tokens, tables), alloc(t, dev, tensor.BF16, tokens, 512)
	a := Args{Caches: caches, CosSin: put(t, dev, tensor.F32, l.cosSin, coreLonger, cache.RopeDim)}
	step.gather(t, dev, k)
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	require.NoError(t, l.recordCore(t, rec, layer, step, a, kv))
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	for _, parts := range steps {
		h := newCoreStep(tokens, parts)
		step.put(t, h)
		step.plan(t, k, h)
		l.inputs(t, k, kv, h)
		require.NoError(t, cmd.Run(t.Context()))
		res.add(t, k, parts)
	}
	for i, pool := range []tensor.Tensor{winPool: caches.Window.Pool, compPool: caches.Compressed.Pool, statePool: caches.State.Pool,
		indexStatePool: caches.IndexState.Pool, keysPool: caches.Keys.Pool} {
		if !pool.IsZero() {
			res.pools[i] = get[byte](t, pool)
		}
	}
	return res
}

// add takes over what a step gave, and demands that padding gave nothing.
func (res *coreResult) add(t *testing.T, k *Kernels, parts []part) {
	t.Helper()
	const row = coreHeads * 512
	out, topK, at := get[uint16](t, k.mla.o), []int32(nil), 0
	if x := k.TopK(); !x.IsZero() {
		topK = get[int32](t, x)
	}
	for _, p := range parts {
		n := p.to - p.from
		res.out[p.request] = append(res.out[p.request], out[at*row:(at+n)*row]...)
		if topK != nil {
			res.topK[p.request] = append(res.topK[p.request], topK[at*coreTopK:(at+n)*coreTopK]...)
		}
		at += n
	}
	for i, x := range out[at*row:] {
		require.Zero(t, x, "padding: element %d of the output", i)
	}
	for i, x := range topK[min(at*coreTopK, len(topK)):] {
		require.EqualValues(t, -1, x, "padding: pick %d", i)
	}
}

func firstDifference(a, b []byte) int {
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// TestCore runs a layer of every kind over two sequences that come in chunks, with every
// variant of the attention, against the references.
func TestCore(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range coreCases {
		for i, variant := range testkit.DecodeVariants(t, dev, coreHeads) {
			t.Run(c.name+"/"+variant, func(t *testing.T) {
				if i > 0 && (testing.Short() || c.format == cache.IndexKeyMXFP4) {
					t.Skip("one variant runs: how keys are stored is nothing to the attention")
				}
				l := newCoreLayer(t, c)
				tokens, steps := inChunks()
				l.reference(t, tokens, steps, l.device(t, dev, tokens, steps, variant), variant)
			})
		}
	}
}

// TestCorePieces has rows gathered into so little memory that a step of one recording goes in
// another number of pieces than the next: for a long request, for both, or none.
func TestCorePieces(t *testing.T) {
	dev := testkit.Device(t)
	variant := opkit.TwoPass + opkit.Base
	for i, c := range coreCases[:2] {
		t.Run(c.name, func(t *testing.T) {
			l := newCoreLayer(t, c)
			l.workspace = []uint64{150 << 10, 300 << 10}[i]
			tokens, steps := inChunks()
			l.reference(t, tokens, steps, l.device(t, dev, tokens, steps, variant), variant)
		})
	}
}

// TestCoreDivision demands that how sequences are divided into steps changes no byte of a
// cache and no pick. With one token at a time, outputs are held against the references, too.
func TestCoreDivision(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range coreCases {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.format == cache.IndexKeyMXFP4 && !c.hadamard {
				t.Skip("the rotated form runs")
			}
			l := newCoreLayer(t, c)
			tokens, steps := inChunks()
			chunks := l.device(t, dev, tokens, steps, "")
			tokens, steps = oneByOne()
			ones := l.device(t, dev, tokens, steps, "")
			for i := range pools {
				if at := firstDifference(ones.pools[i], chunks.pools[i]); at >= 0 {
					t.Errorf("pool %d: byte %d of page %d differs", i, at%l.strides[i], at/l.strides[i])
				}
			}
			assert.Equal(t, chunks.topK, ones.topK, "picks")
			if !testing.Short() {
				k, _ := l.kind(t, dev, tokens, "")
				l.reference(t, tokens, steps, ones, k.mla.op.Variant())
			}
		})
	}
}

// TestBorrowing demands that a layer which borrows the entries and the picks of an earlier one
// attends to just these: with the same queries and KV rows it gives the same bits.
func TestBorrowing(t *testing.T) {
	dev := testkit.Device(t)
	l := newCoreLayer(t, coreCases[1])
	const tokens = 63 // few enough to attend pages in place, on any device
	k, source := l.kind(t, dev, tokens, "")
	reuse := newCoreLayer(t, coreCase{"reuse", model.LayerSpec{Name: "reuse", Ratio: l.spec.Ratio, Borrows: true,
		Picks: model.PickEarlier, Pools: model.Window.Pools}, 0, false})
	reuse.q, reuse.sink, reuse.caches.Compressed = l.q, l.sink, l.caches.Compressed
	rk, borrower := reuse.kind(t, dev, tokens, "")
	require.Nil(t, rk.main)
	require.Nil(t, rk.indexer)

	caches, tables := l.memory(t, dev)
	step, kv := newStepArgs(t, dev, tokens, tables), alloc(t, dev, tensor.BF16, tokens, 512)
	a := Args{Caches: caches, CosSin: put(t, dev, tensor.F32, l.cosSin, coreLonger, cache.RopeDim),
		Picks: PickedSlots{Slots: alloc(t, dev, tensor.I32, tokens, coreTopK), Lens: alloc(t, dev, tensor.I32, tokens)}}
	h := newCoreStep(tokens, []part{{0, 0, 54}, {1, 0, 8}})
	step.put(t, h)
	l.inputs(t, k, kv, h)
	testkit.Put(t, rk.mla.q, rowsOf(h, l.q, coreHeads*512, uint16(0x7FC0)))
	run(t, dev, func(rec *vk.Recorder) error {
		if err := l.recordCore(t, rec, source, step, a, kv); err != nil {
			return err
		}
		return reuse.recordCore(t, rec, borrower, step, a, kv)
	})
	want := get[uint16](t, k.mla.o)
	assert.Equal(t, want, get[uint16](t, rk.mla.o))
	assert.NotZero(t, slices.Max(get[int32](t, a.Picks.Lens)), "nothing was picked")
}
