package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"indexer_select_fp8": cache.IndexKeyFP8, "indexer_select_mxfp4": cache.IndexKeyMXFP4,
	} {
		Register(Op{
			Name: name, Class: ClassSet, Variants: indexer.LogitsVariants,
			Random:  func(seed uint64) []Case { return randomSelect(seed, format) },
			Ref:     func(c Case) (Arrays, error) { return refSelect(c, format) },
			Bind:    func(b Build, c Case) (Bound, error) { return bindSelect(b, c, format) },
			Timing:  Timing{Suite: "indexer", Sizes: func(o SizeOptions) []Size { return selectSizes(o, format) }, Sample: sampleSelect},
			Compare: func(c Case, got, want Arrays) Result { return compareSelect(c, got, want, format) },
		})
	}
}

// randomSelect makes the cases of the logits, as far as they begin at entry 0, with
// widths and segments such that there are one or many of them.
func randomSelect(seed uint64, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, s := range []struct {
		logitsShape
		k, segment, rows, workgroups int
	}{
		{logitsShape{tokens: 1, heads: 1, requests: 1, lens: 1, page: 64}, 1, 0, 0, 0},
		{logitsShape{tokens: 2, heads: 64, requests: 2, lens: 321, page: 64, pad: 64}, 17, 0, 0, 0},
		{logitsShape{tokens: 17, heads: 8, requests: 3, lens: 900, page: 64, group: 4}, 61, 192, 0, 0},
		{logitsShape{tokens: 3, heads: 8, requests: 3, lens: 1400, page: 16}, 512, 512, 0, 0},
		{logitsShape{tokens: 321, heads: 2, requests: 3, lens: 200, page: 2, group: 4}, 69, 128, 64, 0},
		{logitsShape{tokens: 1, heads: 1, requests: 1, lens: 66001, page: 64}, 321, 33000, 0, 64},
	} {
		c := randomLogitsCase(rand.New(rand.NewPCG(seed, uint64(i))), s.logitsShape, format)
		c.Name = fmt.Sprintf("t%d_h%d_n%d_page%d_k%d_segment%d", s.tokens, s.heads, s.lens, s.page, s.k, s.segment)
		c.Params["k"], c.Params["segment"], c.Params["rows"], c.Params["workgroups"] = s.k, s.segment, s.rows, s.workgroups
		cases = append(cases, c)
	}
	return cases
}

// selectLogits are the scores of a case by their reference, with poison behind them.
func selectLogits(c Case, format cache.IndexKeyFormat) (x indexer.LogitsHost, logits Array, err error) {
	c.Want = nil // the number of columns is a parameter
	if x, _, err = logitsInput(c, format); err != nil {
		return x, logits, err
	}
	a, err := refLogits(c, format)
	return x, a["logits"], err
}

func refSelect(c Case, format cache.IndexKeyFormat) (Arrays, error) {
	in := c.Input()
	k := in.Int("k")
	x, logits, err := selectLogits(c, format)
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	return Arrays{"topk_indices": vectors.FromI32(indexer.TopKRef(logits.F32(), x.Width, x.Lens, k), len(x.Lens), k)}, nil
}

func bindSelect(b Build, c Case, format cache.IndexKeyFormat) (Bound, error) {
	c.Want = nil
	x, group, err := logitsInput(c, format)
	if err != nil {
		return Bound{}, err
	}
	in := c.Input()
	t, cfg := len(x.Lens), indexer.SelectConfig{
		K: in.Int("k"), Segment: in.IntOr("segment", 0), Rows: in.IntOr("rows", 0), Workgroups: in.IntOr("workgroups", 0),
		Logits: indexer.LogitsConfig{Heads: x.Heads, Format: format, Page: x.Layout.Page, Group: group,
			MaxBytes: b.MaxBytes, Variant: b.Variant},
	}
	if err := in.Err(); err != nil {
		return Bound{}, err
	}
	op, err := indexer.NewSelect(b.Dev, cfg)
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := indexer.SelectArgs{LogitsArgs: logitsArgs(r, c, x), TopK: r.SharedOut(tensor.I32, t, cfg.K), Entries: x.Width,
			Scratch: r.Scratch(op.ScratchBytes(t)), Arrived: r.Shared(vectors.FromI32(make([]int32, t), t), tensor.I32)}
		return Launch{Out: map[string]tensor.Tensor{"topk_indices": a.TopK}, Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}

// compareSelect demands as many of the largest scores of the reference as there have
// to be, in ascending order of the entries. Scores that differ by no more than sums
// in f32 do count as equal.
func compareSelect(c Case, got, want Arrays, format cache.IndexKeyFormat) Result {
	cmp := NewComparison(ClassSet)
	x, logits, err := selectLogits(c, format)
	if err != nil {
		return cmp.Fail("%v", err).Result()
	}
	picks := got["topk_indices"]
	if !cmp.Same("topk_indices", picks, want["topk_indices"]) {
		return cmp.Result()
	}
	return cmp.TopK("topk_indices", logits, x.Lens, picks).ascending("topk_indices", picks).Result()
}
