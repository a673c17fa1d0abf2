package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// compressorSpec is a random case of a compressor to be made.
type compressorSpec struct {
	c               cache.Compression
	format          cache.IndexKeyFormat
	statePage, page int
	stride, padding int // of a page of entries, 0: the smallest; bytes after a state page
	requests        [][2]int
	pads, broken    int // tokens of padding; tokens with data that only a broken host makes
	params          map[string]any
	f32             bool // norm weight in f32 instead of bf16
	record          cache.Record
	tiny            bool // numbers around 1e-11; see latentSpecs
}

// compressorCase makes the case of a step: of every request count tokens from a
// position first. States of earlier tokens that a window needs are there; all else is
// NaN.
func compressorCase(rng *rand.Rand, spec compressorSpec) Case {
	c, channels := spec.c, spec.c.Channels()
	b := compressorBuilder{spec: spec, rng: rng}
	width := 1
	for _, r := range spec.requests {
		width = max(width, (r[0]+r[1]+spec.statePage-1)/spec.statePage)
	}
	pages := 3 // that are not used
	for _, r := range spec.requests {
		pages += (r[0]+r[1]-1)/spec.statePage - b.firstPage(r[0]) + 1
	}
	b.free = rng.Perm(pages)
	b.table = make([]int32, len(spec.requests)*width)
	for i := range b.table {
		b.table[i] = -1 // recycled, or never there
	}
	b.state = vectors.Filled(poisonFloat, vectors.F32, pages, spec.statePage, 2*channels)
	b.outSlots = rng.Perm((pages*spec.statePage/c.Ratio+3+spec.page)/spec.page*spec.page + spec.page)
	poolPages := len(b.outSlots) / spec.page
	for i, r := range spec.requests {
		b.request(i, width, r[0], r[1])
	}
	for range spec.pads {
		b.pad(rng.IntN(len(b.positions) + 1))
	}
	b.breakSome(poolPages)
	tokens := len(b.positions)
	stride := spec.stride
	if stride == 0 {
		stride = spec.page * spec.record.SlotBytes()
		if spec.format != 0 {
			stride = (spec.page*(spec.format.RowBytes()+4) + 15) / 16 * 16
		}
	}
	ape := normalF32(rng, c.Ratio, channels)
	overlap := 0
	if c.Overlap {
		overlap = 1
	}
	params := map[string]any{"compress_ratio": c.Ratio, "compress_overlap": overlap, "head_dim": c.Dim, "state_block_size": spec.statePage,
		"kv_block_size": spec.page, "kv_block_stride_bytes": stride, "eps": 1e-6, "state_padding_bytes": spec.padding}
	for k, v := range spec.params {
		params[k] = v
	}
	in := Arrays{
		"kv_score": vectors.FromF32(b.rows(tokens), tokens, 2*channels), "ape": ape,
		"positions": vectors.FromI64(b.positions, tokens), "token_to_req": vectors.FromI32(b.toReq, tokens),
		"state_slot_mapping": vectors.FromI64(b.stateSlots, tokens), "kv_slot_mapping": vectors.FromI64(b.slots, tokens),
		"state_block_table": vectors.FromI32(b.table, len(spec.requests), width),
		"state_before":      b.state, "kv_cache_before": vectors.Filled(0xFF, vectors.U8, poolPages, stride),
	}
	b.normAndRope(in, params)
	b.withLatent(in, params)
	return Case{
		Name: fmt.Sprintf("ratio%d_dim%d_t%d_page%d_%d", c.Ratio, c.Dim, tokens, spec.statePage, spec.page),
		About: fmt.Sprintf("requests (first position, tokens) %v, %d padding tokens, %d with bad data, %v",
			spec.requests, spec.pads, spec.broken, spec.params),
		Params: params, In: in,
	}
}

// compressorBuilder collects the arrays of a case.
type compressorBuilder struct {
	spec              compressorSpec
	rng               *rand.Rand
	free, outSlots    []int // state pages and output slots that are not taken, in random order
	table, toReq      []int32
	positions         []int64
	stateSlots, slots []int64
	state             Array
}

