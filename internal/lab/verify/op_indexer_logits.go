package verify

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"indexer_logits_fp8": cache.IndexKeyFP8, "indexer_logits_mxfp4": cache.IndexKeyMXFP4,
	} {
		read := readAs(readLogits, format)
		Register(Op{
			Name: name, Class: ClassTolerance, Variants: opkit.Builds("idx_logits"),
			Of:     Of{"indexer.Logits", scoreKernels, "indexer.select"},
			Random: with(randomLogits, format), Ref: refBy(read, refLogits), Bind: bindBy(read, bindLogits),
			Timing:  Timing{Suite: "indexer", Sizes: with(logitsSizes, format), Sample: sampleLogits},
			Compare: compareBy(ClassTolerance, read, compareLogits),
		})
	}
}

// logitsDiff bounds calc_diff over all logits, as DeepGEMM's tests do for sums in
// f32. logitsOfRow bounds the difference of one logit relative to the largest of its
// row: a check that no single one is wrong, with room for the reduced precision of
// the recorded kernel's sums.
//
// Where heads cancel in all of a row, as they may in a row of one entry, the sums of a
// recorded kernel are no closer to each other than its terms allow: it was up to 1.2e-4
// of the sum of their magnitudes away. logitsOfTerms is twice that, and takes the place
// of logitsOfRow there, for recorded logits only; calc_diff is over all of them.
const (
	logitsDiff    = 5e-6
	logitsOfRow   = 1e-3
	logitsOfTerms = 2.5e-4
)

// logitsInput is a case of scores.
type logitsInput struct {
	indexer.LogitsHost
	group int
}

// readLogits reads a case. Token t has request t unless token_to_req says otherwise, or
// queries are [R, next, H, bytes]: then each request has `next` tokens.
func readLogits(c Case, format cache.IndexKeyFormat) (x logitsInput, err error) {
	name, next := "q_fp8", 1
	if format == cache.IndexKeyMXFP4 {
		name = "q_packed"
	}
	if q := c.In[name]; len(q.Shape) == 4 {
		next = max(q.Dim(1), 1)
		c.In = maps.Clone(c.In)
		for _, n := range []string{name, "q_scale", "context_lens"} {
			if a, ok := c.In[n]; ok && len(a.Shape) > 1 {
				c.In[n] = reshaped(a, append([]int{a.Dim(0) * a.Dim(1)}, a.Shape[2:]...)...)
			}
		}
	}
	in := c.Input()
	q := in.Array(name, vectors.U8, -1, -1, format.RowBytes())
	t, h := q.Dim(0), q.Dim(1)
	if format == cache.IndexKeyMXFP4 {
		x.QScale = in.Array("q_scale", vectors.U8, t, h, indexer.Blocks).Data
	}
	pool, table := in.Array("cache", vectors.U8, -1, -1), in.Array("block_table", vectors.I32, -1, -1)
	x.Heads, x.Q, x.Pool = h, q.Data, pool.Data
	x.Weights = in.Array("weights", vectors.F32, t, h).F32()
	x.Layout = cache.IndexKeyLayout{Page: in.Int("block_size"), Stride: pool.Dim(1), Format: format}
	x.BlockTable, x.TableWidth = table.I32(), table.Dim(1)
	x.Lens = in.Array("context_lens", vectors.I32, t).I32()
	if x.TokenToReq = in.Optional("token_to_req", vectors.I32, t).I32(); x.TokenToReq == nil {
		for i := range t {
			x.TokenToReq = append(x.TokenToReq, int32(i/next))
		}
	}
	blocks := in.Optional("blocks", vectors.I32, t, -1)
	if !blocks.IsZero() {
		x.Blocks, x.BlocksWidth = blocks.I32(), blocks.Dim(1)
	}
	x.First, x.group, x.Block = in.IntOr("first", 0), in.IntOr("group", 1), in.IntOr("block", candidateBlock)
	if logits, ok := c.Want["logits"]; ok {
		x.Width = logits.Dim(1)
	} else if x.Width = in.IntOr("columns", -1); x.Width < 0 && in.Err() == nil {
		return x, fmt.Errorf("verify: %s.%s: has no output array \"logits\", nor a parameter \"columns\": %w",
			c.Op, c.Name, vectors.ErrFormat)
	}
	return x, in.Err()
}

