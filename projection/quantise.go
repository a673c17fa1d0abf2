package projection

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// QuantiseConfig says what a Quantise is built for.
type QuantiseConfig struct {
	Format   ActivationFormat // any but ActivationBF16
	Groups   int              // G; 0 counts as 1
	K        int              // numbers of a group, a multiple of 128, of 512 (packed) or of 64 (NVFP4)
	MaxBytes uint64           // size of the largest X, for variant base; 0: whatever a descriptor of the device can hold
	Variant  string           // a build, as vkmla info lists them; "" picks the best
}

// QuantiseArgs are the tensors of one Quantise.
type QuantiseArgs struct {
	X      tensor.Tensor // [T, ..] bf16, G*K numbers a token
	Codes  tensor.Tensor // [G, T, K] u8 E4M3; NVFP4: [G, T, K/2] u8 with two E2M1 codes a byte, the even one low; written
	Scales tensor.Tensor // [G, K/128, Ta] f32; packed [G, K/512, Ta] i32, MXFP8 [G, K/128, Ta]: 0 from T on; NVFP4 [G, T, K/16] u8; written

	// InputScale is the input_scale of a checkpoint, from LeastInputScale to 1/LeastInputScale; of
	// NVFP4 only, else 0.
	InputScale float32
}

// Quantise makes activations of 8 or 4 bits for a Linear of the same format, of every token alone.
//
// FP8 is E4M3 with one scale for every 128 numbers, the least power of two under which the largest
// of them is at most 448. The scales lie as those of InverseRopeQuant do, so that the kernels that
// multiply them are the same, and so are the two layouts: numbers and bytes of the same powers.
//
// MXFP8 is E4M3 with such a scale for every 32 numbers. The largest of them counts as at least
// 1e-4, as in DeepSeek-V4.1's act_quant.
//
// NVFP4 is E2M1 with one E4M3 scale for every 16 numbers, relative to InputScale, which therefore
// has to multiply LinearWeights.RowScale. No scale is a power of two here. Codes are those of an
// exact quotient: vLLM's kernel multiplies by approximate reciprocals, and may have the other code
// where a quotient lies within some 2^-22 of the middle of two.
//
// The definition is QuantiseRef. Sources: vLLM per_token_group_quant_fp8 (csrc/quantization/fp8,
// DeepGEMM's UE8M0 scales) and scaled_fp4_quant (csrc/quantization/fp4, tests/kernels/quantization/
// nvfp4_utils.py); TensorRT Model Optimizer for input_scale.
type Quantise struct {
	dev *vk.Device
	cfg QuantiseConfig
	built
	k *vk.Kernel
}

// projQuantisePush is the push block of proj_quantise.comp.
type projQuantisePush struct {
	ScalesAddr, XAddr, CodesAddr uint64
	Tokens, Padded, Groups, K    uint32
	Inverse                      float32
}

const quantiseWorkgroup = 2048 // numbers

// LeastInputScale is the least QuantiseArgs.InputScale, and 1/LeastInputScale the greatest: within,
// nothing that decides a code is beyond f32's normal numbers.
const LeastInputScale = 0x1p-64

func checkQuantise(op string, format ActivationFormat, groups, k int) error {
	is := format.row()
	if is.block == 0 {
		return pkg.Wrong(op, "Format", format, "fp8, fp8-packed, nvfp4 or mxfp8")
	}
	if err := pkg.Range(op, "Groups", groups, 1, math.MaxUint16); err != nil {
		return err
	}
	if k < 1 || k%is.multiple != 0 || k > math.MaxInt32/groups {
		return pkg.Wrong(op, "K", k, "a multiple of %d, for activations of %v", is.multiple, format)
	}
	return nil
}

// checkInputScale keeps 1/scale, and what scales of blocks are times it, in the range of f32.
func checkInputScale(op string, format ActivationFormat, scale float32) error {
	if format != ActivationNVFP4 {
		if scale != 0 {
			return pkg.Wrong(op, "InputScale", scale, "0, for activations of %v", format)
		}
		return nil
	}
	if !(scale >= LeastInputScale && scale <= 1/LeastInputScale) {
		return pkg.Wrong(op, "InputScale", scale, "a number from 2^-64 to 2^64")
	}
	return nil
}

