package verify

import (
	"errors"
	"maps"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Scores of queries as the projection left them: what fused_indexer_q_rope_quant computes,
// and indexer_logits of that. Where no kernel does both, as in variants without matrices and
// for more heads than a device takes in lanes, two do, as in a step.
func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"indexer_logits_raw_fp8": cache.IndexKeyFP8, "indexer_logits_raw_mxfp4": cache.IndexKeyMXFP4,
	} {
		read := readAs(readRawLogits, format)
		Register(Op{
			Name: name, Class: ClassTolerance, Variants: opkit.Builds("idx_logits"),
			Of:     Of{"indexer.Logits indexer.RawQueries", "idx_logits_lanes", "indexer.select"},
			Random: with(randomRawLogits, format), Bind: bindBy(read, bindRawLogits),
			Ref: refBy(read, func(x rawInput) (Arrays, error) { return refLogits(x.logitsInput) }),
			Compare: compareBy(ClassTolerance, read, func(cmp *Comparison, c Case, x rawInput, got, want Arrays) {
				compareLogits(cmp, c, x.logitsInput, got, want)
			}),
		})
	}
}

// rawInput is a case with raw queries, and as one of indexer_logits with queries and weights
// quantised.
type rawInput struct {
	logitsInput
	raw queryInput
}

func readRawLogits(c Case, format cache.IndexKeyFormat) (x rawInput, err error) {
	if x.raw, err = readQueryQuant(c, format); err != nil {
		return x, err
	}
	q, err := refQueryQuant(x.raw)
	if err != nil {
		return x, err
	}
	c.In = maps.Clone(c.In)
	names := queryOutputs(format)
	c.In[names[0]], c.In["weights"] = q[names[0]], q[names[1]]
	if len(names) > 2 {
		c.In[names[2]] = q[names[2]]
	}
	x.logitsInput, err = readLogits(c, format)
	return x, err
}

// randomRawLogits makes cases of few tokens, with as many heads as models have and with few.
func randomRawLogits(seed uint64, format cache.IndexKeyFormat) []Case {
	return casesOf(seed, []logitsShape{
		{about: "one token", tokens: 1, heads: 64, requests: 1, lens: 321, page: 64, pad: 64},
		{about: "few tokens", tokens: 8, heads: 64, requests: 8, lens: 1333, page: 64},
		{about: "many tokens", tokens: 33, heads: 64, requests: 33, lens: 321, page: 64, kind: logitsAnyCode},
		{about: "one token, few heads", tokens: 1, heads: 5, requests: 1, lens: 333, page: 64},
		{about: "a segment of few heads, two tokens a request", tokens: 6, heads: 7, requests: 3, lens: 400, page: 64, first: 100, columns: 201},
		{about: "32 heads", tokens: 3, heads: 32, requests: 3, lens: 333, page: 64},
		{about: "candidate blocks", tokens: 3, heads: 7, requests: 3, lens: 700, page: 64, blocks: 37},
		{about: "numbers out of range", tokens: 33, heads: 8, requests: 17, lens: 200, page: 64, hostile: true},
	}, func(rng *rand.Rand, i int, s logitsShape) Case {
		return ofRawQueries(rng, randomLogitsCase(rng, s, format), s)
	})
}

// ofRawQueries gives a case of indexer_logits queries as the projection leaves them.
func ofRawQueries(rng *rand.Rand, c Case, s logitsShape) Case {
	for _, name := range []string{"q_fp8", "q_packed", "q_scale"} {
		delete(c.In, name)
	}
	positions := make([]int64, s.tokens)
	for t := range positions {
		positions[t] = int64(rng.IntN(turnRows+6) - 3) // some of no row
	}
	c.In["positions"], c.In["weights"] = vectors.FromI64(positions, s.tokens), normalBF16(rng, 1, s.tokens, s.heads)
	c.In["q"] = vectors.FromU16(randomQueries(rng, s.tokens*s.heads, true), s.tokens, s.heads, cache.IndexDim)
	c.In["cos_sin_rows"] = randomCosSin(rng)
	c.Params["softmax_scale"], c.Params["head_scale"] = indexer.DefaultSoftmaxScale, indexer.DefaultHeadScale(s.heads)
	return c
}

// build makes an operation that takes raw queries, or where no kernel does, one that takes
// quantised ones, and what quantises them.
func (x rawInput) build(b Build, cfg indexer.LogitsConfig, try func(indexer.LogitsConfig) error) (
	quant *indexer.QueryQuant, err error) {
	cfg.Raw = true
	if err = try(cfg); errors.Is(err, vk.ErrMissingFeature) {
		cfg.Raw = false
		if err = try(cfg); err == nil {
			quant, err = indexer.NewQueryQuant(b.Dev, x.raw.cfg)
		}
	}
	return quant, err
}

// place gives a launch the queries, and returns the arguments of quant unless that is nil.
func (x rawInput) place(r *Rig, quant *indexer.QueryQuant, a *indexer.LogitsArgs) (q indexer.QueryQuantArgs) {
	a.Q, a.QScale, a.Weights = tensor.Tensor{}, tensor.Tensor{}, tensor.Tensor{}
	if quant == nil {
		a.Raw = indexer.RawQueries{Q: r.In(x.raw.Q, tensor.BF16), Positions: r.In(x.raw.Positions, tensor.I32),
			Weights: r.In(x.raw.Weights, tensor.BF16), Table: r.In(x.raw.Table, tensor.F32),
			SoftmaxScale: x.raw.SoftmaxScale, HeadScale: x.raw.HeadScale}
		return q
	}
	q, _ = x.raw.place(r)
	a.Q, a.QScale, a.Weights = q.Codes, q.Scales, q.WeightsOut
	return q
}

func bindRawLogits(b Build, x rawInput) (Bound, error) {
	var op *indexer.Logits
	quant, err := x.build(b, x.config(b), func(cfg indexer.LogitsConfig) (err error) {
		op, err = indexer.NewLogits(b.Dev, cfg)
		return err
	})
	return bound(op, err, func(r *Rig) Launch {
		in := x.c.In
		a := indexer.LogitsArgs{
			Keys:       cache.IndexKeyCache{Pool: r.In(in["cache"], tensor.U8), Layout: x.Layout},
			BlockTable: r.In(in["block_table"], tensor.I32), TokenToReq: r.In(in["token_to_req"], tensor.I32),
			Lens: r.In(in["context_lens"], tensor.I32), First: x.First, Out: r.Out(tensor.F32, len(x.Lens), x.Width),
			Blocks: r.In(in["blocks"], tensor.I32),
		}
		q := x.place(r, quant, &a)
		return launch(op, a, outs{"logits": a.Out}).after(quant, q)
	})
}

// after returns a launch after what quantises its queries, unless that is nil.
func (l Launch) after(quant *indexer.QueryQuant, q indexer.QueryQuantArgs) Launch {
	if record := l.Record; quant != nil {
		l.Record = func(rec *vk.Recorder) error {
			if err := quant.Record(rec, q); err != nil {
				return err
			}
			return record(rec)
		}
	}
	return l
}
