package projection

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// QInsertConfig says what a QInsert is built for.
type QInsertConfig struct {
	Page     int          // slots per page of the caches it will write
	Record   cache.Record // how these store a slot; 0: cache.RecordV4
	MaxBytes uint64       // size of the largest of them and of Q, for variant base; 0: whatever a descriptor of the device can hold
	Eps      float32      // 0: defaultEps
	Variant  string       // a build, as vkmla info lists them; "" picks the best

	// KVNorm is the type of the weights, tensor.BF16 or tensor.F32, of an RMS norm of the K rows,
	// with the bits of QKVNorm and without its launch. 0: they are normed already.
	KVNorm tensor.DType

	// RotateOnly leaves out the norm of queries: they are turned and rounded, as in DeepSeek-V4.1.
	RotateOnly bool

	// Subgroup is the size of subgroups inside which invocations pass numbers on; -1 stands for
	// shared memory, 0 for what suits the device. Results do not depend on it.
	Subgroup int
}

// QInsertArgs are the tensors of one QInsert.
type QInsertArgs struct {
	Q         tensor.Tensor // [N, H, 512] bf16, read and written; absent: only K rows are stored
	KV        tensor.Tensor // [N, 512 or more] bf16, not rotated: 512 columns from KVAt, both multiples of 8
	KVAt      int
	KVWeight  tensor.Tensor // [512] of QInsertConfig.KVNorm; else absent
	Slots     tensor.Tensor // [T] i64, T <= N; negative ones and those beyond the cache are skipped
	Positions tensor.Tensor // [N] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
	Cache     cache.KVCache // written: all bytes of each slot named, nothing else
}

// QInsert finishes queries and K rows for attention, all in one launch. Every query
// head, also of padding tokens, is divided by its root mean square, without a weight, unless
// QInsertConfig.RotateOnly, and its last 64 numbers are turned by the angles of the token's
// position:
//
//	y = x * (sum_i x_i^2 / 512 + eps)^-0.5,  q = bf16(y with y[448..511] turned)
//
// in binary32 with one rounding. The K row of a token with a slot is turned in its last
// 64 numbers, rounded to bf16 and stored as cache.Insert stores it; KV is not written. With
// QInsertConfig.KVNorm the row is normed before and rounded. No two tokens may name the same slot.
// Without Q only K rows are stored, for an attention that norms queries itself
// (attention.QueryNorm).
//
// The definition is QInsertRef, or with RotateOnly QRotateInsertRef. The cache is equal byte
// for byte, and so are queries with RotateOnly. Without it a query differs by no more than the
// order of a sum explains, and is the same on every device.
//
// Source: vLLM fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert
// (csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu).
type QInsert struct {
	dev *vk.Device
	cfg QInsertConfig
	built
	k *vk.Kernel
}

// projQInsertPush is the push block of proj_q_insert.comp.
type projQInsertPush struct {
	KvAddr, SlotsAddr        uint64
	PositionsAddr, TableAddr uint64
	WeightAddr               uint64
	QAddr, PoolAddr          uint64
	PoolStride, PoolPages    uint32
	Heads, Tokens            uint32
	TableRows                uint32
	Eps                      float32
	KvStride, KvAt           uint32
}

// insertHeads is the number of heads that a workgroup takes.
const insertHeads = 4

// NewQInsert chooses the variant and builds its kernel. The device owns the kernel;
// there is nothing to close.
//
// Errors: vk.ErrArgument for a page size, an epsilon or a variant that does not exist or
// cannot hold MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func NewQInsert(dev *vk.Device, cfg QInsertConfig) (*QInsert, error) {
	const op = "q insert"
	if _, err := cache.NewRecordLayout(cfg.Record, cfg.Page, 0); err != nil {
		return nil, pkg.Wrong(op, "Page", cfg.Page, "a legal page size of %s: %v", cfg.Record, err)
	}
	eps, err := epsilon(op, cfg.Eps)
	if err != nil {
		return nil, err
	}
	cfg.Eps = eps
	norm := 0
	switch cfg.KVNorm {
	case 0:
	case tensor.BF16:
		norm = 1
	case tensor.F32:
		norm = 2
	default:
		return nil, pkg.Wrong(op, "KVNorm", cfg.KVNorm, "bf16, f32 or none")
	}
	variant, err := pkg.Choose(dev, op, opkit.Builds("proj_q_insert"), cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, withLanes(dev, opkit.Spec{
		Stem: "proj_q_insert", Variant: variant,
		Bindings:  []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.ReadWrite, vk.Write},
		Push:      projQInsertPush{},
		Constants: opkit.Constants(cfg.Page, norm, int(cfg.Record), int(opkit.Bit(0, !cfg.RotateOnly))),
	}, cfg.Subgroup))
	if err != nil {
		return nil, err
	}
	return &QInsert{dev: dev, cfg: cfg, built: built(variant), k: k}, nil
}