// config returns the configuration of a case's scores.
func (x logitsInput) config(b Build) indexer.LogitsConfig {
	return indexer.LogitsConfig{Heads: x.Heads, Format: x.Layout.Format, Page: x.Layout.Page, Group: x.group,
		Blocks: x.BlocksWidth, Block: x.Block, MaxBytes: b.MaxBytes, Variant: b.Variant}
}

// scores returns the scores by their reference, with the poison of a Rig where that writes nothing.
func (x logitsInput) scores() (Array, error) {
	out := vectors.Filled(poisonFloat, vectors.F32, len(x.Lens), x.Width).F32()
	err := refScores(x.LogitsHost, out)
	return vectors.FromF32(out, len(x.Lens), x.Width), err
}

func refLogits(x logitsInput) (Arrays, error) {
	logits, err := x.scores()
	return Arrays{"logits": logits}, err
}

func bindLogits(b Build, x logitsInput) (Bound, error) {
	op, err := indexer.NewLogits(b.Dev, x.config(b))
	return bound(op, err, func(r *Rig) Launch {
		a := LogitsArgs(r, x.LogitsHost)
		a.First, a.Out = x.First, r.SharedOut(tensor.F32, len(x.Lens), x.Width)
		return launch(op, a, outs{"logits": a.Out})
	})
}

// LogitsArgs returns the operands of scores, of quantised queries.
func LogitsArgs(r *Rig, x indexer.LogitsHost) indexer.LogitsArgs {
	t, l := len(x.Lens), x.Layout
	keys := r.Pool(vectors.FromU8(x.Pool, len(x.Pool)/l.Stride, l.Stride),
		Pages{Page: l.Page, Spread: SpreadPages, Numbers: len(x.BlockTable)})
	a := indexer.LogitsArgs{
		Q:          r.In(vectors.FromU8(x.Q, t, x.Heads, l.Format.RowBytes()), tensor.U8),
		Weights:    r.In(vectors.FromF32(x.Weights, t, x.Heads), tensor.F32),
		Keys:       cache.IndexKeyCache{Pool: keys.Tensor, Layout: l},
		BlockTable: r.Index(keys, vectors.FromI32(x.BlockTable, len(x.BlockTable)/max(x.TableWidth, 1), x.TableWidth), tensor.I32, false),
		TokenToReq: r.Shared(vectors.FromI32(x.TokenToReq, t), tensor.I32),
		Lens:       r.Shared(vectors.FromI32(x.Lens, t), tensor.I32),
	}
	if x.Blocks != nil {
		a.Blocks = r.In(vectors.FromI32(x.Blocks, t, x.BlocksWidth), tensor.I32)
	}
	if l.Format == cache.IndexKeyMXFP4 {
		a.QScale = r.In(vectors.FromU8(x.QScale, t, x.Heads, indexer.Blocks), tensor.U8)
	}
	return a
}

