package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// maxRank is the largest width of the query's bottleneck.
const maxRank = 8192

// QKVNormConfig says what a QKVNorm is built for.
type QKVNormConfig struct {
	Rank    int     // width of the query's bottleneck, a multiple of 8 up to MaxRank
	Eps     float32 // 0: defaultEps
	Variant string  // a build, as vkmla info lists them; "" picks the best

	// Subgroup is the size of subgroups inside which invocations pass numbers on; -1 stands for
	// shared memory, 0 for what suits the device. Results do not depend on it.
	Subgroup int
}

// QKVNormArgs are the tensors of one QKVNorm. QR and KV may be the same tensor, as one
// linear layer with stacked weights gives it: then QRAt is 0 and KVAt is the rank.
type QKVNormArgs struct {
	QR   tensor.Tensor // [T, any] bf16, a row's query part in Rank columns from QRAt
	QRAt int
	KV   tensor.Tensor // [T, any] bf16, a row's K part in 512 columns from KVAt
	KVAt int

	QRWeight tensor.Tensor // [Rank] bf16 or f32
	KVWeight tensor.Tensor // [512] bf16 or f32
	QROut    tensor.Tensor // [T, Rank] bf16, written
	KVOut    tensor.Tensor // [T, 512] bf16, written
}

// QKVNorm is two RMS norms at once, of the query's bottleneck and of the K row:
//
//	y_i = bf16((x_i * r) * w_i),  r = (sum_i x_i^2 / n + eps)^-0.5
//
// in binary32 with one rounding at the end. A row whose squares overflow becomes 0,
// one with a NaN 0 and, in that place, NaN. Widths and first columns are
// multiples of 8.
//
// The definition is QKVNormRef; results are at most one bf16 step from it and the same
// on every device, but for numbers below 2^-126, which a device may take for zeros.
//
// Source: vLLM fused_q_kv_rmsnorm (vllm/models/deepseek_v4/common/ops/fused_qk_rmsnorm.py).
type QKVNorm struct {
	dev *vk.Device
	cfg QKVNormConfig
	built
	k *vk.Kernel
}

// projQkvNormPush is the push block of proj_qkv_norm.comp.
type projQkvNormPush struct {
	QrAddr, KvAddr             uint64
	QrWeightAddr, KvWeightAddr uint64
	QrOutAddr, KvOutAddr       uint64
	QrStride, QrAt             uint32
	KvStride, KvAt             uint32
	QrF32, KvF32               uint32
	QrInverse, Eps             float32
}

// NewQKVNorm builds the kernel. The device owns it; there is nothing to close.
//
// Errors: vk.ErrArgument for a rank, epsilon or variant that does not exist; those of
// vk.Device.Kernel.
func NewQKVNorm(dev *vk.Device, cfg QKVNormConfig) (*QKVNorm, error) {
	const op = "qkv norm"
	if cfg.Rank < 8 || cfg.Rank > maxRank || cfg.Rank%8 != 0 {
		return nil, pkg.Wrong(op, "Rank", cfg.Rank, "a multiple of 8, 8 to %d", maxRank)
	}
	eps, err := epsilon(op, cfg.Eps)
	if err != nil {
		return nil, err
	}
	cfg.Eps = eps
	variant, err := pkg.Choose(dev, op, opkit.Builds("proj_qkv_norm"), cfg.Variant, 0)
	if err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, withLanes(dev, opkit.Spec{
		Stem: "proj_qkv_norm", Variant: variant,
		Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write},
		Push:     projQkvNormPush{}, Constants: opkit.Constants(cfg.Rank),
	}, cfg.Subgroup))
	if err != nil {
		return nil, err
	}
	return &QKVNorm{dev: dev, cfg: cfg, built: built(variant), k: k}, nil
}

// Record checks the arguments and records the launch; no tokens are no error and no
// launch. Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *QKVNorm) Record(rec *vk.Recorder, a QKVNormArgs) error {
	const op = "qkv norm"
	t := opkit.DimOrZero(a.QR, 0)
	if err := opkit.FirstError(
		columns(op, "QR", a.QR, t, a.QRAt, o.cfg.Rank),
		columns(op, "KV", a.KV, t, a.KVAt, cache.D),
		vector(op, "QRWeight", a.QRWeight, o.cfg.Rank),
		vector(op, "KVWeight", a.KVWeight, cache.D),
		pkg.Check(op, "QROut", a.QROut, tensor.BF16, t, o.cfg.Rank),
		pkg.Check(op, "KVOut", a.KVOut, tensor.BF16, t, cache.D),
	); err != nil {
		return err
	}
	if err := pkg.Grid(o.dev, op, "QR", t, 1, 0); err != nil || t == 0 {
		return err
	}
	push := projQkvNormPush{
		QrStride: uint32(a.QR.Shape[1] / 8), QrAt: uint32(a.QRAt / 8), KvStride: uint32(a.KV.Shape[1] / 8), KvAt: uint32(a.KVAt / 8),
		QrF32: opkit.Bit(0, a.QRWeight.DType == tensor.F32), KvF32: opkit.Bit(0, a.KVWeight.DType == tensor.F32),
		QrInverse: 1 / float32(o.cfg.Rank), Eps: o.cfg.Eps,
	}
	targets := []opkit.Target{
		{Name: "QR", T: a.QR, Access: vk.Read, Align: 16, At: &push.QrAddr},
		{Name: "KV", T: a.KV, Access: vk.Read, Align: 16, At: &push.KvAddr},
		{Name: "QRWeight", T: a.QRWeight, Access: vk.Read, Align: 16, At: &push.QrWeightAddr},
		{Name: "KVWeight", T: a.KVWeight, Access: vk.Read, Align: 16, At: &push.KvWeightAddr},
		{Name: "QROut", T: a.QROut, Access: vk.Write, Align: 16, At: &push.QrOutAddr},
		{Name: "KVOut", T: a.KVOut, Access: vk.Write, Align: 16, At: &push.KvOutAddr},
	}
	if err := pkg.Reach(o.dev, op, o.Variant(), targets...); err != nil {
		return err
	}
	d := vk.Dispatch{Kernel: o.k, Groups: [3]uint32{uint32(t), 2, 1}, Push: vk.Bytes(&push)}
	return pkg.Dispatch(rec, op, o.Variant(), d, targets...)
}

// columns checks a tensor of rows whose n columns from column `at` on are used.
func columns(op, arg string, x tensor.Tensor, tokens, at, n int) error {
	if err := pkg.Check(op, arg, x, tensor.BF16, tokens, -1); err != nil {
		return err
	}
	if width := x.Shape[1]; width%8 != 0 || at < 0 || at%8 != 0 || at > width-n {
		return pkg.Wrong(op, arg, fmt.Sprintf("columns from %d of %v", at, x), "%d columns, the first and the width multiples of 8", n)
	}
	return nil
}
