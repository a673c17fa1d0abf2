package projection

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LinearConfig says what a Linear is built for.
type LinearConfig struct {
	N, K        int // outputs and inputs, of a group: N a multiple of 8, K of 8 (bf16 weights), 16 (FP8) or 32 (NVFP4)
	Groups      int // G, which have inputs and outputs of their own; 0 counts as 1
	Weights     Format
	Activations ActivationFormat // those of fewer bits need weights alike, and K a multiple of 128, of 512 (packed) or 64 (NVFP4)
	Out         tensor.DType     // tensor.BF16 or tensor.F32
	MaxTokens   int              // the most tokens of a Record; 0: any number. Fewer need fewer kernels
	Variant     string           // "" picks the best

	// OnDemand leaves it to Prepare and Record to ask for the kernels that they need. Otherwise
	// NewLinear asks for all that up to MaxTokens tokens can need.
	OnDemand bool

	// Norm is the type of the weights, tensor.BF16 or tensor.F32, of an RMS norm of the first
	// NormColumns outputs; 0 stands for none. The launch that makes the outputs norms them, where
	// Linear.Norms says so, with the bits of QKVNorm. Groups has to be 1, Out bf16 and NormColumns
	// a multiple of 8.
	Norm        tensor.DType
	NormColumns int
	NormEps     float32 // 0: defaultEps

	// Workgroups is the number of workgroups that fill the device; 0 asks the tuning profile. The
	// order of sums may depend on it.
	Workgroups int

	// Beside is the number of outputs of other layers with rows of the same length that are
	// recorded beside this one. Where many tokens of all of them fill the device, K is not cut.
	Beside int

	// Invariant gives a token the same bits whatever T is and wherever in it the token stands.
	// Neither MaxTokens nor scratch memory decides them.
	Invariant bool
}

// LinearWeights are the weights of a Linear: G*N rows, those of group g from row g*N on. Weights
// of several tensors may lie below each other; with FP8 all but the last then have a multiple of
// 128 rows, or of 32 with blocks of 32.
type LinearWeights struct {
	Data     tensor.Tensor // [rows, K] bf16; [rows, K] u8 E4M3; [rows, K/2] u8 with two E2M1 codes a byte, the even one low
	Scale    tensor.Tensor // FP8 in blocks of B = 128 or 32: [ceil(rows/B), ceil(K/B)] f32 or u8; NVFP4: [rows, K/16] u8 E4M3; else absent
	RowScale tensor.Tensor // [rows] f32; NVFP4: weight_scale_2, times input_scale if x is NVFP4; neither it nor FP8 by rows: absent
}

// LinearArgs are the tensors of one Linear.
type LinearArgs struct {
	// X is bf16 [T, ..], G*K numbers a token, as [T, K], [T, G, K] or [T, H, 512]; FP8 [G, T, K]
	// u8; NVFP4 [G, T, K/2] u8. Its XScale, absent with bf16, is of FP8 [G, K/128, Ta] f32 with
	// Ta >= T, packed [G, K/512, Ta] i32 or u32, byte c the UE8M0 scale of block 4i+c, of MXFP8
	// [G, K/128, Ta]; of NVFP4 [G, T, K/16] u8 E4M3.
	X, XScale tensor.Tensor

	W         LinearWeights
	Out       tensor.Tensor // [T, ..] of LinearConfig.Out, a multiple of 8 numbers a token; G*N of them are written
	OutColumn int           // where these begin, a multiple of 8: outputs of several layers can stand side by side

	// With LinearConfig.Norm only, all three or none. Out is the same with and without.
	Norm    tensor.Tensor // [NormColumns], weights of the norm of the columns from OutColumn on
	Normed  tensor.Tensor // [T, NormColumns] bf16, written
	Arrived tensor.Tensor // [T] u32 or i32, zeros before the first launch, which each launch restores; not shared by launches that overlap

	// Scratch holds sums over parts of K: [ScratchLen(T)] f32 or more that nothing else uses
	// meanwhile. Without it K is not cut, and layers of few outputs leave much of the device idle.
	Scratch tensor.Tensor
}

