package projection

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LinearChain is two linear layers, the second on what the first gives, for so few
// tokens that a launch of either takes little longer than the way from one to the next:
// one launch, in which the weights of the second layer are on their way while the last
// numbers of the first are made. Results are those of one Linear.Record after the other,
// to the bit.
//
// Workgroups wait for numbers of others there, which have all begun before, so that it
// does not matter how many have room on the device. But the device has to let those go on
// that have begun: no GPU is known that does not, and Vulkan has no rule that says so. It
// has run on an H100 and on lavapipe. Where tuning.Linear.ChainApart
// says so, the same kernel is launched once for each layer.
type LinearChain struct {
	first, second *Linear
	divisions     []rowDivision // for 1, 2, .. tokens
	heads         int           // that are joined in front; 0: the first layer takes what is there
	apart         bool          // a launch for each layer, and one in front
}

// projLinearChainPush is the push block of proj_linear_chain.comp.
type projLinearChainPush struct {
	StateAddr, XAddr, ZAddr, YAddr uint64
	W0Addr, S0Addr, R0Addr         uint64
	W1Addr, S1Addr, R1Addr         uint64
	PartOutAddr, PartMlAddr        uint64
	Tokens, HalfWords              uint32
	YStride, YColumn, Flags        uint32
	Splits, TableRows, Ahead       uint32
}

// LinearChainTokens are the most tokens of a LinearChain.
const LinearChainTokens = 2

// chainHalves is the word of a state with which its halves begin.
const chainHalves = 64

// NewLinearChain makes a chain of two layers for up to so many tokens, 1 to
// LinearChainTokens. The device owns its kernels; there is nothing to close.
//
// Errors: vk.ErrArgument for numbers of tokens that neither a chain nor both layers are
// for, and where the second layer does not take what the first gives, as bf16; one that
// wraps vk.ErrMissingFeature where the layers cannot be one launch and are to be recorded one
// after the other: for other activations than bf16, weights of two formats, a norm,
// layers that divide their rows differently, and without device addresses; those of
// vk.Device.Kernel.
func NewLinearChain(first, second *Linear, tokens int) (*LinearChain, error) {
	return newLinearChain("linear chain", first, second, tokens, 0)
}

func newLinearChain(op string, first, second *Linear, tokens, heads int) (*LinearChain, error) {
	a, b := first.cfg, second.cfg
	switch {
	case tokens < 1 || tokens > LinearChainTokens || a.MaxTokens > 0 && tokens > a.MaxTokens || b.MaxTokens > 0 && tokens > b.MaxTokens:
		return nil, pkg.Wrong(op, "tokens", tokens, "1 to %d, which both layers are for", LinearChainTokens)
	case a.Out != tensor.BF16 || b.Activations != ActivationBF16 || a.Groups*a.N != b.Groups*b.K:
		return nil, pkg.Wrong(op, "second", fmt.Sprintf("%d x %d inputs of %v", b.Groups, b.K, b.Activations), "%d of bf16, which the first layer gives as %v", a.Groups*a.N, a.Out)
	}
	missing := func(why string) error { return pkg.Wrap(op, fmt.Errorf("%w: %s", vk.ErrMissingFeature, why)) }
	switch {
	case first.variant == VariantBase || second.variant == VariantBase:
		return nil, missing("device addresses")
	case a.Activations != ActivationBF16 || a.Weights != b.Weights || a.Norm != 0 || b.Norm != 0:
		return nil, missing("layers of one format, of bf16 activations and without a norm")
	}
	o := &LinearChain{first: first, second: second, heads: heads, apart: first.tune.ChainApart}
	spec := opkit.Spec{Stem: "proj_linear_chain", Variant: VariantDA, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read}, Bound: 3, PushSize: int(unsafe.Sizeof(projLinearChainPush{}))}
	if first.matrices() {
		spec.Variant = VariantCM
	}
	for t := 1; t <= tokens; t++ {
		x, y := first.division1to8(t), second.division1to8(t)
		if x.tokens != t || y.tokens != t || x.rows != y.rows || x.lanes != y.lanes {
			return nil, missing("layers that divide their rows alike")
		}
		if heads > 0 && x.rows*t < 4 {
			return nil, missing("four rows of an invocation")
		}
		spec.Constants = opkit.Words(int(a.Weights), int(ActivationBF16), t, x.rows, x.lanes, a.N, a.K, a.Groups, b.N, b.K, b.Groups, min(heads, 1),
			opkit.ChainJoin.Ahead, opkit.ChainJoin.Groups, D)
		k, err := pkg.Kernel(first.dev, spec)
		if err != nil {
			return nil, err
		}
		x.kernel = k
		o.divisions = append(o.divisions, x)
	}
	return o, nil
}

// StateLen is how many u32 the state of a chain of so many tokens or fewer has.
func (o *LinearChain) StateLen(tokens int) int {
	return chainHalves + tokens*(o.first.cfg.Groups*o.first.cfg.N+o.heads*D)
}

