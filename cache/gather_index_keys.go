package cache

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatherIndexKeysVariants are the variants of GatherIndexKeys, best first.
var GatherIndexKeysVariants = ladder("kv_gather_index_keys")

// GatherIndexKeysConfig says what a GatherIndexKeys is built for.
type GatherIndexKeysConfig struct {
	Page     int // slots per page of the caches it will read
	Format   IndexKeyFormat
	MaxBytes uint64 // size of the largest cache or output; 0: whatever a descriptor of the device can hold
	Variant  string // "" picks the best
}

// GatherIndexKeysArgs are the operands of one gather. The table and the starts are
// read when the commands run.
type GatherIndexKeysArgs struct {
	Keys   IndexKeyCache
	Table  tensor.Tensor // [R, W] i32 page ids; a negative one counts as page 0
	Starts tensor.Tensor // [R+1] i32, ascending: row of a request's first entry, then the end of all
	Codes  tensor.Tensor // [N, 128] u8 (FP8) or [N, 64] u8 (MXFP4), written
	Scales tensor.Tensor // [N, 4] u8, written: an f32 (FP8) or four UE8M0 bytes (MXFP4)
}

// GatherIndexKeys copies indexer keys from their pages to dense rows, verbatim: row
// Starts[r]+i becomes entry i of request r, which is slot i%page of page
// table[r, i/page], for the Starts[r+1]-Starts[r] entries that there is room for.
//
// Rows that belong to no request keep their bytes, and those beyond N are left out.
// An entry outside the table, or of a page outside the pool, gives a row of zeros.
//
// The definition is GatherIndexKeysRef; results are equal byte for byte.
//
// Source: vLLM cp_gather_indexer_k_quant_cache (csrc/cache_kernels.cu).
type GatherIndexKeys struct {
	dev     *vk.Device
	cfg     GatherIndexKeysConfig
	variant string
	kernel  *vk.Kernel
}

// kvGatherIndexKeysPush is the push block of kv_gather_index_keys.comp.
type kvGatherIndexKeysPush struct {
	PoolAddr   uint64
	KAddr      uint64
	ScaleAddr  uint64
	PoolStride uint32
	PoolPages  uint32
	Requests   uint32
	Width      uint32
	Rows       uint32
	_          uint32
}

// NewGatherIndexKeys chooses the variant and builds its kernel. The device owns the
// kernel; there is nothing to close.
//
// Errors: *vk.ArgumentError for a page size, a format or a variant that does not
// exist or cannot hold MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func NewGatherIndexKeys(dev *vk.Device, cfg GatherIndexKeysConfig) (*GatherIndexKeys, error) {
	const op = "gather index keys"
	if err := (IndexKeyLayout{cfg.Page, DefaultIndexStride(max(cfg.Page, 0)), cfg.Format}).check(op); err != nil {
		return nil, err
	}
	variant, err := pkg.Choose(dev, op, GatherIndexKeysVariants, cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: "kv_gather_index_keys", Variant: variant, Bindings: []vk.Access{vk.Read, vk.Read, vk.Write, vk.Write, vk.Read}, Bound: 2,
		PushSize: int(unsafe.Sizeof(kvGatherIndexKeysPush{})), Constants: opkit.Words(cfg.Page, int(cfg.Format)),
	})
	if err != nil {
		return nil, err
	}
	return &GatherIndexKeys{dev: dev, cfg: cfg, variant: variant, kernel: k}, nil
}

// Variant is the name of the variant that was chosen.
func (x *GatherIndexKeys) Variant() string { return x.variant }

// Record checks the arguments and records the gather. Errors: *vk.ArgumentError,
// with nothing recorded; those of vk.Recorder.Dispatch.
func (x *GatherIndexKeys) Record(rec *vk.Recorder, a GatherIndexKeysArgs) error {
	const op = "gather index keys"
	if err := a.Keys.check(op); err != nil {
		return err
	}
	if l := a.Keys.Layout; l.Page != x.cfg.Page || l.Format != x.cfg.Format {
		return pkg.Wrong(op, "Keys.Layout", fmt.Sprintf("%d slots of %v", l.Page, l.Format),
			"%d of %v, which the kernel was built for", x.cfg.Page, x.cfg.Format)
	}
	if err := pkg.CheckRows(op, "Table", a.Table, tensor.I32, -1, -1); err != nil {
		return err
	}
	requests, row := a.Table.Shape[0], x.cfg.Format.RowBytes()
	if err := pkg.CheckRows(op, "Starts", a.Starts, tensor.I32, requests+1); err != nil {
		return err
	}
	if err := pkg.CheckRows(op, "Codes", a.Codes, tensor.U8, -1, row); err != nil {
		return err
	}
	rows := a.Codes.Shape[0]
	if err := pkg.CheckRows(op, "Scales", a.Scales, tensor.U8, rows, IndexScaleBytes); err != nil {
		return err
	}
	if a.Table.Len() > math.MaxInt32 {
		return pkg.Wrong(op, "Table", a.Table, "fewer than 2^31 entries")
	}
	targets := []opkit.Target{
		{Name: "Codes", T: a.Codes, Access: vk.Write, Align: 8},
		{Name: "Scales", T: a.Scales, Access: vk.Write, Align: 4},
		{Name: "Keys.Pool", T: a.Keys.Pool, Access: vk.Read, Align: 8},
	}
	if err := pkg.Reach(x.dev, op, x.variant, targets...); err != nil {
		return err
	}
	if requests == 0 || rows == 0 {
		return nil
	}
	push := kvGatherIndexKeysPush{
		PoolAddr: a.Keys.Pool.View().Address(), KAddr: a.Codes.View().Address(), ScaleAddr: a.Scales.View().Address(),
		PoolStride: uint32(a.Keys.Layout.Stride), PoolPages: uint32(a.Keys.Pages()),
		Requests: uint32(requests), Width: uint32(a.Table.Shape[1]), Rows: uint32(rows),
	}
	return pkg.Dispatch(rec, op, x.variant, vk.Dispatch{
		Kernel: x.kernel, Groups: [3]uint32{strided(x.dev, rows, 1024/row), 1, 1}, Push: vk.Bytes(&push),
		Bind: []vk.View{a.Starts.View(), a.Table.View()},
	}, targets...)
}