// Linear multiplies by weights as they are stored: for token t, group g and
// 0 <= n < N,
//
//	out[t][g*N + n] = sum_k x[t][g][k] * w[g*N + n][k]
//
// with f32 sums and one rounding of the result. Weights, and activations that Quantise made, are
// codes times their scales; they are decoded on the chip and never written back.
// With one group this is a linear layer (wq_a over wkv, wq_b, wo_b, the indexer's and
// the compressors' projections); with several it is the einsum of wo_a, "bhr,hdr->bhd".
//
// The definition is LinearRef. Tokens do not touch each other. A scale may be any f32: its
// power of two multiplies the codes, which is exact, its fraction the sums. A NaN code of E4M3,
// which no quantiser writes, makes its sums any number or NaN. Variant cm multiplies f16 numbers:
// it clamps activations and bf16 weights to 65504, and rounds those below 2^-14 to steps of 2^-24.
// So do dot and half but in proj_linear_tokens1to8, and dot may take those below 2^-14 for zeros.
// All other products are exact. Where matrices have E4M3 numbers, those of E4M3 activations are
// multiplied as they are stored, and sums by the product of both scales, which must not leave
// f32's range.
//
// T chooses the kernel. The same device and T give the same bits on every run; with another T
// sums can have another order, unless LinearConfig.Invariant fixes it: see invariantKinds. The
// numbers below are those of most layers:
//
//	base, da  T <= 4    proj_linear_tokens1to8 reads the weights once for 1, 2 or 4 tokens
//	          T <= 48   proj_linear_tokens8to16 shares x, in passes of 8 or 16
//	          else      proj_linear, tiles of up to 128 tokens x 128 rows
//	dot, half           the same, with pairs of f16 but in proj_linear_tokens1to8
//	cm, cmb   T <= 2    proj_linear_tokens1to8
//	          T <= 16   proj_linear_tokens8to32, matrices from memory to registers, 16 rows or 32
//	          T <= 128  proj_linear_tokens32to64, the same with x shared by 128 rows
//	          else      proj_linear_cm and proj_linear_whole, tiles of 64 or 128 tokens
//
// Layers of few rows keep the kernels of fewer tokens for longer. Where tiles leave much of the
// device idle, K is cut into parts, or for the last tiles only. The rules are in the files named
// after the shaders, the numbers in tuning.Linear.
//
// proj_linear_tokens8to32 and proj_linear_tokens32to64 need fragments to lie in registers in one of
// several ways. A kernel of one workgroup finds out how they lie when the first Linear is made on
// a device. Where they lie otherwise, the kernels before and after take their tokens.
//
// Sources: DeepSeek-V4 inference/model.py (linear layers, einsum of wo_a), vLLM
// rocm_aiter_mla_sparse.py (bf16 einsum over dequantised weights), DeepGEMM
// csrc/apis/einsum.hpp (FP8 einsum and its scale layouts).
type Linear struct {
	*linearLayer
	kinds []kernelKind // asked from the first
	sum   *opkit.Later // adds up parts of K
}

// projLinearPush is the push block of proj_linear.comp, proj_linear_tokens8to16.comp,
// proj_linear_tokens32to64.comp, proj_linear_cm.comp and proj_linear_whole.comp.
type projLinearPush struct {
	XAddr, WAddr, YAddr    uint64
	Tokens, Groups, N, K   uint32
	YStride, YColumn, YF32 uint32
	XScalePitch            uint32
	Splits, SplitSteps     uint32
	FirstRow               uint32
}

// projLinearNormPush is the push block of proj_linear_tokens1to8.comp with LINEAR_NORM, and of
// proj_linear_tokens8to32.comp.
type projLinearNormPush struct {
	projLinearPush
	NormAddr, NormedAddr, ArrivedAddr uint64
}

// projLinearSumPush is the push block of proj_linear_sum.comp.
type projLinearSumPush struct {
	Tokens, Columns, Splits uint32
	YStride, YColumn, YF32  uint32
}

// NewLinear chooses the variant and builds its kernels. The device owns them; there
// is nothing to close.
//
// Errors: vk.ErrArgument for sizes and formats that do not go together or a variant
// that does not exist or cannot hold the weights; *vk.MissingError or
// vk.ErrMissingFeature for a variant that the device cannot run; those of
// vk.Device.Kernel.
func NewLinear(dev *vk.Device, cfg LinearConfig) (*Linear, error) {
	return newLinear(dev, cfg, tuning.Of(dev), kindsOf(cfg))
}