// firstPage returns the first state page that a request needs whose next token is at
// position first.
func (b *compressorBuilder) firstPage(first int) int {
	c := b.spec.c
	// The window of the first entry that the step may complete.
	end := (first/c.Ratio + 1) * c.Ratio
	return max(end-c.Window(), 0) / b.spec.statePage
}

func (b *compressorBuilder) request(r, width, first, count int) {
	page := b.spec.statePage
	for e := b.firstPage(first); e <= (first+count-1)/page; e++ {
		b.table[r*width+e] = int32(b.free[0])
		b.free = b.free[1:]
		for t := range page {
			if p := e*page + t; p < first {
				b.earlier(int64(b.table[r*width+e])*int64(page) + int64(t))
			}
		}
	}
	for p := first; p < first+count; p++ {
		b.positions, b.toReq = append(b.positions, int64(p)), append(b.toReq, int32(r))
		b.stateSlots = append(b.stateSlots, int64(b.table[r*width+p/page])*int64(page)+int64(p%page))
		slot := -1
		if (p+1)%b.spec.c.Ratio == 0 {
			slot, b.outSlots = b.outSlots[0], b.outSlots[1:]
		}
		b.slots = append(b.slots, int64(slot))
	}
}

// earlier gives a state slot what an earlier step would have saved.
func (b *compressorBuilder) earlier(slot int64) {
	size := 8 * b.spec.c.Channels()
	copy(b.state.Data[int(slot)*size:], vectors.FromF32(b.rows(1), size/4).Data)
}

// pad makes token i one of padding, which an earlier step processed already, or adds one at the
// end.
func (b *compressorBuilder) pad(i int) {
	if i == len(b.positions) {
		b.positions, b.toReq, b.stateSlots, b.slots = append(b.positions, 0), append(b.toReq, 0), append(b.stateSlots, -1), append(b.slots, -1)
	}
	if b.stateSlots[i] >= 0 {
		b.earlier(b.stateSlots[i])
	}
	b.stateSlots[i], b.slots[i] = -1, -1
}

// breakSome spoils tokens in all the ways that the kernels have a rule for.
func (b *compressorBuilder) breakSome(poolPages int) {
	beyond := int64(b.state.Dim(0) * b.spec.statePage)
	for k := range b.spec.broken {
		i := b.rng.IntN(len(b.positions))
		if s := b.stateSlots[i]; s >= 0 && s < beyond {
			b.earlier(s)
		}
		switch k % 7 {
		case 0:
			b.positions[i] = -1 - int64(b.rng.IntN(9))
		case 1:
			b.toReq[i] = int32(len(b.spec.requests))
		case 2:
			b.toReq[i] = -1
		case 3:
			b.stateSlots[i] = beyond + int64(k)
		case 4:
			if b.slots[i] >= 0 {
				b.slots[i] = int64(poolPages*b.spec.page) + int64(k)
			}
		case 5:
			b.stateSlots[i] = 1<<40 + b.stateSlots[i]
		case 6: // only where a later row of the window remains
			if e := b.rng.IntN(len(b.table)); b.spec.c.Window() > 2*b.spec.statePage && b.table[e] >= 0 {
				b.table[e] = int32(b.state.Dim(0))
			}
		}
	}
}

// rows makes n rows of kv values and scores, of several kinds: usual numbers, equal
// scores, one score far above all, sums that cancel, and values of extreme size.
func (b *compressorBuilder) rows(n int) []float32 {
	channels := b.spec.c.Channels()
	x := make([]float32, 0, n*2*channels)
	for range n {
		kind := b.rng.IntN(6)
		for range channels {
			v := b.rng.NormFloat64()
			switch kind {
			case 3:
				v *= 1e4
			case 4:
				v = sign(b.rng) * (1 + v*0x1p-8)
			}
			x = append(x, float32(v))
		}
		for range channels {
			v := 2 * b.rng.NormFloat64()
			switch kind {
			case 1:
				v = 0.5
			case 2:
				v *= 20
			case 4:
				v *= 0.01
			}
			x = append(x, float32(v))
		}
	}
	return x
}