// compareLogits looks at the entries that are defined and demands that nothing else
// was written.
func compareLogits(cmp *Comparison, c Case, x logitsInput, gotAll, wantAll Arrays) {
	got, want := gotAll["logits"], wantAll["logits"]
	if !cmp.Same("logits", got, want) {
		return
	}
	a, b := got.F32(), want.F32()
	var defined, wanted []float32
	worst, at, stray := 0.0, 0, 0
	explained := logitsExplained(x.LogitsHost, c.Source != "random")
	for t := range x.Lens {
		row := t * x.Width
		n := min(max(int(x.Lens[t])-x.First, 0), x.Width)
		defined, wanted = append(defined, a[row:row+n]...), append(wanted, b[row:row+n]...)
		largest := 0.0
		for _, v := range b[row : row+n] {
			if f := math.Abs(float64(v)); !special(f) {
				largest = max(largest, f)
			}
		}
		for i := row; i < row+n; i++ {
			diff := math.Abs(float64(a[i]) - float64(b[i]))
			if d := diff / largest; d > worst && !(d >= logitsOfRow && explained(i, diff)) {
				worst, at = d, i
			}
		}
		for i := row + n; i < row+x.Width; i++ {
			if math.Float32bits(a[i]) != math.MaxUint32 && math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				stray++
			}
		}
	}
	cmp.CalcDiff("logits", vectors.FromF32(defined, len(defined)), vectors.FromF32(wanted, len(wanted)), logitsDiff)
	if worst > 0 {
		cmp.Criterion(worst < logitsOfRow, worst, logitsOfRow, fmt.Sprintf("logits: %.3g of the row's largest at %s: got %.6g, want %.6g",
			worst, position(at, want.Shape), a[at], b[at]))
	}
	if stray > 0 {
		cmp.Fail("logits: %d undefined elements were written", stray)
	}
}

// logitsExplained reports whether the terms of logit i of recorded ones explain a difference.
func logitsExplained(x indexer.LogitsHost, recorded bool) func(i int, diff float64) bool {
	var terms []float32
	return func(i int, diff float64) bool {
		if !recorded || diff == 0 {
			return false
		}
		if terms == nil {
			y := x
			y.Weights = slices.Clone(x.Weights)
			for j, w := range y.Weights {
				y.Weights[j] = max(w, -w)
			}
			terms = make([]float32, len(x.Lens)*x.Width)
			if indexer.LogitsRef(y, terms) != nil {
				clear(terms)
			}
		}
		return diff < logitsOfTerms*float64(terms[i])
	}
}

// logitsShape is a random case. With a request for each token it is a decode step,
// with fewer a prefill. Hostile cases have lengths, requests and tables that only a
// broken host makes.
type logitsShape struct {
	about          string
	tokens, heads  int
	requests, lens int // lens: the largest length
	page, pad      int // slots; bytes between pages beyond the least stride
	first, columns int // columns 0: up to the largest length, or the entries of blocks
	blocks         int // candidate blocks of a token; 0: columns are all entries
	block          int // entries of one; 0 counts as candidateBlock
	group          int
	kind           int // of the numbers
	hostile        bool
}

// Kinds of numbers.
const (
	logitsNormal  = iota // quantised normal numbers, as a model has them
	logitsScales         // key scales of any positive f32; MXFP4 blocks of very different size
	logitsAnyCode        // random bytes: every code, subnormal ones too
	logitsFaint          // subnormal codes alone
)

