package projection

import (
	"math"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LinearVariants are the variants of Linear, best first. bf16 holds every activation
// and every E4M3 weight with a power-of-two scale, so cmb comes before cm.
var LinearVariants = opkit.Ladder("proj_linear", VariantCMB, VariantCM, VariantBase, VariantDA)

// LinearConfig says what a Linear is built for.
type LinearConfig struct {
	N, K        int // outputs and inputs, of a group: N a multiple of 8, K of 8 (bf16 weights), 16 (FP8) or 32 (NVFP4)
	Groups      int // G, which have inputs and outputs of their own; 0 counts as 1
	Weights     WeightFormat
	Activations ActivationFormat // FP8 needs FP8 weights and K a multiple of 128, packed of 512
	Out         tensor.DType     // tensor.BF16 or tensor.F32
	MaxTokens   int              // the most tokens of a Record; 0: any number. Fewer need fewer kernels
	Variant     string           // "" picks the best

	// Norm is the type of weights, tensor.BF16 or tensor.F32, of an RMS norm that the first
	// NormColumns outputs go through, as the query's bottleneck goes through QKVNorm: to the
	// same bits, by the launch that makes them, where Linear.Norms says so. 0 stands for no
	// norm. Groups is 1 and Out bf16; NormColumns is a multiple of 8.
	Norm        tensor.DType
	NormColumns int
	NormEps     float32 // 0: DefaultEps

	// Workgroups is how many workgroups fill the device; 0 estimates it from the
	// device's type. The order of sums may depend on it.
	Workgroups int
}

// LinearWeights are the weights of a Linear, rows = G*N of them, those of group g
// from row g*N. Weights of several tensors may lie below each other, where FP8 wants
// 128 rows, or a multiple, of all but the last.
type LinearWeights struct {
	Data     tensor.Tensor // [rows, K] bf16; [rows, K] u8 E4M3; [rows, K/2] u8 with two E2M1 codes a byte, the even one low
	Scale    tensor.Tensor // FP8: [ceil(rows/128), ceil(K/128)] f32 or u8 UE8M0; NVFP4: [rows, K/16] u8 E4M3; bf16: absent
	RowScale tensor.Tensor // NVFP4: [rows] f32, the tensor's one scale (weight_scale_2) for each of its rows; else absent
}

// LinearArgs are the tensors of one Linear.
type LinearArgs struct {
	X         tensor.Tensor // bf16: [T, ..], G*K numbers a token, as [T, K], [T, G, K] or [T, H, 512]; FP8: [G, T, K] u8
	XScale    tensor.Tensor // FP8: [G, K/128, Ta] f32, packed: [G, K/512, Ta] i32 or u32, of which byte c is the UE8M0 scale of block 4i+c; Ta >= T
	W         LinearWeights
	Out       tensor.Tensor // [T, ..] of LinearConfig.Out, a multiple of 8 numbers a token, of which G*N are written
	OutColumn int           // where these begin, a multiple of 8: outputs of several layers can stand side by side

	// With LinearConfig.Norm only, all three or none. Out has all outputs as they are
	// without.
	Norm    tensor.Tensor // [NormColumns], weights of the norm of the columns from OutColumn on
	Normed  tensor.Tensor // [T, NormColumns] bf16, written
	Arrived tensor.Tensor // [T] u32 or i32, zeros before the first Record and after each one has run; for one that runs at a time

	// Scratch holds sums over parts of K, [ScratchLen(T)] f32 (or more) that nothing
	// else uses meanwhile. It may be absent: then few outputs of many inputs are
	// computed by fewer workgroups than the device has room for.
	Scratch tensor.Tensor
}

// Linear multiplies by weights as they are stored: for token t, group g and
// 0 <= n < N,
//
//	out[t][g*N + n] = sum_k x[t][g][k] * w[g*N + n][k]
//
// with f32 sums and one rounding of the result. Weights and E4M3 activations are
// codes times their scales; they are decoded on the chip and never written back.
// With one group this is a linear layer (wq_a over wkv, wq_b, wo_b, the indexer's and
// the compressors' projections), with several the einsum of wo_a, "bhr,hdr->bhd".
//
// The definition is LinearRef. A NaN code of E4M3, which no finite number is
// quantised to, makes the sums that it is part of any number or NaN; tokens do not
// touch each other. Scales of any f32 are taken as they are: powers of two multiply the
// codes, which is exact, and the rest the sums. Variant cm multiplies f16 numbers: it
// takes activations and bf16 weights beyond 65504 as that, and those below 2^-14 in
// steps of 2^-24. All other products are exact.
//
// The kernel is chosen by T. A device gives the same bits for a token on every run
// with the same T; with another T sums can have another order.
//
//	base, da  T <= 4: a kernel that reads the weights once for 1, 2 or 4 tokens; T <= 48: one that shares x in passes of 8 or
//	          16; else tiles of up to 128 tokens x 128 rows. With few rows the first serves up to 16 tokens and the second up
//	          to 64. Where rows leave much of the device idle, K is cut into parts
//	cm, cmb   T <= 2: the former; T <= 16: matrices of 16 rows with operands from memory to registers; T <= 128: 128 rows
//	          with weights from memory to registers and x through shared memory; else in tiles of 64 or 128 tokens. With few
//	          rows the second serves up to 32 tokens, with very few up to 128. Where the last tiles would leave most of the
//	          device idle, K is cut into parts for them
//
// Where fragments do not lie in registers as the second and third need it, which a
// kernel of one workgroup finds out when the first Linear is made on a device, T <= 4
// take the first (T <= 8 where N*G/64 workgroups do not fill the device), more the
// last.
//
// Sources: DeepSeek-V4 inference/model.py (linear layers, einsum of wo_a), vLLM
// rocm_aiter_mla_sparse.py (bf16 einsum over dequantised weights), DeepGEMM
// csrc/apis/einsum.hpp (FP8 einsum and its scale layouts).
type Linear struct {
	*linearLayer
	kinds []kernelKind // asked from the first
	sum   *vk.Kernel   // adds up parts of K
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

// projLinearNormPush is the push block of proj_linear_tokens1to8.comp with LINEAR_NORM, and of proj_linear_tokens8to32.comp.
type projLinearNormPush struct {
	XAddr, WAddr, YAddr    uint64
	Tokens, Groups, N, K   uint32
	YStride, YColumn, YF32 uint32
	XScalePitch            uint32
	Splits, SplitSteps     uint32
	FirstRow               uint32
	_                      uint32

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
	return newLinear(dev, cfg, &tuning.Of(dev).Linear, linearKinds)
}

// newLinear is NewLinear with the numbers of a profile and the kinds of kernels for a variant.
func newLinear(dev *vk.Device, cfg LinearConfig, tune *tuning.Linear, kindsFor func(variant string) []kernelKind) (*Linear, error) {
	const op = "linear"
	cfg.Groups = max(cfg.Groups, 1)
	if err := cfg.check(op); err != nil {
		return nil, err
	}
	if cfg.Workgroups == 0 {
		cfg.Workgroups = opkit.Workgroups(dev.Adapter(), tune.PerUnit)
	}
	rows := cfg.N * cfg.Groups
	largest := max(cfg.Weights.Bytes(rows, cfg.K), cfg.MaxTokens*cfg.Groups*cfg.K*2, cfg.MaxTokens*rows*cfg.Out.Size())
	l := &linearLayer{dev: dev, caps: dev.Caps(), cfg: cfg, format: cfg.Weights.is(), tune: tune}
	l.lanes = l.findLanes
	o := &Linear{linearLayer: l}
	var err error
	l.variant, err = pkg.ChooseFit(dev.Adapter(), op, LinearVariants, cfg.Variant, uint64(largest), func(v string) error {
		o.kinds = kindsFor(v)
		if tiles, ok := o.kinds[len(o.kinds)-1].(*matrixTiles); ok {
			return tiles.find(tune, dev.Caps(), v)
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

// build makes the kernels that up to MaxTokens tokens can need.
func (o *Linear) build() (err error) {
	from := 1
	for _, k := range o.kinds {
		if most := o.cfg.MaxTokens; most > 0 && most < from {
			break
		}
		if err := k.build(from); err != nil {
			return err
		}
		from = k.reach() + 1
	}
	o.sum, err = pkg.Kernel(o.dev, opkit.Spec{
		Stem: "proj_linear_sum", Variant: VariantBase, Bindings: []vk.Access{vk.Read, vk.Write},
		PushSize: int(unsafe.Sizeof(projLinearSumPush{})),
	})
	return err
}

// Variant is the name of the variant that was chosen.
func (o *Linear) Variant() string { return o.variant }

// ScratchLen is how many f32 of scratch memory a Record of T tokens makes use of; 0
// for none, or more tokens than MaxTokens.
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

// Record checks the arguments and records the launches: one, or two with a sum of
// parts in scratch memory, or three where only the last rows are in parts. T is the first dimension of Out and may be 0.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Linear) Record(rec *vk.Recorder, a LinearArgs) error {
	const op = "linear"
	if err := o.check(op, a); err != nil {
		return err
	}
	t := a.Out.Shape[0]
	if t == 0 {
		return nil
	}
	p := o.plan(t, a.Scratch.Len())
	if a.Scratch.IsZero() {
		p = o.plan(t, 0)
	}
	if err := o.checkGrid(op, p); err != nil {
		return err
	}
	push := projLinearPush{
		XAddr: a.X.View().Address(), WAddr: a.W.Data.View().Address(), YAddr: a.Out.View().Address(),
		Tokens: uint32(t), Groups: uint32(o.cfg.Groups), N: uint32(o.cfg.N), K: uint32(o.cfg.K),
		YStride: uint32(a.Out.Len() / t), YColumn: uint32(a.OutColumn), YF32: opkit.Bit(0, o.cfg.Out == tensor.F32),
		XScalePitch: uint32(opkit.Dim(a.XScale, 2)), Splits: uint32(p.splits), SplitSteps: uint32(p.splitSteps),
	}
	bind := []vk.View{opkit.Present(o.dev, a.W.Scale), opkit.Present(o.dev, a.W.RowScale), opkit.Present(o.dev, a.XScale)}
	launch := func(grid [3]uint32, y opkit.Target) error {
		return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{Kernel: p.kernel, Groups: grid, Push: vk.Bytes(&push), Bind: bind},
			append(linearSources(a), y)...)
	}
	out := opkit.Target{Name: "Out", T: a.Out, Access: vk.Write, Align: 8}
	if p.norms {
		return o.recordNorm(rec, op, a, p, push, bind, append(linearSources(a), out))
	}
	if p.splits < 2 {
		return launch(p.grid, out)
	}
	if p.whole > 0 {
		parts := push
		push.Splits, push.SplitSteps = 1, uint32(opkit.CeilDiv(o.cfg.K, p.step))
		if err := launch([3]uint32{p.grid[0], uint32(p.whole / p.rows), 1}, out); err != nil {
			return err
		}
		push = parts
	}
	// Rows and columns are counted from the first one that is in parts: y_column takes back, modulo 2^32, what first_row adds.
	scratch := opkit.Target{Name: "Scratch", T: o.parts(a, p), Access: vk.Write, Align: 16}
	push.FirstRow = uint32(p.whole)
	push.YAddr, push.YStride, push.YColumn, push.YF32 = scratch.T.View().Address(), uint32(scratch.T.Shape[2]), -push.FirstRow, 1
	if err := launch(p.grid, scratch); err != nil {
		return err
	}
	return o.recordSum(rec, op, a, p)
}

// parts are the sums over parts of K in scratch memory.
func (o *Linear) parts(a LinearArgs, p linearPlan) tensor.Tensor {
	s := a.Scratch
	s.Shape = []int{p.splits, a.Out.Shape[0], o.cfg.N*o.cfg.Groups - p.whole}
	return s
}

func (o *Linear) recordSum(rec *vk.Recorder, op string, a LinearArgs, p linearPlan) error {
	parts := o.parts(a, p)
	t, columns := a.Out.Shape[0], parts.Shape[2]
	push := projLinearSumPush{
		Tokens: uint32(t), Columns: uint32(columns), Splits: uint32(p.splits),
		YStride: uint32(a.Out.Len() / t), YColumn: uint32(a.OutColumn + p.whole), YF32: opkit.Bit(0, o.cfg.Out == tensor.F32),
	}
	return pkg.Wrap(op, rec.Dispatch(vk.Dispatch{
		Kernel: o.sum, Groups: [3]uint32{uint32(opkit.CeilDiv(columns/4, 128)), uint32(t), 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{parts.View(), a.Out.View()},
	}))
}

// linearSources are what base binds after the scales and the other variants reach by
// address, before the output.
func linearSources(a LinearArgs) []opkit.Target {
	return []opkit.Target{
		{Name: "X", T: a.X, Access: vk.Read, Align: 16},
		{Name: "W.Data", T: a.W.Data, Access: vk.Read, Align: 16},
	}
}