// newLinear is NewLinear with the numbers of a profile and the kinds of kernels for a variant.
func newLinear(dev *vk.Device, cfg LinearConfig, profile *tuning.Profile, kindsFor func(variant string) []kernelKind) (*Linear, error) {
	const op = "linear"
	cfg.Groups = max(cfg.Groups, 1)
	if err := cfg.check(op); err != nil {
		return nil, err
	}
	if cfg.Workgroups == 0 {
		cfg.Workgroups = profile.Device.WorkgroupsOf(dev.Adapter(), profile.Device.PerUnit)
	}
	rows := cfg.N * cfg.Groups
	largest := max(cfg.Weights.bytes(rows, cfg.K), cfg.MaxTokens*cfg.Groups*cfg.K*2, cfg.MaxTokens*rows*cfg.Out.Size())
	l := &linearLayer{dev: dev, caps: dev.Caps(), cfg: cfg, format: cfg.Weights.row(), tune: &profile.Linear, device: &profile.Device}
	l.lanes = l.findLanes
	o := &Linear{linearLayer: l}
	var err error
	l.variant, err = pkg.ChooseOn(dev, op, opkit.Builds("proj_linear"), cfg.Variant, uint64(largest), func(v string) error {
		if x := cfg.Activations.row(); x.staged && v != opkit.Base && v != opkit.DA {
			return fmt.Errorf("%s by %s activations: %w", v, x.name, vk.ErrMissingFeature)
		}
		o.kinds = kindsFor(v)
		if tiles, ok := o.kinds[len(o.kinds)-1].(*matrixTiles); ok {
			return tiles.find(profile, dev.Caps(), v)
		}
		return nil
	})
	if err == nil {
		o.kinds, err = fitKinds(l, o.kinds)
	}
	if err != nil {
		return nil, err
	}
	return o, o.build()
}

// build says what the kernels for up to MaxTokens tokens are, and asks for them unless they are on
// demand.
func (o *Linear) build() error {
	from := 1
	for _, k := range o.kinds {
		if most := o.cfg.MaxTokens; most > 0 && most < from {
			break
		}
		k.build(from)
		from = k.reach() + 1
	}
	o.sum = o.later(opkit.Spec{
		Stem: "proj_linear_sum", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Write},
		Push: projLinearSumPush{},
	})
	if o.cfg.OnDemand {
		return nil
	}
	return opkit.Ask(o.kernels...)
}

// Prepare asks for the kernels of a Record of t tokens with such scratch memory, so that they are
// compiled in the background. It is for LinearConfig.OnDemand.
//
// Errors: vk.ErrArgument for a number of tokens that Record refuses; those of vk.Device.Kernel.
func (o *Linear) Prepare(t int, scratch tensor.Tensor) error {
	const op = "linear"
	most := o.cfg.MaxTokens
	if most == 0 {
		most = math.MaxInt32
	}
	if err := pkg.Range(op, "t", t, 1, most); err != nil {
		return err
	}
	p := o.planWith(t, scratch)
	if p.splits < 2 {
		return opkit.Ask(p.kernel)
	}
	return opkit.Ask(p.kernel, o.sum)
}

// planWith is the plan for t tokens with scratch memory, which may be absent. Its shape is enough.
func (o *Linear) planWith(t int, scratch tensor.Tensor) linearPlan {
	if scratch.Shape == nil {
		return o.plan(t, 0)
	}
	return o.plan(t, scratch.Len())
}

// Variant is the name of the variant that was chosen.
func (o *Linear) Variant() string { return o.variant }

// ScratchLen returns the number of f32 of scratch memory that a Record of T tokens uses. It is 0
// for more than MaxTokens.
func (o *Linear) ScratchLen(T int) int {
	if T < 1 || o.cfg.MaxTokens > 0 && T > o.cfg.MaxTokens {
		return 0
	}
	p := o.plan(T, math.MaxInt32)
	if p.splits < 2 {
		return 0
	}
	return p.splits * T * (o.cfg.N*o.cfg.Groups - p.whole)
}

// Record checks the arguments and records the launches: one, a second that adds up parts in
// scratch memory, and a third where only the last rows are in parts. T is the first dimension of
// Out and may be 0.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Linear) Record(rec *vk.Recorder, a LinearArgs) error {
	const op = "linear"
	p, err := o.recordProducts(rec, op, a)
	if err != nil || p.splits < 2 {
		return err
	}
	return o.recordSum(rec, op, a, p)
}

// RecordProducts records what Record does, except the launch that adds up parts of K. RecordSums,
// with the same arguments, records that launch, after others that need not wait for the products.
// Until then the rows of Out that are in parts are as they were.
//
// Errors: those of Record.
func (o *Linear) RecordProducts(rec *vk.Recorder, a LinearArgs) error {
	_, err := o.recordProducts(rec, "linear products", a)
	return err
}

// RecordSums records the launch that adds up parts of K, if there are any.
//
// Errors: those of Record.
func (o *Linear) RecordSums(rec *vk.Recorder, a LinearArgs) error {
	const op = "linear sums"
	if err := o.check(op, a); err != nil || !o.Sums(a.Out.Shape[0], a.Scratch) {
		return err
	}
	return o.recordSum(rec, op, a, o.planWith(a.Out.Shape[0], a.Scratch))
}

// products counts the multiply-adds of t tokens.
func (o *Linear) products(t int) float64 {
	return float64(t) * float64(o.cfg.Groups) * float64(o.cfg.N) * float64(o.cfg.K)
}

