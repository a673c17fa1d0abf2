package verify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"indexer_select_fp8": cache.IndexKeyFP8, "indexer_select_mxfp4": cache.IndexKeyMXFP4,
	} {
		Register(selectOp(name, format, randomSelect, selectSizes))
	}
}

// selectOp describes a selection by its random cases and timed sizes.
func selectOp(name string, format cache.IndexKeyFormat, random func(uint64, cache.IndexKeyFormat) []Case,
	sizes func(SizeOptions, cache.IndexKeyFormat) []Size) Op {
	read := readAs(readSelect, format)
	return Op{
		Name: name, Class: ClassSet, Variants: opkit.Builds("idx_logits"),
		Of:     Of{"indexer.Select", scoreKernels + " " + topkKernels, "indexer.select"},
		Random: with(random, format), Ref: refBy(read, refSelect), Bind: bindBy(read, bindSelect),
		Timing:  Timing{Suite: "indexer", Sizes: with(sizes, format), Sample: sampleSelect},
		Compare: compareBy(ClassSet, read, compareSelect),
	}
}

// randomSelect makes the cases of the logits, as far as they begin at entry 0, with
// widths and segments such that there are one or many of them; and of raw queries.
func randomSelect(seed uint64, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, s := range []struct {
		logitsShape
		k, segment, rows, workgroups, candidates int // these of logitsShape.block entries
	}{
		{logitsShape{tokens: 1, heads: 1, requests: 1, lens: 1, page: 64}, 1, 0, 0, 0, 0},
		{logitsShape{tokens: 2, heads: 64, requests: 2, lens: 321, page: 64, pad: 64}, 17, 0, 0, 0, 0},
		{logitsShape{tokens: 17, heads: 8, requests: 3, lens: 900, page: 64, group: 4}, 61, 192, 0, 0, 0},
		{logitsShape{tokens: 3, heads: 8, requests: 3, lens: 1400, page: 16}, 512, 512, 0, 0, 0},
		{logitsShape{tokens: 321, heads: 2, requests: 3, lens: 200, page: 2, group: 4}, 69, 128, 64, 0, 0},
		{logitsShape{tokens: 1, heads: 1, requests: 1, lens: 66001, page: 64}, 321, 33000, 0, 64, 0},
		{logitsShape{tokens: 3, heads: 32, requests: 3, lens: 700, page: 64}, 32, 0, 0, 0, 6},
		{logitsShape{tokens: 69, heads: 8, requests: 3, lens: 900, page: 64, group: 4}, 17, 192, 64, 0, 17},
		{logitsShape{tokens: 2, heads: 1, requests: 1, lens: 33001, page: 64}, 61, 16384, 0, 64, 2048},
		{logitsShape{tokens: 3, heads: 8, requests: 3, lens: 333, page: 64, block: 1}, 17, 64, 0, 0, 61},
		{logitsShape{tokens: 17, heads: 8, requests: 3, lens: 701, page: 16, group: 4, block: 2}, 32, 192, 0, 0, 69},
		{logitsShape{tokens: 3, heads: 32, requests: 3, lens: 700, page: 64, block: 4}, 61, 0, 0, 0, 17},
		{logitsShape{tokens: 2, heads: 8, requests: 2, lens: 1400, page: 64, block: 32}, 17, 512, 0, 0, 6},
		{logitsShape{tokens: 69, heads: 2, requests: 3, lens: 900, page: 64, group: 4, block: 64}, 17, 192, 64, 0, 3},
	} {
		c := randomLogitsCase(rand.New(rand.NewPCG(seed, uint64(i))), s.logitsShape, format)
		c.Name = fmt.Sprintf("t%d_h%d_n%d_page%d_k%d_segment%d", s.tokens, s.heads, s.lens, s.page, s.k, s.segment)
		c.Params["k"], c.Params["segment"], c.Params["rows"], c.Params["workgroups"] = s.k, s.segment, s.rows, s.workgroups
		if s.candidates > 0 {
			c.Name += fmt.Sprintf("_candidates%d", s.candidates)
			c.Params["candidates"] = s.candidates
			if s.block > 0 {
				c.Name, c.Params["block"] = fmt.Sprintf("%s_of%d", c.Name, s.block), s.block
			}
		}
		cases = append(cases, c)
	}
	for i, s := range []logitsShape{
		{tokens: 1, heads: 64, requests: 1, lens: 900, page: 64},
		{tokens: 6, heads: 5, requests: 3, lens: 1400, page: 64},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases)+i)))
		c := ofRawQueries(rng, randomLogitsCase(rng, s, format), s)
		c.Name, c.Params["k"] = fmt.Sprintf("raw_t%d_h%d_n%d", s.tokens, s.heads, s.lens), 61
		cases = append(cases, c)
	}
	return cases
}

// selectInput is a selection, and what it asks of the operation.
type selectInput struct {
	rawInput // raw where queries are
	selectNumbers
}

type selectNumbers struct {
	K          int `in:"k"`
	Segment    int `in:"segment=0"`
	Rows       int `in:"rows=0"`
	Workgroups int `in:"workgroups=0"`
	Candidates int `in:"candidates=0"`
}

