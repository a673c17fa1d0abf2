package indexer

import (
	"cmp"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// DefaultSoftmaxScale is the scale of a query head's dot product, 128^-0.5.
const DefaultSoftmaxScale float32 = 0.08838834764831845

// DefaultHeadScale is the scale of a sum over heads, heads^-0.5 rounded to f32.
func DefaultHeadScale(heads int) float32 { return float32(1 / math.Sqrt(float64(heads))) }

// QueryQuantConfig says what a QueryQuant is built for.
type QueryQuantConfig struct {
	Format       cache.IndexKeyFormat // that of the keys which the queries are for
	TableBF16    bool                 // the table of cosines and sines is bf16, not f32
	Hadamard     bool                 // mix the 128 numbers before quantising; then the keys have to be mixed too
	SoftmaxScale float32              // 0: DefaultSoftmaxScale
	HeadScale    float32              // 0: DefaultHeadScale of the number of heads
	Variant      string               // a build, as vkmla info lists them; "" picks the best
}

// QueryQuantArgs are the tensors of one QueryQuant.
type QueryQuantArgs struct {
	Q          tensor.Tensor // [T, H, 128] bf16
	Positions  tensor.Tensor // [T] i32; one outside the table counts as its nearest row
	Weights    tensor.Tensor // [T, H] bf16
	Table      tensor.Tensor // [rows, 64] f32, or bf16 as configured: a position's 32 cosines, then its sines
	Codes      tensor.Tensor // [T, H, 128] u8 E4M3, or [T, H, 64] u8 with two E2M1 codes a byte, the even one low; written
	Scales     tensor.Tensor // [T, H, 4] u8, a UE8M0 byte for 32 numbers each, written; absent for FP8
	WeightsOut tensor.Tensor // [T, H] f32, written
}

// QueryQuant turns the last 64 numbers of every query head by the angles of its
// token's position, rounds to bf16, quantises as the keys are, and scales the heads'
// weights: for FP8 with the scale of the head's 128 numbers in them, which is
// nowhere else, for MXFP4 without.
//
// The definition is QueryQuantRef; results are equal bit for bit.
//
// Source: vLLM fused_indexer_q_rope_quant (deepseek_v4 common/ops/fused_indexer_q.py).
// The Hadamard option is from DeepSeek's inference/model.py (rotate_activation).
type QueryQuant struct {
	dev *vk.Device
	cfg QueryQuantConfig
	built
	k *vk.Kernel
}

// idxQueryQuantPush is the push block of idx_query_quant.comp.
type idxQueryQuantPush struct {
	QAddr, PositionsAddr    uint64
	WeightsAddr, TableAddr  uint64
	CodesAddr, ScalesAddr   uint64
	FoldedAddr              uint64
	Heads, TableRows        uint32
	SoftmaxScale, HeadScale float32
}

// queryHeads is the number of heads that a workgroup takes.
const queryHeads = 8

// NewQueryQuant builds the kernel. The device owns it; there is nothing to close.
//
// Errors: vk.ErrArgument for a format or variant that does not exist, or a scale
// that is negative or not finite; those of vk.Device.Kernel.
func NewQueryQuant(dev *vk.Device, cfg QueryQuantConfig) (*QueryQuant, error) {
	const op = "query quant"
	if err := checkFormat(op, cfg.Format); err != nil {
		return nil, err
	}
	if err := opkit.FirstError(checkScale(op, "SoftmaxScale", cfg.SoftmaxScale), checkScale(op, "HeadScale", cfg.HeadScale)); err != nil {
		return nil, err
	}
	cfg.SoftmaxScale = cmp.Or(cfg.SoftmaxScale, DefaultSoftmaxScale)
	variant, k, err := pkg.Build(dev, op, cfg.Variant, 0, opkit.Spec{
		Stem:     "idx_query_quant",
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write, vk.Write},
		Push:     idxQueryQuantPush{},
		Constants: []uint32{
			opkit.Bit(0, cfg.Format == cache.IndexKeyMXFP4), opkit.Bit(0, cfg.TableBF16), opkit.Bit(0, cfg.Hadamard),
		},
	})
	if err != nil {
		return nil, err
	}
	return &QueryQuant{dev: dev, cfg: cfg, built: variant, k: k}, nil
}