// normAndRope adds norm weight and rotary rows of the entries to the inputs.
func (b *compressorBuilder) normAndRope(in Arrays, params map[string]any) {
	dim, ratio := b.spec.c.Dim, int64(b.spec.c.Ratio)
	weight := make([]float32, dim)
	for d := range weight {
		weight[d] = float32(1 + 0.3*b.rng.NormFloat64())
	}
	in["norm_weight"] = vectors.FromBF16(weight, dim)
	if b.spec.f32 {
		in["norm_weight"] = vectors.FromF32(weight, dim)
	}
	seen, at, rows := map[int64]bool{}, []int64{}, []float32{}
	for _, p := range b.positions {
		q := p + 1 - ratio
		if (p+1)%ratio != 0 || q < 0 || seen[q] {
			continue
		}
		seen[q] = true
		at = append(at, q)
		for i := range 2 * cache.RopeDim / 2 {
			angle := float64(q) / math.Pow(160000, float64(i%(cache.RopeDim/2))/32)
			if i < cache.RopeDim/2 {
				rows = append(rows, float32(math.Cos(angle)))
			} else {
				rows = append(rows, float32(math.Sin(angle)))
			}
		}
	}
	if len(at) == 0 {
		at, rows = []int64{0}, make([]float32, cache.RopeDim)
	}
	in["cos_sin_pos"], in["cos_sin_rows"] = vectors.FromI64(at, len(at)), vectors.FromF32(rows, len(at), cache.RopeDim)
}

// random4 makes the cases of the compressors with ratio 4. A kernel takes long to compile, so
// cases share page sizes and other constants where they can, also with package cache's tests.
func random4(seed uint64, c cache.Compression, format cache.IndexKeyFormat) []Case {
	single := map[string]any{"invocations": c.Dim} // one channel each
	mixed := map[string]any{"rope_step": 2, "invocations": c.Dim}
	one := map[string]any{"one_launch": 1}
	specs := []compressorSpec{
		{statePage: 4, page: 64, requests: [][2]int{{3, 1}}, params: single},
		{statePage: 4, page: 64, requests: [][2]int{{0, 2}, {6, 2}}, f32: true, params: single},
		{statePage: 4, page: 64, requests: [][2]int{{0, 17}}},
		{statePage: 3, page: 1, requests: [][2]int{{10, 69}}, padding: 16, params: map[string]any{"rope_step": 1}},
		{statePage: 4, page: 64, requests: [][2]int{{1, 321}}, f32: true, pads: 5},
		{statePage: 4, page: 64, requests: [][2]int{{0, 9}, {7, 1}, {1023, 1}, {126, 40}}, pads: 2, broken: 13, params: single},
		{statePage: 1, page: 3, requests: [][2]int{{0, 40}, {2, 29}}, broken: 14, padding: 16, params: mixed},
		{statePage: 4, page: 64, requests: [][2]int{{0, 1}, {3, 1}, {6, 7}, {1020, 4}, {1024, 4}, {1025, 2}}, params: one},
	}
	if c == C4Index {
		mixed["hadamard"] = 1
		specs = append(specs,
			compressorSpec{statePage: 4, page: 64, requests: [][2]int{{5, 2100}}, pads: 60},
			compressorSpec{statePage: 4, page: 64, stride: 8640, requests: [][2]int{{0, 61}}, params: map[string]any{"hadamard": 1}},
			compressorSpec{statePage: 1, page: 3, requests: [][2]int{{3, 1}, {100, 17}}, f32: true, params: mixed})
	} else {
		specs[2].stride = 37440
		specs = append(specs,
			compressorSpec{statePage: 16, page: 16, requests: [][2]int{{0, 3}, {1, 7}, {15, 1}, {255, 1}, {120, 61 - 12}}, padding: 64, pads: 3})
	}
	return compressorCases(seed, c, format, specs)
}

