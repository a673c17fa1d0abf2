package verify

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "linear_chain", Class: ClassTolerance, Variants: opkit.Builds("proj_linear"),
		Of:     Of{"projection.LinearChain", "proj_linear_chain", "wo_a, wo_b"},
		Random: randomLinearChain, Ref: refLinearChain, Bind: bindLinearChain, Compare: compareLinearChain,
	})
}

// randomLinearChain makes pairs of layers, of which the second takes what the first gives.
func randomLinearChain(seed uint64) []Case {
	var cases []Case
	for i, s := range []struct {
		format                   projection.Format
		tokens, groups, n, k, n2 int
	}{
		{projection.FormatFP8, 1, 2, 528, 1056, 1032}, {projection.FormatBF16, 2, 2, 80, 160, 136},
		{projection.FormatNVFP4, 1, 2, 80, 160, 136}, {projection.FormatFP8F32, 2, 2, 80, 160, 136},
		{projection.FormatFP8, 3, 2, 80, 160, 136},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		shape := linearShape{about: "followed by another layer", tokens: s.tokens, groups: s.groups, n: s.n, k: s.k}
		c := randomLinearCase(rng, shape, s.format)
		second := randomLinearCase(rng, linearShape{tokens: s.tokens, groups: 1, n: s.n2, k: s.groups * s.n}, s.format)
		for name, a := range second.In {
			if name != "x" {
				c.In["second_"+name] = a
			}
		}
		c.Params["second_n"] = s.n2
		c.Name += fmt.Sprintf("_n%d", s.n2)
		cases = append(cases, c)
	}
	return cases
}

// secondLayer returns the case of the second layer alone, for an output z of the first.
func secondLayer(c Case, z Array) Case {
	d := Case{Op: c.Op, Name: c.Name, Params: maps.Clone(c.Params), In: Arrays{"x": z}}
	in := c.Input()
	d.Params["n"], d.Params["width"] = in.Int("second_n"), in.Int("second_n")
	d.Params["k"], d.Params["groups"] = in.Int("n")*in.Int("groups"), 1
	for _, name := range []string{"w", "w_scale", "row_scale"} {
		if a := c.In["second_"+name]; !a.IsZero() {
			d.In[name] = a
		}
	}
	return d
}

func refLinearChain(c Case) (Arrays, error) {
	first, err := refLinear(c)
	if err != nil {
		return nil, err
	}
	second, err := refLinear(secondLayer(c, first["y"]))
	return Arrays{"z": first["y"], "y": second["y"]}, err
}

// bindLinearChain records the layers one after the other where they cannot be a chain, as engines
// do.
func bindLinearChain(b Build, c Case) (Bound, error) {
	h, dt, _, width, err := linearInput(c)
	if err != nil {
		return Bound{}, err
	}
	next := secondLayer(c, c.In["x"])
	h2, _, _, _, err := linearInput(next)
	if err != nil {
		return Bound{}, err
	}
	cfg := projection.LinearConfig{N: h.N, K: h.K, Groups: h.Groups, Weights: h.Weights, Out: dt, MaxTokens: h.T, Variant: b.Variant}
	first, err := projection.NewLinear(b.Dev, cfg)
	if err != nil {
		return Bound{}, err
	}
	cfg.N, cfg.K, cfg.Groups = h2.N, h2.K, 1
	second, err := projection.NewLinear(b.Dev, cfg)
	if err != nil {
		return Bound{}, err
	}
	var chain *projection.LinearChain
	if h.T <= projection.LinearChainTokens {
		if chain, err = projection.NewLinearChain(first, second, h.T); err != nil && !errors.Is(err, vk.ErrMissingFeature) {
			return Bound{}, err
		}
	}
	return Bound{first.Variant(), func(r *Rig) Launch {
		x, y := linearArgs(r, c.In, h, first), projection.LinearArgs{W: linearWeights(r, next.In), Out: r.Out(dt, h.T, h2.N)}
		x.Out = r.Out(dt, h.T, width)
		y.X = x.Out
		if n := second.ScratchLen(h.T); n > 0 {
			y.Scratch = r.Out(tensor.F32, n)
		}
		l := Launch{Out: map[string]tensor.Tensor{"z": x.Out, "y": y.Out}}
		if chain == nil {
			l.Record = func(rec *vk.Recorder) error { return errors.Join(first.Record(rec, x), second.Record(rec, y)) }
			return l
		}
		data, err := chain.State(h.T)
		r.Fail(err)
		state := r.In(vectors.Array{Type: vectors.U32, Shape: []int{chain.StateLen(h.T)}, Data: data}, tensor.U32)
		a := projection.LinearChainArgs{First: x, Second: y, State: state}
		l.Record = func(rec *vk.Recorder) error { return chain.Record(rec, a) }
		return l
	}}, nil
}

// compareLinearChain holds the second layer against what it gives for the outputs that came from
// the first.
func compareLinearChain(c Case, got, want Arrays) Result {
	cmp := NewComparison(ClassTolerance)
	for _, name := range []string{"z", "y"} {
		if !cmp.Same(name, got[name], want[name]) {
			return cmp.Result()
		}
	}
	if r := compareLinear(c, Arrays{"y": got["z"]}, Arrays{"y": want["z"]}); !r.Pass {
		r.Detail = "first layer: " + r.Detail
		return r
	}
	second := secondLayer(c, got["z"])
	exact, err := refLinear(second)
	if err != nil {
		return cmp.Fail("%v", err).Result()
	}
	return compareLinear(second, Arrays{"y": got["y"]}, exact)
}
