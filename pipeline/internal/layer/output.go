package layer

import (
	"context"
	"errors"

	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// output holds the operations after the attention: RoPE is undone in its output, which then goes
// through wo_a, by groups, and wo_b.
type output struct {
	unrope *projection.InverseRope      // nil where the attention undoes RoPE, or quant does
	quant  *projection.InverseRopeQuant // nil as long as no layer takes FP8

	coded coded         // [G, T, P*512] u8 and scales; of quant
	z     tensor.Tensor // [T, G*ORank] bf16

	chains map[[2]*projection.Linear]*projection.LinearChain
	state  tensor.Tensor   // of the chains, absent as long as there are none
	old    []tensor.Tensor // states that became too small; commands may use them yet
}

func (x *output) build(k *Kernels) (err error) {
	x.chains = map[[2]*projection.Linear]*projection.LinearChain{}
	if !k.mla.unropes {
		x.unrope, err = projection.NewInverseRope(k.dev, projection.InverseRopeConfig{MaxBytes: k.queryBytes()})
	}
	return err
}

func (x *output) tensors(s scratch, k *Kernels) {
	s.Add("z", edges, &x.z, tensor.BF16, k.cfg.Tokens, k.groups*k.cfg.Model.ORank)
}

// buildQuant makes the operation that undoes RoPE and gives FP8, and wants its
// memory, for the first layer that takes it.
func (x *output) buildQuant(k *Kernels) (err error) {
	if x.quant != nil {
		return nil
	}
	s, t, p := k.scratch(), k.cfg.Tokens, k.cfg.Model.HeadsPerGroup()
	s.Add("o, codes", edges, &x.coded.codes, tensor.U8, k.groups, t, p*headDim)
	s.Add("o, scales", edges, &x.coded.scales, tensor.F32, k.groups, p*projection.HeadBlocks, projection.PaddedTokens(t))
	x.quant, err = projection.NewInverseRopeQuant(k.dev, projection.InverseRopeQuantConfig{
		Groups: k.groups, Heads: p, Scales: projection.ScaleF32, MaxBytes: k.queryBytes()})
	return err
}

// chain returns the one launch of wo_a and wo_b, which layers share, or nil where they are to
// be two. It joins the attention's parts where it can.
func (k *Kernels) chain(ctx context.Context, a, b *projection.Linear) (*projection.LinearChain, error) {
	x, key := &k.output, [2]*projection.Linear{a, b}
	if c := x.chains[key]; c != nil {
		return c, nil
	}
	var c *projection.LinearChain
	err := error(vk.ErrMissingFeature)
	if k.want.joins && projection.JoinedParts(k.mla.splits) {
		c, err = projection.NewJoinedChain(a, b, k.cfg.Tokens)
	}
	if k.want.chains && errors.Is(err, vk.ErrMissingFeature) {
		c, err = projection.NewLinearChain(a, b, k.cfg.Tokens)
	}
	if errors.Is(err, vk.ErrMissingFeature) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	x.chains[key] = c
	there, n := x.state.Shape != nil, c.StateLen(k.cfg.Tokens)
	if there && x.state.Len() >= n {
		return c, nil
	}
	var fresh tensor.Tensor
	if k.cfg.Count != nil {
		fresh, err = k.cfg.Count.Tensor(k.dev, label, tensor.U32, n)
	} else {
		fresh, err = c.NewState(ctx, label, k.cfg.Tokens)
	}
	if err != nil {
		delete(x.chains, key)
		return nil, err
	}
	if there {
		x.old = append(x.old, x.state)
	}
	x.state = fresh
	return c, nil
}

// reset makes the state as before the first launch.
func (x *output) reset(rec *vk.Recorder) error {
	if x.state.IsZero() {
		return nil
	}
	return projection.ResetState(rec, x.state)
}

func (x *output) bytes() (n uint64) {
	for _, t := range append(x.old, x.state) {
		n += t.Bytes()
	}
	return n
}

func (x *output) close() (err error) {
	for _, t := range append(x.old, x.state) {
		err = errors.Join(err, t.Close())
	}
	x.old, x.state = nil, tensor.Tensor{}
	return err
}