// random128 makes the cases of the compressor with ratio 128.
func random128(seed uint64) []Case {
	return compressorCases(seed, C128Main, 0, []compressorSpec{
		{statePage: 8, page: 2, requests: [][2]int{{127, 1}}},
		{statePage: 8, page: 2, stride: 1728, requests: [][2]int{{254, 2}, {383, 1}}, f32: true, params: map[string]any{"invocations": 128}},
		{statePage: 8, page: 2, requests: [][2]int{{120, 17}, {300, 1}}, padding: 64},
		{statePage: 8, page: 2, requests: [][2]int{{511, 1}, {127, 1}, {1023, 1}}, pads: 2, broken: 14},
		{statePage: 5, page: 3, requests: [][2]int{{1, 321}}, padding: 16, params: map[string]any{"rope_step": 1}},
		{statePage: 8, page: 2, requests: [][2]int{{100, 61}, {255, 1}}, params: map[string]any{"invocations": 1024}},
		{statePage: 16, page: 2, requests: [][2]int{{383, 2}, {0, 128}}, params: map[string]any{"invocations": 256}},
		{statePage: 8, page: 2, requests: [][2]int{{127, 1}, {250, 7}, {375, 7}, {382, 2}, {0, 1}}, params: map[string]any{"one_launch": 1}},
	})
}

// ratioSpec is a compression that no layer of V4 has, its Dim left open, and what its kernels are
// built for.
type ratioSpec struct {
	c               cache.Compression
	statePage, page int
	hadamard        int
	other           int // invocations of a second kernel, with other pages; 0: there is none
}

// K entries have all kinds: one row, two without overlap, an odd ratio with overlap, a long window.
// Each format of indexer keys has two of them, because windows are read alike for all formats.
var (
	ratios = []ratioSpec{
		{cache.Compression{Ratio: 1}, 8, 64, 0, cache.D},
		{cache.Compression{Ratio: 2}, 8, 64, 0, 0},
		{cache.Compression{Ratio: 3, Overlap: true}, 4, 5, 0, cache.D},
		{cache.Compression{Ratio: 24}, 8, 2, 0, cache.D},
	}
	ratiosFP8 = []ratioSpec{
		{cache.Compression{Ratio: 1}, 4, 64, 1, 0},
		{cache.Compression{Ratio: 24}, 8, 2, 0, 0},
	}
	ratiosMXFP4 = []ratioSpec{
		{cache.Compression{Ratio: 2}, 4, 64, 0, 0},
		{cache.Compression{Ratio: 3, Overlap: true}, 4, 5, 1, 0},
	}
)

// randomRatios makes cases of other ratios: usual ones, and such as only a broken host makes.
func randomRatios(seed uint64, list []ratioSpec, dim int, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, x := range list {
		x.c.Dim = dim
		r, params := x.c.Ratio, map[string]any{"hadamard": x.hadamard}
		specs := []compressorSpec{
			{statePage: x.statePage, page: x.page, requests: [][2]int{{0, 1}, {r, r}, {3*r - 1, 1}, {17*r + 1, 2*r + 5}}, params: params},
			{statePage: x.statePage, page: x.page, requests: [][2]int{{0, 61}, {7 * r, 1}}, padding: 32, params: params},
			{statePage: x.statePage, page: x.page, requests: [][2]int{{1, 21}, {2*r + 1, 13}}, pads: 3, broken: 14, f32: true, params: params},
		}
		if x.other > 0 {
			specs = append(specs, compressorSpec{statePage: 3, page: 1, requests: [][2]int{{5, 47}, {64, 9}},
				params: map[string]any{"invocations": x.other, "rope_step": 1}})
		}
		cases = append(cases, compressorCases(seed+uint64(i), x.c, format, specs)...)
	}
	return cases
}

func compressorCases(seed uint64, c cache.Compression, format cache.IndexKeyFormat, specs []compressorSpec) []Case {
	var cases []Case
	for i, s := range specs {
		s.c, s.format = c, format
		cases = append(cases, compressorCase(rand.New(rand.NewPCG(seed, uint64(i))), s))
		if c.Overlap {
			cases[i].Name += "_overlap"
		}
		cases[i].Name = fmt.Sprintf("%s_%d", cases[i].Name, i)
	}
	return cases
}