func randomLogits(seed uint64, format cache.IndexKeyFormat) []Case {
	return casesOf(seed, []logitsShape{
		{about: "one entry", tokens: 1, heads: 1, requests: 1, lens: 1, page: 64},
		{about: "one token", tokens: 1, heads: 64, requests: 1, lens: 321, page: 64, pad: 64},
		{about: "decode", tokens: 2, heads: 64, requests: 2, lens: 321, page: 64, kind: logitsScales},
		{about: "decode of two tokens a request", tokens: 6, heads: 64, requests: 3, lens: 200, page: 64, group: 2},
		{about: "prefill", tokens: 17, heads: 64, requests: 2, lens: 69, page: 64, group: 4, pad: 192},
		{about: "prefill of many requests", tokens: 61, heads: 8, requests: 23, lens: 321, page: 16, group: 4, kind: logitsAnyCode},
		{about: "128 heads", tokens: 5, heads: 128, requests: 4, lens: 130, page: 64, group: 2},
		{about: "odd numbers of heads and keys", tokens: 69, heads: 3, requests: 69, lens: 61, page: 3},
		{about: "pages of one key", tokens: 17, heads: 17, requests: 5, lens: 61, page: 1, group: 8, kind: logitsScales},
		{about: "a segment", tokens: 9, heads: 33, requests: 9, lens: 321, page: 64, first: 100, columns: 69, kind: logitsAnyCode},
		{about: "a segment of a prefill", tokens: 21, heads: 16, requests: 2, lens: 400, page: 64, first: 256, columns: 128, group: 4},
		{about: "a chunk of a prompt", tokens: 21, heads: 64, requests: 1, lens: 321, page: 64, group: 128, kind: logitsScales},
		{about: "a chunk and other requests", tokens: 37, heads: 64, requests: 5, lens: 200, page: 64, group: 128, hostile: true},
		{about: "a segment behind every end", tokens: 2, heads: 8, requests: 2, lens: 61, page: 64, first: 61, columns: 17},
		{about: "many tokens", tokens: 321, heads: 2, requests: 3, lens: 69, page: 2, group: 4},
		{about: "subnormal codes", tokens: 5, heads: 64, requests: 3, lens: 130, page: 64, group: 2, kind: logitsFaint},
		{about: "numbers out of range", tokens: 61, heads: 9, requests: 17, lens: 200, page: 64, group: 2, hostile: true},
		{about: "candidate blocks", tokens: 3, heads: 32, requests: 3, lens: 700, page: 64, blocks: 37},
		{about: "blocks of a prompt", tokens: 21, heads: 8, requests: 2, lens: 333, page: 16, blocks: 6, group: 4, kind: logitsScales},
		{about: "candidate blocks, one of many", tokens: 5, heads: 64, requests: 5, lens: 200, page: 64, blocks: 1},
		{about: "candidate blocks, odd pages", tokens: 5, heads: 3, requests: 2, lens: 100, page: 3, blocks: 5},
		{about: "a segment of blocks", tokens: 2, heads: 32, requests: 2, lens: 700, page: 64, blocks: 40, first: 64, columns: 201},
		{about: "candidate blocks out of range", tokens: 17, heads: 32, requests: 5, lens: 400, page: 64, blocks: 9, hostile: true},
		{about: "32 heads", tokens: 5, heads: 32, requests: 3, lens: 321, page: 64, group: 2},
		{about: "a chunk of a prompt, 32 heads", tokens: 21, heads: 32, requests: 1, lens: 321, page: 64, group: 128},
		{about: "numbers out of range, decode", tokens: 17, heads: 64, requests: 17, lens: 200, page: 16, hostile: true, first: 3, columns: 190},
	}, func(rng *rand.Rand, _ int, s logitsShape) Case { return randomLogitsCase(rng, s, format) })
}

// spoilLogits puts what is out of range into some entries of a block table, some lengths
// and some requests.
func spoilLogits(rng *rand.Rand, s logitsShape, pages int, table, lens, req []int32) {
	width := len(table) / s.requests
	for i := range table {
		if rng.IntN(4) == 0 {
			table[i] = []int32{-1, math.MinInt32, int32(pages), math.MaxInt32}[rng.IntN(4)]
		}
	}
	for t := range lens {
		switch rng.IntN(6) {
		case 0:
			lens[t] = []int32{-1, math.MinInt32, int32(width*s.page + 7), math.MaxInt32}[rng.IntN(4)]
		case 1:
			req[t] = []int32{-1, math.MinInt32, int32(s.requests), math.MaxInt32}[rng.IntN(4)]
		}
	}
}

