package verify

import (
	"cmp"
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
		NaN:    Spoilt{Input: "x", Zero: true},
		Random: randomLinearNorm, Ref: refBy(readLinearNorm, refLinearNorm), Bind: bindBy(readLinearNorm, bindLinearNorm),
		Compare: compareBy(ClassTolerance, readLinearNorm, compareLinearNorm),
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
		c.Params["rank"], c.In["norm"] = s.rank, randomNorm(rng, s.weights, s.rank)
		c.Name += fmt.Sprintf("_rank%d", s.rank)
		cases = append(cases, c)
	}
	return cases
}

type linearNormInput struct {
	linearInput
	rank int
	norm Array
}

func readLinearNorm(c Case) (x linearNormInput, err error) {
	in := c.Input()
	x.rank, x.norm = in.Int("rank"), c.In["norm"]
	x.linearInput, err = readLinear(c)
	return x, cmp.Or(in.Err(), err)
}

func refLinearNorm(x linearNormInput) (Arrays, error) {
	want, err := refLinear(x.linearInput)
	if err != nil {
		return nil, err
	}
	want["normed"], err = x.normed(want["y"])
	return want, err
}

// normed returns the norms of a layer's first outputs y.
func (x linearNormInput) normed(y Array) (Array, error) {
	out := make([]uint16, x.T*x.rank)
	err := projection.QKVNormRef(columns(y, x.column, x.rank, 0).U16(), floats(x.norm), linearNormEps, out)
	return vectors.FromU16(out, x.T, x.rank), err
}

// bindLinearNorm norms in a launch of its own where the layer's kernel does not, as engines do.
func bindLinearNorm(b Build, x linearNormInput) (Bound, error) {
	cfg := x.config(b)
	cfg.Norm, cfg.NormColumns, cfg.NormEps = floatType(x.norm), x.rank, linearNormEps
	op, err := projection.NewLinear(b.Dev, cfg)
	if err != nil {
		return Bound{}, err
	}
	after, err := projection.NewQKVNorm(b.Dev, projection.QKVNormConfig{Rank: x.rank, Eps: linearNormEps})
	return bound(op, err, func(r *Rig) Launch {
		a := x.place(r, op)
		weight, normed := r.In(x.norm, floatType(x.norm)), r.Out(tensor.BF16, x.T, x.rank)
		l := Launch{Out: outs{"y": a.Out, "normed": normed}, Args: &a}
		if op.Norms(x.T) {
			a.Norm, a.Normed, a.Arrived = weight, normed, r.In(vectors.New(vectors.U32, x.T), tensor.U32)
			return launch(op, a, l.Out)
		}
		rest := r.In(vectors.New(vectors.U16, x.T, cache.D), tensor.BF16) // which the norm takes along
		q := projection.QKVNormArgs{QR: a.Out, QRAt: x.column, QRWeight: weight, QROut: normed,
			KV: rest, KVWeight: r.In(vectors.New(vectors.U16, cache.D), tensor.BF16), KVOut: r.Out(tensor.BF16, x.T, cache.D)}
		l.Record = func(rec *vk.Recorder) error { return errors.Join(op.Record(rec, a), after.Record(rec, q)) }
		return l
	})
}

// compareLinearNorm holds the norms against those of the outputs that came, not of those that were
// wanted, from which rounding may move them.
func compareLinearNorm(cmp *Comparison, c Case, x linearNormInput, got, want Arrays) {
	compareLinear(cmp, c, x.linearInput, got, want)
	if !cmp.Same("normed", got["normed"], want["normed"]) {
		return
	}
	normed, err := x.normed(got["y"])
	if err != nil {
		cmp.Fail("%v", err)
	}
	cmp.normed("normed", got["normed"], normed)
}
