package verify

import (
	"errors"
	"maps"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
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
		Register(Op{
			Name: name, Class: ClassTolerance, Variants: indexer.LogitsVariants,
			Random: func(seed uint64) []Case { return randomRawLogits(seed, format) },
			Ref: func(c Case) (Arrays, error) {
				c, err := quantisedCase(c, format)
				if err != nil {
					return nil, err
				}
				return refLogits(c, format)
			},
			Bind: func(b Build, c Case) (Bound, error) { return bindRawLogits(b, c, format) },
			Compare: func(c Case, got, want Arrays) Result {
				c, err := quantisedCase(c, format)
				if err != nil {
					return NewComparison(ClassTolerance).Fail("%v", err).Result()
				}
				return compareLogits(c, got["logits"], want["logits"], format)
			},
		})
	}
}

// quantisedCase returns a raw case as one of indexer_logits, its queries and weights quantised.
func quantisedCase(c Case, format cache.IndexKeyFormat) (Case, error) {
	q, err := refQueryQuant(c, format)
	if err != nil {
		return c, err
	}
	c.In = maps.Clone(c.In)
	names := queryOutputs(format)
	c.In[names[0]], c.In["weights"] = q[names[0]], q[names[1]]
	if len(names) > 2 {
		c.In[names[2]] = q[names[2]]
	}
	return c, nil
}

// randomRawLogits makes cases of few tokens, with as many heads as models have and with few.
func randomRawLogits(seed uint64, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, s := range []logitsShape{
		{about: "one token", tokens: 1, heads: 64, requests: 1, lens: 321, page: 64, pad: 64},
		{about: "few tokens", tokens: 8, heads: 64, requests: 8, lens: 1333, page: 64},
		{about: "many tokens", tokens: 33, heads: 64, requests: 33, lens: 321, page: 64, kind: logitsAnyCode},
		{about: "one token, few heads", tokens: 1, heads: 5, requests: 1, lens: 333, page: 64},
		{about: "a segment of few heads, two tokens a request", tokens: 6, heads: 7, requests: 3, lens: 400, page: 64, first: 100, columns: 201},
		{about: "32 heads", tokens: 3, heads: 32, requests: 3, lens: 333, page: 64},
		{about: "candidate blocks", tokens: 3, heads: 7, requests: 3, lens: 700, page: 64, blocks: 37},
		{about: "numbers out of range", tokens: 33, heads: 8, requests: 17, lens: 200, page: 64, hostile: true},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		c := randomLogitsCase(rng, s, format)
		for _, name := range []string{"q_fp8", "q_packed", "q_scale"} {
			delete(c.In, name)
		}
		const rows = 40
		positions, weights := make([]int64, s.tokens), make([]float32, s.tokens*s.heads)
		for t := range positions {
			positions[t] = int64(rng.IntN(rows+6) - 3) // some of no row
		}
		for j := range weights {
			weights[j] = float32(rng.NormFloat64())
		}
		c.In["q"] = vectors.FromU16(randomQueries(rng, s.tokens*s.heads, true), s.tokens, s.heads, indexer.D)
		c.In["positions"], c.In["weights"] = vectors.FromI64(positions, s.tokens), vectors.FromBF16(weights, s.tokens, s.heads)
		c.In["cos_sin_rows"] = vectors.FromF32(randomCosSin(rng, rows), rows, indexer.RopeDim)
		c.Params["softmax_scale"], c.Params["head_scale"] = indexer.DefaultSoftmaxScale, indexer.DefaultHeadScale(s.heads)
		cases = append(cases, c)
	}
	return cases
}

func bindRawLogits(b Build, c Case, format cache.IndexKeyFormat) (Bound, error) {
	raw, err := readQueryQuant(c, format)
	if err != nil {
		return Bound{}, err
	}
	quantised, err := quantisedCase(c, format)
	if err != nil {
		return Bound{}, err
	}
	x, group, err := logitsInput(quantised, format)
	if err != nil {
		return Bound{}, err
	}
	cfg := indexer.LogitsConfig{Heads: x.Heads, Format: format, Page: x.Layout.Page, Group: group, Blocks: x.BlocksWidth, Block: x.Block,
		Variant: b.Variant, Raw: true}
	op, err := indexer.NewLogits(b.Dev, cfg)
	var quant *indexer.QueryQuant
	if errors.Is(err, vk.ErrMissingFeature) {
		cfg.Raw = false
		if op, err = indexer.NewLogits(b.Dev, cfg); err == nil {
			quant, err = indexer.NewQueryQuant(b.Dev, raw.cfg)
		}
	}
	return bound(op, err, func(r *Rig) Launch {
		q := indexer.QueryQuantArgs{Q: r.In(raw.q, tensor.BF16), Positions: r.In(raw.positions, tensor.I32),
			Weights: r.In(raw.weights, tensor.BF16), Table: r.In(raw.table, tensor.F32)}
		a := indexer.LogitsArgs{
			Keys:       cache.IndexKeyCache{Pool: r.In(c.In["cache"], tensor.U8), Layout: x.Layout},
			BlockTable: r.In(c.In["block_table"], tensor.I32), TokenToReq: r.In(c.In["token_to_req"], tensor.I32),
			Lens: r.In(c.In["context_lens"], tensor.I32), First: x.First, Out: r.Out(tensor.F32, len(x.Lens), x.Width),
		}
		if x.Blocks != nil {
			a.Blocks = r.In(c.In["blocks"], tensor.I32)
		}
		if quant == nil {
			a.Raw = indexer.RawQueries{Q: q.Q, Positions: q.Positions, Weights: q.Weights, Table: q.Table,
				SoftmaxScale: raw.cfg.SoftmaxScale, HeadScale: raw.cfg.HeadScale}
		} else {
			a.Q, a.Weights = r.Out(tensor.U8, raw.tokens, raw.heads, format.RowBytes()), r.Out(tensor.F32, raw.tokens, raw.heads)
			if format == cache.IndexKeyMXFP4 {
				a.QScale = r.Out(tensor.U8, raw.tokens, raw.heads, indexer.Blocks)
			}
			q.Codes, q.Scales, q.WeightsOut = a.Q, a.QScale, a.Weights
		}
		return Launch{Out: map[string]tensor.Tensor{"logits": a.Out}, Record: func(rec *vk.Recorder) error {
			if quant != nil {
				if err := quant.Record(rec, q); err != nil {
					return err
				}
			}
			return op.Record(rec, a)
		}}
	})
}
