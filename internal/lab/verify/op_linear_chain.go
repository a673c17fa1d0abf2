package verify

import (
	"cmp"
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
		Random: randomLinearChain, Ref: refBy(readChain, refLinearChain), Bind: bindBy(readChain, bindLinearChain),
		Compare: compareBy(ClassTolerance, readChain, compareLinearChain),
	})
}

// randomLinearChain makes pairs of layers; the second takes what the first gives.
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

// chainInput is two layers; the input of the second is empty.
type chainInput struct{ first, second linearInput }

func readChain(c Case) (x chainInput, err error) {
	if x.first, err = readLinear(c); err != nil {
		return x, err
	}
	in, d := c.Input(), Case{Op: c.Op, Name: c.Name, Params: maps.Clone(c.Params), In: Arrays{}}
	d.Params["n"], d.Params["width"] = in.Int("second_n"), in.Int("second_n")
	d.Params["k"], d.Params["groups"] = x.first.N*x.first.Groups, 1
	for _, name := range []string{"w", "w_scale", "row_scale"} {
		if a := c.In["second_"+name]; !a.IsZero() {
			d.In[name] = a
		}
	}
	x.second, err = readLinear(d)
	return x, cmp.Or(in.Err(), err)
}

// after returns the second layer for an output z of the first.
func (x chainInput) after(z Array) linearInput {
	x.second.X = z.Data
	return x.second
}

func refLinearChain(x chainInput) (Arrays, error) {
	first, err := refLinear(x.first)
	if err != nil {
		return nil, err
	}
	second, err := refLinear(x.after(first["y"]))
	return Arrays{"z": first["y"], "y": second["y"]}, err
}

// bindLinearChain records the layers one after the other where they cannot be a chain, as engines
// do.
func bindLinearChain(b Build, x chainInput) (Bound, error) {
	first, err := projection.NewLinear(b.Dev, x.first.config(b))
	if err != nil {
		return Bound{}, err
	}
	second, err := projection.NewLinear(b.Dev, x.second.config(b))
	if err != nil {
		return Bound{}, err
	}
	var chain *projection.LinearChain
	if T := x.first.T; T <= projection.LinearChainTokens {
		if chain, err = projection.NewLinearChain(first, second, T); errors.Is(err, vk.ErrMissingFeature) {
			err = nil
		}
	}
	return bound(first, err, func(r *Rig) Launch {
		one, two := x.first.place(r, first), x.second.place(r, second)
		two.X = one.Out
		l := Launch{Out: outs{"z": one.Out, "y": two.Out}}
		if chain == nil {
			l.Record = func(rec *vk.Recorder) error { return errors.Join(first.Record(rec, one), second.Record(rec, two)) }
			return l
		}
		data, err := chain.State(x.first.T)
		r.Fail(err)
		state := r.In(vectors.Array{Type: vectors.U32, Shape: []int{chain.StateLen(x.first.T)}, Data: data}, tensor.U32)
		return launch(chain, projection.LinearChainArgs{First: one, Second: two, State: state}, l.Out)
	})
}

// compareLinearChain holds the second layer against what it gives for the outputs that came from
// the first.
func compareLinearChain(cmp *Comparison, c Case, x chainInput, got, want Arrays) {
	if !cmp.Same("z", got["z"], want["z"]) || !cmp.Same("y", got["y"], want["y"]) {
		return
	}
	first := NewComparison(ClassTolerance)
	compareLinear(first, c, x.first, Arrays{"y": got["z"]}, Arrays{"y": want["z"]})
	if r := first.Result(); !r.Pass {
		cmp.Criterion(false, r.Error, r.Bound, "first layer: "+r.Detail)
		return
	}
	second := x.after(got["z"])
	exact, err := refLinear(second)
	if err != nil {
		cmp.Fail("%v", err)
	}
	compareLinear(cmp, c, second, Arrays{"y": got["y"]}, exact)
}
