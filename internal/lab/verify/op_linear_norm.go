package verify

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "linear_norm", Class: ClassTolerance, Variants: opkit.Builds("proj_linear"),
		Of:     Of{"projection.Linear", "proj_linear_tokens1to8 proj_linear_tokens8to32", "wq_a|wkv"},
		Random: randomLinearNorm, Ref: refLinearNorm, Bind: bindLinearNorm, Compare: compareLinearNorm,
	})
}

const linearNormEps = 1e-3

// randomLinearNorm makes linear layers whose first outputs, all but 40, are normed.
func randomLinearNorm(seed uint64) []Case {
	var cases []Case
	for i, s := range []struct {
		format       projection.Format
		tokens, rank int
		weights      vectors.Type // of the norm
	}{
		{projection.FormatFP8, 1, 1536, vectors.U16}, {projection.FormatNVFP4, 2, 608, vectors.F32},
		{projection.FormatBF16, 5, 608, vectors.U16}, {projection.FormatFP8F32, 13, 128, vectors.F32},
		{projection.FormatFP8, 17, 128, vectors.U16}, {projection.FormatBF16, 61, 48, vectors.F32},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		shape := linearShape{about: "outputs normed", tokens: s.tokens, groups: 1, n: s.rank + 40, k: 160 * (1 + i%2), column: 8}
		c := randomLinearCase(rng, shape, s.format)
		norm := make([]float32, s.rank)
		for j := range norm {
			norm[j] = float32(1 + rng.NormFloat64()/2)
		}
		c.Params["rank"], c.In["norm"] = s.rank, vectors.FromBF16(norm, s.rank)
		if s.weights == vectors.F32 {
			c.In["norm"] = vectors.FromF32(norm, s.rank)
		}
		c.Name += fmt.Sprintf("_rank%d", s.rank)
		cases = append(cases, c)
	}
	return cases
}

func refLinearNorm(c Case) (Arrays, error) {
	want, err := refLinear(c)
	if err != nil {
		return nil, err
	}
	want["normed"], err = normedOutputs(c, want["y"])
	return want, err
}

// normedOutputs returns the norms of a layer's first outputs y.
func normedOutputs(c Case, y Array) (Array, error) {
	in := c.Input()
	rank, column, tokens := in.Int("rank"), in.Int("column"), in.Int("tokens")
	if err := in.Err(); err != nil {
		return Array{}, err
	}
	out := make([]uint16, tokens*rank)
	err := projection.QKVNormRef(columns(y, column, rank, 0).U16(), floats(c.In["norm"]), linearNormEps, out)
	return vectors.FromU16(out, tokens, rank), err
}

// bindLinearNorm norms in a launch of its own where the layer's kernel does not, as engines do.
func bindLinearNorm(b Build, c Case) (Bound, error) {
	h, dt, column, width, err := linearInput(c)
	if err != nil {
		return Bound{}, err
	}
	in := c.Input()
	rank, norm := in.Int("rank"), c.In["norm"]
	if err := in.Err(); err != nil {
		return Bound{}, err
	}
	op, err := projection.NewLinear(b.Dev, projection.LinearConfig{N: h.N, K: h.K, Weights: h.Weights, Out: dt, MaxTokens: h.T,
		Variant: b.Variant, Norm: floatType(norm), NormColumns: rank, NormEps: linearNormEps})
	if err != nil {
		return Bound{}, err
	}
	after, err := projection.NewQKVNorm(b.Dev, projection.QKVNormConfig{Rank: rank, Eps: linearNormEps})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := linearArgs(r, c.In, h, op)
		a.Out, a.OutColumn = r.Out(dt, h.T, width), column
		weight, normed := r.In(norm, floatType(norm)), r.Out(tensor.BF16, h.T, rank)
		l := Launch{Out: map[string]tensor.Tensor{"y": a.Out, "normed": normed}}
		if op.Norms(h.T) {
			a.Norm, a.Normed, a.Arrived = weight, normed, r.In(vectors.New(vectors.U32, h.T), tensor.U32)
			l.Record = func(rec *vk.Recorder) error { return op.Record(rec, a) }
			return l
		}
		rest := r.In(vectors.New(vectors.U16, h.T, cache.D), tensor.BF16) // which the norm takes along
		q := projection.QKVNormArgs{QR: a.Out, QRAt: column, QRWeight: weight, QROut: normed,
			KV: rest, KVWeight: r.In(vectors.New(vectors.U16, cache.D), tensor.BF16), KVOut: r.Out(tensor.BF16, h.T, cache.D)}
		l.Record = func(rec *vk.Recorder) error { return errors.Join(op.Record(rec, a), after.Record(rec, q)) }
		return l
	}}, nil
}

// linearArgs places the inputs of a layer.
func linearArgs(r *Rig, in Arrays, h projection.LinearHost, op *projection.Linear) projection.LinearArgs {
	a := projection.LinearArgs{X: r.In(in["x"], tensor.BF16), W: linearWeights(r, in)}
	if n := op.ScratchLen(h.T); n > 0 {
		a.Scratch = r.Out(tensor.F32, n)
	}
	return a
}

func linearWeights(r *Rig, in Arrays) projection.LinearWeights {
	return projection.LinearWeights{Data: r.In(in["w"], linearTypes[in["w"].Type]),
		Scale: r.In(in["w_scale"], linearTypes[in["w_scale"].Type]), RowScale: r.In(in["row_scale"], tensor.F32)}
}

// compareLinearNorm holds the norms against those of the outputs that came, not of those that were
// wanted, from which rounding may move them.
func compareLinearNorm(c Case, got, want Arrays) Result {
	r := compareLinear(c, got, want)
	if !r.Pass {
		return r
	}
	cmp := NewComparison(ClassTolerance)
	if !cmp.Same("normed", got["normed"], want["normed"]) {
		return cmp.Result()
	}
	normed, err := normedOutputs(c, got["y"])
	if err != nil {
		return cmp.Fail("%v", err).Result()
	}
	if n := cmp.normed("normed", got["normed"], normed).Result(); !n.Pass {
		return n
	}
	return r
}
