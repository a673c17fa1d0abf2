package projection

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LinearChain runs two linear layers in one launch, the second on the output of the first. It is
// for steps of so few tokens that a launch takes little longer than the way to the next one: the
// weights of the second layer load while the first one ends. The bits are those of two
// Linear.Records.
//
// Workgroups wait for numbers of others, which have always begun before, however many have room on
// the device. So the device has to let workgroups go on that have begun, which Vulkan does not
// promise. tuning.MayWait knows the drivers that do. With any other driver, and once workgroups
// starved (vk.Device.Starved), the same kernel is launched once for each layer, and no workgroup
// waits. A wait is bounded by tuning.Linear.ChainPolls; then the commands end with vk.ErrStarved.
type LinearChain struct {
	first, second *Linear
	divisions     []rowDivision // for 1, 2, .. tokens
	heads         int           // whose parts are joined first; 0: the first layer's input is complete
	apart         bool          // a launch for each layer, and one in front, always
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

// nobody is the workgroup of one launch that gives nothing. Tests name one, and the others starve.
const nobody = -1

// chainHalves is the word of a state with which its halves begin, chainHost the byte at which the
// address of the host's word stands.
const chainHalves, chainHost = 64, 8

// NewLinearChain makes a chain of two layers for up to `tokens` tokens, 1 to LinearChainTokens. The
// device owns its kernels; there is nothing to close. Of layers that are on demand, only the kernel
// for `tokens` tokens is asked for at once.
//
// Errors: vk.ErrArgument for too many tokens, and where the second layer does not take what the
// first gives, as bf16; one that wraps vk.ErrMissingFeature where the layers have to be recorded
// one after the other: without device addresses or with activations other than bf16, weights of two
// formats, a norm, a fixed order of sums, or different divisions of rows; those of
// vk.Device.Kernel.
func NewLinearChain(first, second *Linear, tokens int) (*LinearChain, error) {
	return newLinearChain("linear chain", first, second, tokens, 0, nobody)
}

func newLinearChain(op string, first, second *Linear, tokens, heads, silent int) (*LinearChain, error) {
	if first == nil || second == nil {
		return nil, pkg.Wrong(op, "layers", "nil", "two that NewLinear made")
	}
	a, b := first.cfg, second.cfg
	switch {
	case tokens < 1 || tokens > LinearChainTokens || a.MaxTokens > 0 && tokens > a.MaxTokens || b.MaxTokens > 0 && tokens > b.MaxTokens:
		return nil, pkg.Wrong(op, "tokens", tokens, "1 to %d, which both layers are for", LinearChainTokens)
	case a.Out != tensor.BF16 || a.Groups*a.N != b.Groups*b.K:
		return nil, pkg.Wrong(op, "second", fmt.Sprintf("%d x %d inputs", b.Groups, b.K),
			"%d of bf16, which the first layer gives as %v", a.Groups*a.N, a.Out)
	}
	missing := func(why string) error { return pkg.Wrap(op, fmt.Errorf("%w: %s", vk.ErrMissingFeature, why)) }
	switch {
	case first.variant == opkit.Base || second.variant == opkit.Base:
		return nil, missing("device addresses")
	case a.Activations != ActivationBF16 || b.Activations != ActivationBF16 || a.Weights != b.Weights || a.Norm != 0 || b.Norm != 0:
		return nil, missing("layers of one format, of bf16 activations and without a norm")
	case a.Invariant || b.Invariant:
		return nil, missing("layers that are not invariant")
	}
	o := &LinearChain{first: first, second: second, heads: heads, apart: !tuning.MayWait(first.dev.Adapter())}
	spec := opkit.Spec{
		Stem: "proj_linear_chain", Variant: opkit.DA, Bindings: []vk.Access{vk.Read, vk.Read, vk.Read}, Bound: 3,
		Push: projLinearChainPush{},
	}
	if first.matrices() || first.halves() {
		spec.Variant = opkit.CM
	}
	for t := 1; t <= tokens; t++ {
		x, y := first.division1to8(t), second.division1to8(t)
		if x.tokens != t || y.tokens != t || x.rows != y.rows || x.lanes != y.lanes {
			return nil, missing("layers that divide their rows alike")
		}
		if heads > 0 && x.rows*t < 4 {
			return nil, missing("four rows of an invocation")
		}
		spec.Constants = opkit.Constants(int(first.format.word()), int(ActivationBF16), t, x.rows, x.lanes,
			a.N, a.K, a.Groups, b.N, b.K, b.Groups, min(heads, 1), opkit.ChainJoin.Ahead, opkit.ChainJoin.Groups, cache.D,
			first.tune.ChainPolls, silent)
		x.kernel = pkg.Later(first.dev, spec)
		o.divisions = append(o.divisions, x)
		if a.OnDemand && t < tokens {
			continue
		}
		if err := opkit.Ask(x.kernel); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// StateLen returns the number of u32 in the state of a chain of up to `tokens` tokens.
func (o *LinearChain) StateLen(tokens int) int {
	return chainHalves + tokens*(o.first.cfg.Groups*o.first.cfg.N+o.heads*cache.D)
}

// State returns the state that a chain of up to `tokens` tokens needs before the first launch:
// [StateLen(tokens)] u32, little-endian. It is all ones but for the address of a word for the host.
// Errors: those of vk.Device.NewBuffer.
func (o *LinearChain) State(tokens int) ([]byte, error) {
	word, err := door.StarvedWord(o.first.dev)
	if err != nil {
		return nil, err
	}
	state := bytes.Repeat([]byte{0xFF}, 4*o.StateLen(tokens))
	binary.LittleEndian.PutUint64(state[chainHost:], word.(vk.View).Address())
	return state, nil
}

// ResetState records what makes a state as before the first launch, after launches that were not
// finished. Errors: vk.ErrArgument for a tensor that is no state; those of vk.Recorder.Fill.
func ResetState(rec *vk.Recorder, state tensor.Tensor) error {
	if err := pkg.Check("linear chain", "state", state, tensor.U32, -1); err != nil {
		return err
	}
	if state.Len() < chainHalves {
		return pkg.Wrong("linear chain", "state", state, "that of NewState")
	}
	return errors.Join(rec.Fill(state.Rows(0, 1).View(), math.MaxUint32),
		rec.Fill(state.Rows(chainHalves, state.Len()).View(), math.MaxUint32))
}

// NewState makes the state of chains of these layers, as State says. The caller closes it. Errors:
// those of State, of tensor.New and of tensor.Upload.
func (o *LinearChain) NewState(ctx context.Context, label string, tokens int) (tensor.Tensor, error) {
	data, err := o.State(tokens)
	if err != nil {
		return tensor.Tensor{}, err
	}
	s, err := tensor.New(o.first.dev, label, tensor.U32, o.StateLen(tokens))
	if err != nil {
		return s, err
	}
	if err := s.Upload(ctx, data); err != nil {
		s.Close()
		return tensor.Tensor{}, err
	}
	return s, nil
}

// LinearChainArgs are the tensors of one LinearChain.
type LinearChainArgs struct {
	First  LinearArgs // as for its Linear; Out is [T, G*N] bf16, written completely
	Second LinearArgs // as for its Linear; X is First.Out

	// State is of NewState, or at least [StateLen(T)] u32, before the first launch as State says.
	// Launches with the same state run one after the other.
	State tensor.Tensor

	// Parts are joined to First.X, which is [T, H, 512] then and written. With NewJoinedChain
	// only.
	Parts AttentionParts
}

// Record checks the arguments and records the launch, or one for each layer. T is the
// first dimension of Second.Out, at most the tokens that the chain was made for, and may be 0.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *LinearChain) Record(rec *vk.Recorder, a LinearChainArgs) error {
	const op = "linear chain"
	if err := opkit.FirstError(o.first.check(op, a.First), o.second.check(op, a.Second)); err != nil {
		return err
	}
	t, dev := a.Second.Out.Shape[0], o.first.dev
	if t == 0 {
		return nil
	}
	if err := o.check(op, t, a); err != nil {
		return err
	}
	kernel, err := o.divisions[t-1].kernel.Kernel()
	if err != nil {
		return err
	}
	push, targets := o.memory(t, a)
	bind := []vk.View{opkit.ViewOrDummy(dev, a.Parts.Sink), opkit.ViewOrDummy(dev, a.Parts.Positions),
		opkit.ViewOrDummy(dev, a.Parts.Table)}
	launches := o.launches(t)
	if len(launches) == 1 {
		push.Flags |= 1 << 3
		if err := door.MayStarve(rec); err != nil {
			return pkg.Wrap(op, err)
		}
	}
	for _, n := range launches {
		d := vk.Dispatch{Kernel: kernel, Groups: [3]uint32{uint32(n), 1, 1}, Push: vk.Bytes(push), Bind: bind}
		if err := pkg.Dispatch(rec, op, opkit.DA, d, targets...); err != nil {
			return err
		}
	}
	return nil
}

// check looks at what the two layers do not check.
func (o *LinearChain) check(op string, t int, a LinearChainArgs) error {
	z, x, width := a.First.Out, a.Second.X, o.first.rows()
	switch {
	case t > len(o.divisions):
		return pkg.Wrong(op, "Second.Out", a.Second.Out, "1 to %d tokens, which the chain was made for", len(o.divisions))
	case z.Shape[0] != t || perToken(z) != width:
		return pkg.Wrong(op, "First.Out", z, "[%d, %d]", t, width)
	case x.Buffer != z.Buffer || x.Offset != z.Offset:
		return pkg.Wrong(op, "Second.X", x, "First.Out")
	}
	return opkit.FirstError(
		pkg.Check(op, "State", a.State, tensor.U32, -1),
		pkg.Range(op, "State", a.State.Len(), o.StateLen(t), 1<<30),
		pkg.Reach(o.first.dev, op, opkit.DA, opkit.Target{Name: "State", T: a.State, Align: 16}),
		o.checkParts(op, t, a))
}

// memory is the push constants, and the memory that they name.
func (o *LinearChain) memory(t int, a LinearChainArgs) (push *projLinearChainPush, targets []opkit.Target) {
	push = new(projLinearChainPush)
	push.Tokens, push.HalfWords = uint32(t), uint32((a.State.Len()-chainHalves)/2)
	push.YStride, push.YColumn = uint32(a.Second.Out.Len()/t), uint32(a.Second.OutColumn)
	push.Flags = opkit.Bit(0, o.second.cfg.Out == tensor.F32)
	targets = []opkit.Target{
		{Name: "First.X", T: a.First.X, Access: o.access(), Align: 16, At: &push.XAddr},
		{Name: "First.W.Data", T: a.First.W.Data, Access: vk.Read, Align: 16, At: &push.W0Addr},
		{Name: "Second.W.Data", T: a.Second.W.Data, Access: vk.Read, Align: 16, At: &push.W1Addr},
		{Name: "State", T: a.State, Access: vk.ReadWrite, Align: 16, At: &push.StateAddr},
		{Name: "First.Out", T: a.First.Out, Access: vk.Write, Align: 8, At: &push.ZAddr},
		{Name: "Second.Out", T: a.Second.Out, Access: vk.Write, Align: 8, At: &push.YAddr},
		{Name: "First.W.Scale", T: a.First.W.Scale, Access: vk.Read, Align: 4, At: &push.S0Addr},
		{Name: "First.W.RowScale", T: a.First.W.RowScale, Access: vk.Read, Align: 4, At: &push.R0Addr},
		{Name: "Second.W.Scale", T: a.Second.W.Scale, Access: vk.Read, Align: 4, At: &push.S1Addr},
		{Name: "Second.W.RowScale", T: a.Second.W.RowScale, Access: vk.Read, Align: 4, At: &push.R1Addr},
	}
	targets = slices.DeleteFunc(targets, func(x opkit.Target) bool { return x.T.IsZero() })
	return push, append(targets, o.joins(a.Parts, push)...)
}

// launches are the workgroups of each launch.
func (o *LinearChain) launches(t int) []int {
	tiles := func(c LinearConfig) int { return o.divisions[t-1].rowTiles(c.N) * c.Groups }
	join, first, second := t*o.heads*opkit.ChainJoin.Threads()/rowWorkgroup, tiles(o.first.cfg), tiles(o.second.cfg)
	switch {
	case !o.apart && !o.first.dev.Starved():
		return []int{join + first + second}
	case o.heads == 0:
		return []int{first, second}
	}
	return []int{join, first, second}
}
