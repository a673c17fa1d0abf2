package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// BlockDim is the number of numbers of the attention's output that share a scale.
const BlockDim = 128

// HeadBlocks is the number of scales of a head of the attention's output.
const HeadBlocks = cache.D / BlockDim

// ScaleLayout names a layout in memory of the scales of FP8 activations: tokens fastest, padded to
// a multiple of 4, Ta = PaddedTokens(T). All scales are powers of two.
type ScaleLayout int

const (
	// ScaleF32 is a tensor [G, K/128, Ta] f32, for groups of K numbers.
	ScaleF32 ScaleLayout = iota
	// ScalePacked is a tensor [G, K/512, Ta] i32, four UE8M0 bytes each, that of the
	// first block lowest.
	ScalePacked
)

// String is "f32" or "packed".
func (l ScaleLayout) String() string {
	switch l {
	case ScaleF32:
		return "f32"
	case ScalePacked:
		return "packed"
	}
	return fmt.Sprintf("ScaleLayout(%d)", int(l))
}

// PaddedTokens is tokens rounded up to a multiple of 4: Ta of the shapes of scales.
func PaddedTokens(tokens int) int { return opkit.RoundUp(tokens, 4) }

// InverseRopeQuantConfig says what an InverseRopeQuant is built for.
type InverseRopeQuantConfig struct {
	Groups   int         // G of the output projection
	Heads    int         // P of a group
	Scales   ScaleLayout // of the scales that are written
	MaxBytes uint64      // size of the largest O, for variant base; 0: whatever a descriptor of the device can hold
	Variant  string      // a build, as vkmla info lists them; "" picks the best

	// Subgroup is the size of subgroups inside which invocations pass numbers on; -1 stands for
	// shared memory, 0 for what suits the device. Results do not depend on it.
	Subgroup int
}

// InverseRopeQuantArgs are the tensors of one InverseRopeQuant.
type InverseRopeQuantArgs struct {
	O         tensor.Tensor // [T, at least G*P, 512] bf16; heads beyond G*P are not read
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
	Codes     tensor.Tensor // [G, T, P*512] u8 E4M3, written
	Scales    tensor.Tensor // [G, P*4, Ta] f32 or [G, P, Ta] i32, written; 0 for tokens T to Ta-1
}

// InverseRopeQuant turns the last 64 numbers of the attention's output back as
// InverseRope does, without rounding them, and quantises every 128 numbers x of a head
// to E4M3 under a power of two, group by group, for an output projection with FP8
// activations:
//
//	scale = 2^ceil(log2(max(max|x|, 1e-10)/448)),  code = e4m3(x/scale)
//
// O is left as it is.
//
// The definition is InverseRopeQuantRef. Results are equal byte for byte but for the
// sign of a zero code whose number is a sum of two products below 2^-126, which a device
// may flush.
//
// Source: vLLM fused_inv_rope_fp8_quant
// (vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py).
type InverseRopeQuant struct {
	dev *vk.Device
	cfg InverseRopeQuantConfig
	built
	k *vk.Kernel
}

// projInverseRopeQuantPush is the push block of proj_inverse_rope_quant.comp.
type projInverseRopeQuantPush struct {
	PositionsAddr, TableAddr uint64
	ScalesAddr               uint64
	OAddr, CodesAddr         uint64
	Heads, Width             uint32
	Tokens, Padded           uint32
	TableRows                uint32
	_                        uint32
}

// quantHeads is the number of heads that a workgroup takes.
const quantHeads = 2

// maxHeads is the largest number of heads; no model has a fraction of it.
const maxHeads = 1 << 16

// NewInverseRopeQuant chooses the variant and builds its kernel. The device owns the
// kernel; there is nothing to close.
//
// Errors: vk.ErrArgument for groups, heads, a layout or a variant that do not exist or
// cannot hold MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func NewInverseRopeQuant(dev *vk.Device, cfg InverseRopeQuantConfig) (*InverseRopeQuant, error) {
	const op = "inverse rope quant"
	if err := opkit.FirstError(
		pkg.Range(op, "Groups", cfg.Groups, 1, maxHeads),
		pkg.Range(op, "Heads", cfg.Heads, 1, maxHeads/max(cfg.Groups, 1)),
	); err != nil {
		return nil, err
	}
	if cfg.Scales != ScaleF32 && cfg.Scales != ScalePacked {
		return nil, pkg.Wrong(op, "Scales", cfg.Scales, "ScaleF32 or ScalePacked")
	}
	variant, err := pkg.Choose(dev, op, opkit.Builds("proj_inverse_rope_quant"), cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, withLanes(dev, opkit.Spec{
		Stem: "proj_inverse_rope_quant", Variant: variant,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Write, vk.Read, vk.Write},
		Push:     projInverseRopeQuantPush{}, Constants: opkit.Constants(cfg.Heads, int(cfg.Scales)),
	}, cfg.Subgroup))
	if err != nil {
		return nil, err
	}
	return &InverseRopeQuant{dev: dev, cfg: cfg, built: built(variant), k: k}, nil
}

// Record checks the arguments and records the launch; no tokens are no error and no
// launch. Positions are read when the commands run. Errors: vk.ErrArgument, with nothing
// recorded; those of vk.Recorder.Dispatch.
func (o *InverseRopeQuant) Record(rec *vk.Recorder, a InverseRopeQuantArgs) error {
	const op = "inverse rope quant"
	t, heads := opkit.DimOrZero(a.O, 0), o.cfg.Groups*o.cfg.Heads
	padded := PaddedTokens(t)
	scales, perHead := tensor.F32, HeadBlocks
	if o.cfg.Scales == ScalePacked {
		scales, perHead = tensor.I32, 1
	}
	targets := []opkit.Target{
		{Name: "Positions", T: a.Positions, Access: vk.Read, Align: 4}, {Name: "Table", T: a.Table, Access: vk.Read, Align: 16},
		{Name: "Scales", T: a.Scales, Access: vk.Write, Align: 4},
		{Name: "O", T: a.O, Access: vk.Read, Align: 16}, {Name: "Codes", T: a.Codes, Access: vk.Write, Align: 16},
	}
	if err := opkit.FirstError(
		rows(op, "O", a.O),
		pkg.Range(op, "O heads", opkit.DimOrZero(a.O, 1), heads, maxHeads),
		pkg.Check(op, "Positions", a.Positions, tensor.I32, t),
		table(op, a.Table),
		pkg.CheckRows(op, "Codes", a.Codes, tensor.U8, o.cfg.Groups, t, o.cfg.Heads*cache.D),
		pkg.Check(op, "Scales", a.Scales, scales, o.cfg.Groups, o.cfg.Heads*perHead, padded),
		pkg.Reach(o.dev, op, o.Variant(), targets...),
	); err != nil {
		return err
	}
	groups, err := grid(o.dev, op, "O", padded, heads, opkit.CeilDiv(heads, quantHeads))
	if err != nil || t == 0 {
		return err
	}
	push := projInverseRopeQuantPush{
		PositionsAddr: a.Positions.View().Address(), TableAddr: a.Table.View().Address(), ScalesAddr: a.Scales.View().Address(),
		OAddr: a.O.View().Address(), CodesAddr: a.Codes.View().Address(), Heads: uint32(heads), Width: uint32(a.O.Shape[1]),
		Tokens: uint32(t), Padded: uint32(padded), TableRows: uint32(a.Table.Shape[0]),
	}
	return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{Kernel: o.k, Groups: groups, Push: vk.Bytes(&push)}, targets...)
}