func randomLogitsCase(rng *rand.Rand, s logitsShape, format cache.IndexKeyFormat) Case {
	least := s.page * (format.RowBytes() + cache.IndexScaleBytes)
	l := cache.IndexKeyLayout{Page: s.page, Stride: (least+15)/16*16 + s.pad, Format: format}
	width := (s.lens + s.page - 1) / s.page
	pages := s.requests*width + 5
	table := permutation[int32](rng, s.requests*width, pages)
	pool := vectors.Filled(0xFF, vectors.U8, pages, l.Stride)
	longest := make([]int, s.requests)
	lens, req := make([]int32, s.tokens), make([]int32, s.tokens)
	for t := range s.tokens {
		r := t * s.requests / s.tokens
		req[t], lens[t] = int32(r), int32(rng.IntN(s.lens+1))
		if t == 0 {
			lens[t] = int32(s.lens)
		}
		longest[r] = max(longest[r], int(lens[t]))
	}
	for r, n := range longest {
		for i := range n {
			slot := int64(table[r*width+i/s.page])*int64(s.page) + int64(i%s.page)
			codes, scales := pool.Data[l.RowOffset(slot):][:format.RowBytes()], pool.Data[l.ScaleOffset(slot):][:cache.IndexScaleBytes]
			randomIndexRow(rng, format, s.kind, codes, scales)
		}
	}
	if s.hostile {
		spoilLogits(rng, s, pages, table, lens, req)
		fillKeys(rng, pool.Data, l, pages, s.kind)
	}
	queries := randomQueryRows(rng, format, s.kind, s.tokens, s.heads)
	if s.columns == 0 {
		s.columns = s.lens
		if s.blocks > 0 {
			s.columns = s.blocks * s.ofBlock()
		}
	}
	c := Case{
		Name:   fmt.Sprintf("t%d_h%d_r%d_n%d_page%d_first%d", s.tokens, s.heads, s.requests, s.lens, s.page, s.first),
		About:  s.about,
		Params: map[string]any{"block_size": s.page, "first": s.first, "columns": s.columns, "group": max(s.group, 1)},
		In: Arrays{
			"cache": pool, "context_lens": vectors.FromI32(lens, s.tokens),
			"block_table": vectors.FromI32(table, s.requests, width), "token_to_req": vectors.FromI32(req, s.tokens),
		},
	}
	if s.blocks > 0 {
		blocks, columns := randomBlocks(rng, s, lens)
		c.In["blocks"], c.In["context_lens"] = vectors.FromI32(blocks, s.tokens, s.blocks), vectors.FromI32(columns, s.tokens)
		c.Name += fmt.Sprintf("_blocks%d", s.blocks)
		if s.block > 0 {
			c.Name, c.Params["block"] = fmt.Sprintf("%s_of%d", c.Name, s.block), s.block
		}
	}
	maps.Copy(c.In, queries)
	return c
}

// randomQueryRows makes quantised queries and the weights of their heads. A large case has some
// over and over.
func randomQueryRows(rng *rand.Rand, format cache.IndexKeyFormat, kind, tokens, heads int) Arrays {
	const different = 4096
	n, row := min(tokens*heads, different), format.RowBytes()
	codes, scales, weights := make([]byte, n*row), make([]byte, n*indexer.Blocks), make([]float32, n)
	for i := range n {
		var unused [cache.IndexScaleBytes]byte
		scale := unused[:]
		if format == cache.IndexKeyMXFP4 {
			scale = scales[i*indexer.Blocks:][:indexer.Blocks]
		}
		randomIndexRow(rng, format, kind, codes[i*row:][:row], scale)
		weights[i] = float32(rng.NormFloat64() * 0.1)
	}
	all := func(a Array, width ...int) Array {
		out := vectors.New(a.Type, append([]int{tokens, heads}, width...)...)
		repeat(out.Data, a.Data)
		return out
	}
	names := queryOutputs(format)
	in := Arrays{names[0]: all(vectors.FromU8(codes), row), "weights": all(vectors.FromF32(weights))}
	if len(names) > 2 {
		in[names[2]] = all(vectors.FromU8(scales), indexer.Blocks)
	}
	return in
}

func (s *logitsShape) ofBlock() int { return cmp.Or(s.block, candidateBlock) }