// Record checks the arguments and records the launch; no rows are no error and no
// launch. Slots and positions are read when the commands run. Errors: vk.ErrArgument,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (o *QInsert) Record(rec *vk.Recorder, a QInsertArgs) error {
	const op = "q insert"
	n, h := opkit.DimOrZero(a.Q, 0), opkit.DimOrZero(a.Q, 1)
	q := a.Q
	if a.Q.IsZero() {
		n, q = opkit.DimOrZero(a.Positions, 0), a.KV
	}
	if err := opkit.FirstError(
		o.checkQueries(op, a.Q),
		columns(op, "KV", a.KV, n, a.KVAt, cache.D),
		o.checkWeight(op, a.KVWeight),
		pkg.Check(op, "Slots", a.Slots, tensor.I64, -1),
		pkg.Check(op, "Positions", a.Positions, tensor.I32, n),
		table(op, a.Table),
		a.Cache.CheckFor(pkg, op, "Cache", o.cfg.Page, o.cfg.Record),
		pkg.Bindable(o.dev, op, "KV", a.KV), pkg.Bindable(o.dev, op, "Table", a.Table),
	); err != nil {
		return err
	}
	t := a.Slots.Shape[0]
	if t > n {
		return pkg.Wrong(op, "Slots", a.Slots, "at most the %d rows of Q", n)
	}
	groups, err := grid(o.dev, op, "Q", n, h, opkit.CeilDiv(h, insertHeads)+1)
	if err != nil {
		return err
	}
	slots, weight := a.Slots, opkit.Or(a.KVWeight, a.KV) // what stands for absent tensors is not read
	if t == 0 {
		slots = a.KV
	}
	if n == 0 {
		return nil
	}
	access := vk.ReadWrite
	if a.Q.IsZero() {
		access = vk.Read // none is touched
	}
	push := projQInsertPush{
		PoolStride: uint32(a.Cache.Layout.Stride), PoolPages: uint32(a.Cache.Pages()),
		Heads: uint32(h), Tokens: uint32(t), TableRows: uint32(a.Table.Shape[0]), Eps: o.cfg.Eps,
		KvStride: uint32(a.KV.Shape[1] / 8), KvAt: uint32(a.KVAt / 8),
	}
	targets := []opkit.Target{
		{Name: "KV", T: a.KV, Access: vk.Read, Align: 16, At: &push.KvAddr},
		{Name: "Slots", T: slots, Access: vk.Read, Align: 8, At: &push.SlotsAddr},
		{Name: "Positions", T: a.Positions, Access: vk.Read, Align: 4, At: &push.PositionsAddr},
		{Name: "Table", T: a.Table, Access: vk.Read, Align: 16, At: &push.TableAddr},
		{Name: "KVWeight", T: weight, Access: vk.Read, Align: 16, At: &push.WeightAddr},
		{Name: "Q", T: q, Access: access, Align: 16, At: &push.QAddr},
		{Name: "Cache.Pool", T: a.Cache.Pool, Access: vk.Write, Align: 8, At: &push.PoolAddr},
	}
	if err := pkg.Reach(o.dev, op, o.Variant(), targets...); err != nil {
		return err
	}
	return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{Kernel: o.k, Groups: groups, Push: vk.Bytes(&push)}, targets...)
}

func (o *QInsert) checkQueries(op string, q tensor.Tensor) error {
	if q.IsZero() {
		return nil
	}
	return rows(op, "Q", q)
}

func (o *QInsert) checkWeight(op string, w tensor.Tensor) error {
	if o.cfg.KVNorm != 0 {
		return pkg.Check(op, "KVWeight", w, o.cfg.KVNorm, cache.D)
	}
	if !w.IsZero() {
		return pkg.Wrong(op, "KVWeight", w, "absent: KVNorm is 0, so rows are normed already")
	}
	return nil
}