func readSelect(c Case, format cache.IndexKeyFormat) (x selectInput, err error) {
	c.Want = nil // the number of columns is a parameter
	if c.In["q"].Shape != nil {
		x.rawInput, err = readRawLogits(c, format)
	} else {
		x.logitsInput, err = readLogits(c, format)
	}
	if err == nil {
		x.selectNumbers, err = fields[selectNumbers](c)
	}
	return x, err
}

func refSelect(x selectInput) (Arrays, error) {
	logits, err := x.scores()
	if err != nil {
		return nil, err
	}
	t, picks := len(x.Lens), indexer.TopKRef(logits.F32(), x.Width, x.Lens, x.K)
	if x.Blocks != nil {
		picks = indexer.CandidateEntriesRef(picks, x.K, x.Blocks, x.BlocksWidth, x.Block)
	}
	want := Arrays{"topk_indices": vectors.FromI32(picks, t, x.K)}
	if n := x.Candidates; n > 0 {
		blocks, columns := indexer.CandidatesRef(logits.F32(), x.Width, x.Lens, n, x.Block)
		want["candidate_blocks"], want["candidate_columns"] = vectors.FromI32(blocks, t, n), vectors.FromI32(columns, t)
	}
	return want, nil
}

func bindSelect(b Build, x selectInput) (Bound, error) {
	var op *indexer.Select
	var quant *indexer.QueryQuant
	try := func(cfg indexer.LogitsConfig) (err error) {
		op, err = indexer.NewSelect(b.Dev, indexer.SelectConfig{K: x.K, Segment: x.Segment, Rows: x.Rows, Workgroups: x.Workgroups,
			Candidates: x.Candidates, Logits: cfg})
		return err
	}
	t, cfg, err, raw := len(x.Lens), x.config(b), error(nil), x.raw.T > 0
	if cfg.Few = raw; raw {
		quant, err = x.build(b, cfg, try)
	} else {
		err = try(cfg)
	}
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.SelectArgs{LogitsArgs: logitsArgs(r, x.c, x.LogitsHost), TopK: r.SharedOut(tensor.I32, t, x.K), Entries: x.Width,
			Scratch: r.Scratch(op.ScratchBytes(t)), Arrived: r.Shared(vectors.New(vectors.I32, t, indexer.SelectCounters), tensor.I32)}
		out := outs{"topk_indices": a.TopK}
		if x.Candidates > 0 {
			a.Candidates = indexer.CandidateBlocks{Blocks: r.SharedOut(tensor.I32, t, x.Candidates), Columns: r.SharedOut(tensor.I32, t)}
			out["candidate_blocks"], out["candidate_columns"] = a.Candidates.Blocks, a.Candidates.Columns
		}
		if !raw {
			return launch(op, a, out)
		}
		q := x.place(r, quant, &a.LogitsArgs)
		return launch(op, a, out).after(quant, q)
	})
}

// compareSelect demands as many of the largest scores of the reference as there have
// to be, in ascending order of the entries. Scores that differ by no more than sums
// in f32 do count as equal.
func compareSelect(cmp *Comparison, _ Case, x selectInput, got, want Arrays) {
	picks := got["topk_indices"]
	if !cmp.Same("topk_indices", picks, want["topk_indices"]) {
		return
	}
	logits, err := x.scores()
	if err != nil {
		cmp.Fail("%v", err)
	}
	cmp.ascending("topk_indices", picks)
	if x.Blocks != nil {
		picks = columnsOf(picks, x.Blocks, x.BlocksWidth, int32(x.Block))
	}
	cmp.TopK("topk_indices", logits, x.Lens, picks)
	if blocks, ok := got["candidate_blocks"]; ok {
		scores, counts := blockScores(logits, x.Lens, x.Block)
		cmp.TopK("candidate_blocks", scores, counts, blocks).ascending("candidate_blocks", blocks)
		cmp.Exact("candidate_columns", got["candidate_columns"], want["candidate_columns"])
	}
}

// columnsOf returns the columns of picked entries [T, k] in the candidate blocks [T, width] of `of`
// entries, one past all columns for an entry of no block.
func columnsOf(picks Array, blocks []int32, width int, of int32) Array {
	k, columns := picks.Dim(1), picks.I32()
	for i, entry := range columns {
		if entry < 0 {
			continue
		}
		row := blocks[i/k*width:][:width]
		column := slices.Index(row, entry/of)
		if column < 0 {
			column = width
		}
		columns[i] = int32(column)*of + entry%of
	}
	return vectors.FromI32(columns, picks.Shape...)
}

// blockScores returns the largest scores of blocks [T, B], +Inf of the newest, and how many blocks
// there are.
func blockScores(logits Array, lens []int32, of int) (scores Array, counts []int32) {
	n, x := logits.Dim(1), logits.F32()
	b := (n + of - 1) / of
	all := slices.Repeat([]float32{float32(math.Inf(-1))}, len(lens)*b)
	for t, l := range lens {
		seen := min(max(int(l), 0), n)
		for i, v := range x[t*n:][:seen] {
			all[t*b+i/of] = max(all[t*b+i/of], v)
		}
		if seen > 0 {
			all[t*b+(seen-1)/of] = float32(math.Inf(1))
		}
		counts = append(counts, int32((seen+of-1)/of))
	}
	return vectors.FromF32(all, len(lens), b), counts
}