// randomBlocks makes candidate blocks of tokens that see lens entries each, the newest among them,
// and how many of their entries a token sees. Of a hostile case some blocks have no owner.
func randomBlocks(rng *rand.Rand, s logitsShape, lens []int32) (blocks, columns []int32) {
	blocks, columns = slices.Repeat([]int32{-1}, s.tokens*s.blocks), make([]int32, s.tokens)
	for t, n := range lens {
		l := min(max(int(n), 0), s.lens)
		all := (l + s.ofBlock() - 1) / s.ofBlock()
		if all == 0 {
			continue
		}
		row := blocks[t*s.blocks:][:min(s.blocks, all)]
		for i, b := range rng.Perm(all - 1)[:len(row)-1] {
			row[i] = int32(b)
		}
		row[len(row)-1] = int32(all - 1)
		slices.Sort(row)
		columns[t] = int32(len(row)*s.ofBlock() - (all*s.ofBlock() - l))
		if s.hostile && rng.IntN(2) == 0 {
			row[rng.IntN(len(row))] = []int32{-1, math.MinInt32, math.MaxInt32, 1 << 29, 1<<28 + 1, int32(all + 9)}[rng.IntN(6)]
			columns[t] = []int32{columns[t], math.MaxInt32}[rng.IntN(2)]
		}
	}
	return blocks, columns
}

// fillKeys gives every slot numbers: where a length goes beyond what a request has,
// the entries that its table still names are defined.
func fillKeys(rng *rand.Rand, pool []byte, l cache.IndexKeyLayout, pages, kind int) {
	for slot := range int64(pages * l.Page) {
		randomIndexRow(rng, l.Format, kind, pool[l.RowOffset(slot):][:l.Format.RowBytes()], pool[l.ScaleOffset(slot):][:cache.IndexScaleBytes])
	}
}

// randomIndexRow makes the codes and scales of a key, or of a query head.
func randomIndexRow(rng *rand.Rand, format cache.IndexKeyFormat, kind int, codes, scales []byte) {
	block, eps, largest, faint := cache.IndexDim, float32(1e-4), float32(448), byte(0x87)
	if format == cache.IndexKeyMXFP4 {
		block, eps, largest, faint = cache.IndexDim/indexer.Blocks, 6*0x1p-126, 6, 0x99
	}
	var row [cache.IndexDim]float32
	FillNormal(rng, row[:])
	for b := range cache.IndexDim / block {
		v, amax := row[b*block:][:block], float32(0)
		size := float32(1)
		if kind == logitsScales && format == cache.IndexKeyMXFP4 {
			size = float32(math.Ldexp(1, rng.IntN(20)-10))
		}
		for i := range v {
			v[i] *= size
			amax = max(amax, v[i], -v[i])
		}
		sb := numfmt.UE8M0Encode(amax, eps, 1/largest)
		inverse := numfmt.UE8M0Inverse(sb)
		if format == cache.IndexKeyMXFP4 {
			scales[b] = sb
			for i := 0; i < block; i += 2 {
				codes[(b*block+i)/2] = numfmt.E2M1Pack(numfmt.E2M1Encode(v[i]*inverse), numfmt.E2M1Encode(v[i+1]*inverse))
			}
			continue
		}
		for i := range v {
			codes[i] = numfmt.E4M3Encode(v[i] * inverse)
		}
		scale := numfmt.UE8M0Scale(sb)
		if kind == logitsScales {
			scale *= float32(0.1 + rng.Float64())
		}
		binary.LittleEndian.PutUint32(scales, math.Float32bits(scale))
	}
	switch {
	case kind == logitsAnyCode && format == cache.IndexKeyFP8:
		fillE4M3(rng, codes)
	case kind == logitsAnyCode:
		FillBytes(rng, codes)
	case kind == logitsFaint:
		for i := range codes {
			codes[i] &= faint
		}
	}
}