// Sums reports whether RecordSums records anything for t tokens with such scratch memory.
func (o *Linear) Sums(t int, scratch tensor.Tensor) bool {
	return o != nil && t > 0 && o.planWith(t, scratch).splits > 1
}

// recordProducts records the launches that multiply, and returns the plan; a zero one without
// tokens.
func (o *Linear) recordProducts(rec *vk.Recorder, op string, a LinearArgs) (p linearPlan, err error) {
	if err := o.check(op, a); err != nil {
		return p, err
	}
	t := a.Out.Shape[0]
	if t == 0 {
		return p, nil
	}
	p = o.planWith(t, a.Scratch)
	if err := o.checkGrid(op, p); err != nil {
		return p, err
	}
	kernel, err := p.kernel.Kernel()
	if err != nil {
		return p, err
	}
	push := projLinearPush{
		XAddr: a.X.View().Address(), WAddr: a.W.Data.View().Address(), YAddr: a.Out.View().Address(),
		Tokens: uint32(t), Groups: uint32(o.cfg.Groups), N: uint32(o.cfg.N), K: uint32(o.cfg.K),
		YStride: uint32(a.Out.Len() / t), YColumn: uint32(a.OutColumn), YF32: opkit.Bit(0, o.cfg.Out == tensor.F32),
		XScalePitch: uint32(opkit.DimOrZero(a.XScale, 2)), Splits: uint32(p.splits), SplitSteps: uint32(p.splitSteps),
	}
	bind := []vk.View{opkit.ViewOrDummy(o.dev, a.W.Scale), opkit.ViewOrDummy(o.dev, a.W.RowScale), opkit.ViewOrDummy(o.dev, a.XScale)}
	launch := func(grid [3]uint32, y opkit.Target) error {
		return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{Kernel: kernel, Groups: grid, Push: vk.Bytes(&push), Bind: bind,
			Products: o.products(t)},
			append(linearSources(a), y)...)
	}
	out := opkit.Target{Name: "Out", T: a.Out, Access: vk.Write, Align: 8}
	if p.norms {
		return p, o.recordNorm(rec, op, a, kernel, p.grid, push, bind, append(linearSources(a), out))
	}
	if p.splits < 2 {
		return p, launch(p.grid, out)
	}
	if p.whole > 0 {
		parts := push
		push.Splits, push.SplitSteps = 1, uint32(opkit.CeilDiv(o.cfg.K, p.step))
		if err := launch([3]uint32{p.grid[0], uint32(p.whole / p.rows), 1}, out); err != nil {
			return p, err
		}
		push = parts
	}
	// Scratch has only the rows that are in parts: y_column takes back, modulo 2^32, what first_row
	// adds.
	scratch := opkit.Target{Name: "Scratch", T: o.parts(a, p), Access: vk.Write, Align: 16}
	push.FirstRow = uint32(p.whole)
	push.YAddr, push.YStride, push.YColumn, push.YF32 = scratch.T.View().Address(), uint32(scratch.T.Shape[2]), -push.FirstRow, 1
	return p, launch(p.grid, scratch)
}

// parts are the sums over parts of K in scratch memory.
func (o *Linear) parts(a LinearArgs, p linearPlan) tensor.Tensor {
	s := a.Scratch
	s.Shape = []int{p.splits, a.Out.Shape[0], o.cfg.N*o.cfg.Groups - p.whole}
	return s
}

func (o *Linear) recordSum(rec *vk.Recorder, op string, a LinearArgs, p linearPlan) error {
	kernel, err := o.sum.Kernel()
	if err != nil {
		return err
	}
	parts := o.parts(a, p)
	t, columns := a.Out.Shape[0], parts.Shape[2]
	push := projLinearSumPush{
		Tokens: uint32(t), Columns: uint32(columns), Splits: uint32(p.splits),
		YStride: uint32(a.Out.Len() / t), YColumn: uint32(a.OutColumn + p.whole), YF32: opkit.Bit(0, o.cfg.Out == tensor.F32),
	}
	return pkg.Wrap(op, rec.Dispatch(vk.Dispatch{
		Kernel: kernel, Groups: [3]uint32{uint32(opkit.CeilDiv(columns/4, 128)), uint32(t), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{parts.View(), a.Out.View()},
	}))
}

// linearSources lists what base binds between the scales and the output, and the other variants
// reach by address.
func linearSources(a LinearArgs) []opkit.Target {
	return []opkit.Target{
		{Name: "X", T: a.X, Access: vk.Read, Align: 16},
		{Name: "W.Data", T: a.W.Data, Access: vk.Read, Align: 16},
	}
}