// NewQuantise chooses the variant and builds its kernel. The device owns the kernel; there is
// nothing to close.
//
// Errors: vk.ErrArgument for a format, sizes or a variant that do not exist or cannot hold
// MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func NewQuantise(dev *vk.Device, cfg QuantiseConfig) (*Quantise, error) {
	const op = "quantise"
	cfg.Groups = max(cfg.Groups, 1)
	if err := checkQuantise(op, cfg.Format, cfg.Groups, cfg.K); err != nil {
		return nil, err
	}
	variant, k, err := pkg.Build(dev, op, cfg.Variant, cfg.MaxBytes, opkit.Spec{
		Stem: "proj_quantise", Bindings: []vk.Access{vk.Write, vk.Read, vk.Write},
		Push: projQuantisePush{}, Constants: opkit.Constants(int(cfg.Format)),
	})
	if err != nil {
		return nil, err
	}
	return &Quantise{dev: dev, cfg: cfg, built: variant, k: k}, nil
}

// CodesShape and ScalesShape are the shapes of QuantiseArgs.Codes and Scales for T tokens.
func (o *Quantise) CodesShape(T int) []int {
	return []int{o.cfg.Groups, T, o.cfg.K * 16 / o.cfg.Format.row().quad}
}

// ScalesShape is with CodesShape.
func (o *Quantise) ScalesShape(T int) []int {
	is := o.cfg.Format.row()
	if is.rows {
		return []int{o.cfg.Groups, T, o.cfg.K / is.block}
	}
	return []int{o.cfg.Groups, o.cfg.K / is.block, PaddedTokens(T)}
}

// ScalesType is the type of QuantiseArgs.Scales.
func (o *Quantise) ScalesType() tensor.DType { return o.cfg.Format.row().scales[0] }

// Record checks the arguments and records the launch; no tokens are no error and no launch. T is
// the first dimension of X. Errors: vk.ErrArgument, with nothing recorded; those of
// vk.Recorder.Dispatch.
func (o *Quantise) Record(rec *vk.Recorder, a QuantiseArgs) error {
	const op = "quantise"
	t, row := opkit.DimOrZero(a.X, 0), o.cfg.Groups*o.cfg.K
	targets := []opkit.Target{{Name: "Scales", T: a.Scales, Access: vk.Write, Align: 4},
		{Name: "X", T: a.X, Access: vk.Read, Align: 16}, {Name: "Codes", T: a.Codes, Access: vk.Write, Align: 16}}
	if err := opkit.FirstError(
		pkg.Check(op, "X", a.X, tensor.BF16, anyDims(max(2, len(a.X.Shape)))...),
		pkg.Check(op, "Codes", a.Codes, tensor.U8, o.CodesShape(t)...),
		pkg.Check(op, "Scales", a.Scales, o.ScalesType(), o.ScalesShape(t)...),
		checkInputScale(op, o.cfg.Format, a.InputScale),
		pkg.Reach(o.dev, op, o.Variant(), targets...),
	); err != nil {
		return err
	}
	if t == 0 {
		return nil
	}
	if perToken(a.X) != row || uint64(t)*uint64(row)/8 > math.MaxUint32 {
		return pkg.Wrong(op, "X", a.X, "%d numbers a token, and fewer than 2^35", row)
	}
	padded := t
	if !o.cfg.Format.row().rows {
		padded = PaddedTokens(t)
	}
	groups := [3]uint32{uint32(opkit.CeilDiv(row, quantiseWorkgroup)), uint32(padded), 1}
	if limit := o.dev.Caps().MaxWorkgroupCount; groups[0] > limit[0] || groups[1] > limit[1] {
		return pkg.Wrong(op, "X", fmt.Sprint(groups), "at most %v workgroups on this device", limit)
	}
	push := projQuantisePush{
		ScalesAddr: a.Scales.View().Address(), XAddr: a.X.View().Address(), CodesAddr: a.Codes.View().Address(),
		Tokens: uint32(t), Padded: uint32(padded), Groups: uint32(o.cfg.Groups), K: uint32(o.cfg.K),
	}
	if a.InputScale != 0 {
		push.Inverse = 1 / a.InputScale
	}
	return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{Kernel: o.k, Groups: groups, Push: vk.Bytes(&push)}, targets...)
}