// Record checks the arguments and records the launch. Errors: vk.ErrArgument, with
// nothing recorded; those of vk.Recorder.Dispatch.
func (o *QueryQuant) Record(rec *vk.Recorder, a QueryQuantArgs) error {
	const op = "query quant"
	t, h := opkit.DimOrZero(a.Q, 0), opkit.DimOrZero(a.Q, 1)
	table, mxfp4 := tensor.F32, o.cfg.Format == cache.IndexKeyMXFP4
	if o.cfg.TableBF16 {
		table = tensor.BF16
	}
	if err := opkit.FirstError(
		pkg.Check(op, "Q", a.Q, tensor.BF16, -1, -1, cache.IndexDim),
		pkg.Range(op, "Q heads", h, 1, MaxHeads),
		pkg.Check(op, "Positions", a.Positions, tensor.I32, t),
		pkg.Check(op, "Weights", a.Weights, tensor.BF16, t, h),
		pkg.Check(op, "Table", a.Table, table, -1, cache.RopeDim),
		pkg.Check(op, "Codes", a.Codes, tensor.U8, t, h, o.cfg.Format.RowBytes()),
		pkg.Check(op, "WeightsOut", a.WeightsOut, tensor.F32, t, h),
	); err != nil {
		return err
	}
	if mxfp4 {
		if err := pkg.Check(op, "Scales", a.Scales, tensor.U8, t, h, Blocks); err != nil {
			return err
		}
	} else if !a.Scales.IsZero() {
		return pkg.Wrong(op, "Scales", a.Scales, "absent: an FP8 scale goes into the weight")
	}
	if err := pkg.Grid(o.dev, op, "Q", t, 1, 1); err != nil {
		return err
	}
	if a.Table.Shape[0] < 1 {
		return pkg.Wrong(op, "Table", a.Table, "at least one row")
	}
	push := idxQueryQuantPush{Heads: uint32(h), TableRows: uint32(a.Table.Shape[0]), SoftmaxScale: o.cfg.SoftmaxScale,
		HeadScale: cmp.Or(o.cfg.HeadScale, DefaultHeadScale(h))}
	targets := []opkit.Target{
		{Name: "Q", T: a.Q, Access: vk.Read, Align: 16, At: &push.QAddr},
		{Name: "Positions", T: a.Positions, Access: vk.Read, Align: 4, At: &push.PositionsAddr},
		{Name: "Weights", T: a.Weights, Access: vk.Read, Align: 4, At: &push.WeightsAddr},
		{Name: "Table", T: a.Table, Access: vk.Read, Align: 16, At: &push.TableAddr},
		{Name: "Codes", T: a.Codes, Access: vk.Write, Align: 8, At: &push.CodesAddr},
		{Name: "Scales", T: opkit.Or(a.Scales, a.Codes), Access: vk.Write, Align: 4, At: &push.ScalesAddr}, // else not written
		{Name: "WeightsOut", T: a.WeightsOut, Access: vk.Write, Align: 4, At: &push.FoldedAddr},
	}
	if err := pkg.Reach(o.dev, op, o.Variant(), targets...); err != nil || t == 0 {
		return err
	}
	return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{
		Kernel: o.k, Groups: [3]uint32{uint32(opkit.CeilDiv(h, queryHeads)), uint32(t), 1}, Push: vk.Bytes(&push),
	}, targets...)
}

func checkFormat(op string, f cache.IndexKeyFormat) error {
	if f != cache.IndexKeyFP8 && f != cache.IndexKeyMXFP4 {
		return pkg.Wrong(op, "Format", f, "IndexKeyFP8 or IndexKeyMXFP4")
	}
	return nil
}

func checkScale(op, arg string, v float32) error {
	if f := float64(v); f < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return pkg.Wrong(op, arg, v, "a positive number, or 0 for the default")
	}
	return nil
}