// NewState makes the state of chains of these layers, [StateLen(tokens)] u32, as it has
// to be before the first launch. The caller closes it. Errors: those of tensor.New and of tensor.Upload.
func (o *LinearChain) NewState(ctx context.Context, label string, tokens int) (tensor.Tensor, error) {
	s, err := tensor.New(o.first.dev, label, tensor.U32, o.StateLen(tokens))
	if err != nil {
		return s, err
	}
	ones := make([]byte, s.Bytes())
	for i := range ones {
		ones[i] = 0xFF
	}
	if err := s.Upload(ctx, ones); err != nil {
		s.Close()
		return tensor.Tensor{}, err
	}
	return s, nil
}

// LinearChainArgs are the tensors of one LinearChain.
type LinearChainArgs struct {
	First  LinearArgs // as for its Linear; Out is [T, G*N] bf16, all of which is written
	Second LinearArgs // as for its Linear; X is First.Out

	// State is of NewState, or [StateLen(T)] or more u32 that all were ones before the
	// first launch. Launches with the same state wait for each other.
	State tensor.Tensor

	// Parts are what First.X is made of, which is [T, H, 512] and written: with
	// NewJoinedChain, else absent.
	Parts AttentionParts
}

// Record checks the arguments and records the launch, or one for each layer. T is the
// first dimension of Second.Out, at most the tokens that the chain was made for, and may be 0.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *LinearChain) Record(rec *vk.Recorder, a LinearChainArgs) error {
	const op = "linear chain"
	if err := opkit.First(o.first.check(op, a.First), o.second.check(op, a.Second)); err != nil {
		return err
	}
	t, width := a.Second.Out.Shape[0], o.first.cfg.Groups*o.first.cfg.N
	if t == 0 {
		return nil
	}
	z, x := a.First.Out, a.Second.X
	switch {
	case t > len(o.divisions):
		return pkg.Wrong(op, "Second.Out", a.Second.Out, "1 to %d tokens, which the chain was made for", len(o.divisions))
	case z.Shape[0] != t || perToken(z) != width:
		return pkg.Wrong(op, "First.Out", z, "[%d, %d]", t, width)
	case x.Buffer != z.Buffer || x.Offset != z.Offset:
		return pkg.Wrong(op, "Second.X", x, "First.Out")
	}
	if err := opkit.First(pkg.Check(op, "State", a.State, tensor.U32, -1),
		pkg.Range(op, "State", a.State.Len(), o.StateLen(t), 1<<30),
		pkg.Reach(o.first.dev, op, VariantDA, opkit.Target{Name: "State", T: a.State, Align: 16}), o.checkParts(op, t, a)); err != nil {
		return err
	}
	push := projLinearChainPush{
		StateAddr: a.State.View().Address(), XAddr: a.First.X.View().Address(), ZAddr: z.View().Address(), YAddr: a.Second.Out.View().Address(),
		W0Addr: a.First.W.Data.View().Address(), W1Addr: a.Second.W.Data.View().Address(),
		Tokens: uint32(t), HalfWords: uint32((a.State.Len() - chainHalves) / 2),
		YStride: uint32(a.Second.Out.Len() / t), YColumn: uint32(a.Second.OutColumn), Flags: opkit.Bit(0, o.second.cfg.Out == tensor.F32),
	}
	targets := []opkit.Target{
		{Name: "First.X", T: a.First.X, Access: o.access(), Align: 16}, {Name: "First.W.Data", T: a.First.W.Data, Access: vk.Read, Align: 16},
		{Name: "Second.W.Data", T: a.Second.W.Data, Access: vk.Read, Align: 16},
		{Name: "State", T: a.State, Access: vk.ReadWrite, Align: 16}, {Name: "First.Out", T: z, Access: vk.Write, Align: 8},
		{Name: "Second.Out", T: a.Second.Out, Access: vk.Write, Align: 8},
	}
	for _, s := range []struct {
		t    tensor.Tensor
		addr *uint64
	}{{a.First.W.Scale, &push.S0Addr}, {a.First.W.RowScale, &push.R0Addr}, {a.Second.W.Scale, &push.S1Addr}, {a.Second.W.RowScale, &push.R1Addr}} {
		if !s.t.IsZero() {
			*s.addr = s.t.View().Address()
			targets = append(targets, opkit.Target{Name: "W.Scale", T: s.t, Access: vk.Read, Align: 4})
		}
	}
	targets = append(targets, o.joins(a.Parts, &push)...)
	d := o.divisions[t-1]
	tiles := func(c LinearConfig) int { return d.rowTiles(c.N) * c.Groups }
	launches := []int{t * o.heads * opkit.ChainJoin.Threads() / rowWorkgroup, tiles(o.first.cfg), tiles(o.second.cfg)}
	if !o.apart {
		launches = []int{launches[0] + launches[1] + launches[2]}
	} else if o.heads == 0 {
		launches = launches[1:]
	}
	bind := []vk.View{opkit.Present(o.first.dev, a.Parts.Sink), opkit.Present(o.first.dev, a.Parts.Positions), opkit.Present(o.first.dev, a.Parts.Table)}
	for _, n := range launches {
		if err := pkg.Dispatch(rec, op, VariantDA, vk.Dispatch{Kernel: d.kernel, Groups: [3]uint32{uint32(n), 1, 1}, Push: vk.Bytes(&push), Bind: bind}, targets...); err != nil {
			return err
		}
	}
	return nil
}
