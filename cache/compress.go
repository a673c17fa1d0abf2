package cache

import (
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// CompressVariants are the variants of Compress, best first.
var CompressVariants = ladder("kv_compress")

// CompressEps is what released models add to the mean square of an entry.
const CompressEps = 1e-6

// CompressConfig says what a Compress is built for.
type CompressConfig struct {
	Compression Compression
	StatePage   int            // tokens per page of the state cache
	Page        int            // slots per page of the caches it will write
	Keys        IndexKeyFormat // of C4Index; 0 for the others
	Hadamard    bool           // C4Index: rotate keys as indexer queries are rotated; both or neither
	Eps         float32        // 0 means CompressEps
	RopeStep    int            // positions from a row of CosSin to the next: 1 (or 0), or a divisor of Ratio
	Invocations int            // of a workgroup: C128Main, a power of two from 128 to 1024; else Dim or Dim/4; 0: what is best known
	MaxBytes    uint64         // size of the largest pool; 0: whatever a descriptor of the device can hold
	Variant     string         // "" picks the best

	// Save has the states of a step's tokens saved, as SaveState does, by the same launch:
	// for steps of up to SaveTokens tokens, of which those of a request stand side by side,
	// in the order of their positions.
	Save bool
	// Divide has several workgroups share an entry of C128Main, of which one reads 512 KB
	// of states, where the device can (see Compress.Divides). With Save; other
	// compressions are not divided. Bytes are the same.
	Divide bool
}

// SaveTokens is the most tokens of a Compress that saves their states: each has a workgroup,
// most of which have no more to do than to store one.
const SaveTokens = 128

// CompressArgs are the operands of compressing the groups that a step completes.
type CompressArgs struct {
	Positions  tensor.Tensor // [N] i32, N >= T
	TokenToReq tensor.Tensor // [N] i32 rows of StateTable
	StateSlots tensor.Tensor // [T] i64 slots where SaveState stored the tokens
	Slots      tensor.Tensor // [N] i64 slots of the entries in Cache or Keys, -1 for tokens that complete none
	State      StateCache    // read
	StateTable tensor.Tensor // [R, W] i32 pages of State, an entry per StatePage tokens
	Norm       tensor.Tensor // [Dim] f32 or bf16, weight of the RMS norm
	CosSin     tensor.Tensor // [rows, 64] f32: cos, then sin; row k for position k*RopeStep
	Cache      KVCache       // written by C4Main and C128Main: all bytes of the slots named
	Keys       IndexKeyCache // written by C4Index

	// CompressConfig.Save only; then State is written, too.
	KvScore tensor.Tensor // [N, 2*C] f32, as SaveStateArgs has it
	Ape     tensor.Tensor // [Ratio, C] f32

	// Where Compress.Divides only: what passes between workgroups, N >= T.
	Pooled  tensor.Tensor // [N, Dim] f32, overwritten
	Arrived tensor.Tensor // [N] u32 or i32, 0 in front of the first launch; each leaves it so, unless it breaks off
}

// Compress turns the states of a window of tokens into an entry of a compressed
// cache. For every token at position p with (p+1) % Ratio == 0 whose slot in the
// state cache and slot for the entry are both valid, over the rows j of its window
// (the positions p-Window+1+j, found through StateTable; with overlap the older half
// is read from the first Dim channels and the newer from the last), in f32:
//
//	v_c = sum_j kv_j,c w_j,c,  w_j,c = exp(score_j,c) / sum_j exp(score_j,c)
//	n_c = v_c / sqrt(sum_c v_c^2 / Dim + eps) * norm_c
//
// The last 64 of n turn by the rotary angle of position p+1-Ratio, pairs (2i, 2i+1);
// everything is rounded to bf16 and quantised: K entries as Insert does (the last 64
// stay bf16), indexer keys as E4M3 with one power-of-two scale floored at amax 1e-4,
// or as E2M1 with a scale per 32. With Hadamard the rounded key is first multiplied
// by the orthogonal Sylvester-Hadamard matrix and rounded again.
//
// Chosen where data is bad: a row at a negative position, beyond the table's width or
// at a page that is none of the pool is absent from the window; a token at a negative
// position, with a request that is none of the table, or with a slot outside its pool
// is skipped; a CosSin row beyond the last reads the last. If all rows are absent, or
// scores are not finite, the bytes of the entry are unspecified.
//
// The definition is CompressRef. Bytes are equal except where the exact value lies
// so close to a rounding boundary that f32 cannot tell the side (see
// CompressedEntry). Only additions, multiplications and integers decide them, in an
// order that Invocations fixes: where no subnormal number takes part, devices differ
// by no more than whether they fuse a multiplication with the addition after it.
//
// Source: vLLM fused_compress_quant_cache.py (deepseek_v4 common ops), in f32
// throughout; the rotation of keys is the flag "rotate" of class Compressor in
// DeepSeek-V4's inference/model.py.
type Compress struct {
	dev     *vk.Device
	cfg     CompressConfig
	variant string
	kernel  *vk.Kernel
	parts   int // workgroups of an entry; 0: not divided
}

// kvCompressPush is the push block of kv_compress.comp.
type kvCompressPush struct {
	StateAddr   uint64
	PoolAddr    uint64
	KvScoreAddr uint64
	PooledAddr  uint64
	ArrivedAddr uint64

	StateUnits uint32
	StatePages uint32
	PoolStride uint32
	PoolPages  uint32
	Tokens     uint32
	Each       uint32
	Requests   uint32
	Width      uint32
	RopeRows   uint32
	NormBf16   uint32
	Eps        float32
	_          uint32
}

// NewCompress chooses the variant and builds its kernel, which the device owns.
//
// Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewCompress(dev *vk.Device, cfg CompressConfig) (*Compress, error) {
	const op = "compress"
	variant, err := pkg.Choose(dev, op, CompressVariants, cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.complete(op, dev.Caps()); err != nil {
		return nil, err
	}
	c, hadamard := cfg.Compression, 0
	if cfg.Hadamard {
		hadamard = 1
	}
	stem, bound, parts, invocations, chunk := "kv_compress", 7, 0, cfg.Invocations, compressChunk(cfg.Invocations)
	access := []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write}
	if cfg.Save {
		stem, bound = "kv_compress_save", 8
		access = append(access[:bound-1], vk.Read, vk.Read, vk.ReadWrite, vk.Write)
	}
	if cfg.divides(dev.Caps()) {
		stem, variant, invocations = compressParts, VariantDA, compressPart
		parts = c.Dim * c.Window() / chunk / invocations
	}
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: stem, Variant: variant, Bindings: access, Bound: bound,
		PushSize:  int(unsafe.Sizeof(kvCompressPush{})),
		Constants: opkit.Words(invocations, cfg.Page, cfg.StatePage, c.Ratio, c.Dim, int(cfg.Keys), hadamard, cfg.RopeStep, chunk),
	})
	if err != nil {
		return nil, err
	}
	return &Compress{dev: dev, cfg: cfg, variant: variant, kernel: k, parts: parts}, nil
}

// compressParts is the kernel that shares out entries, and compressPart its invocations:
// one for each channel of each eight rows of a workgroup's part.
const (
	compressParts = "kv_compress_parts"
	compressPart  = 512
)

// divides tells whether entries are shared out: the kernel adds up as kv_compress.comp does
// with 512 invocations.
func (cfg CompressConfig) divides(caps *vk.Caps) bool {
	return cfg.Divide && cfg.Save && cfg.Compression == C128Main && cfg.Invocations == 512 && cfg.Variant != VariantBase &&
		len(caps.Missing(shaders.Requires(opkit.Stem(compressParts, VariantDA)))) == 0
}

// Divides tells whether several workgroups share an entry; Record then wants
// CompressArgs.Pooled and Arrived, and else neither.
func (x *Compress) Divides() bool { return x.parts > 0 }

// complete checks a configuration and puts values in place of zeros.
func (cfg CompressConfig) complete(op string, caps *vk.Caps) (CompressConfig, error) {
	c := cfg.Compression
	if _, err := NewStateLayout(c, cfg.StatePage, 0); err != nil {
		return cfg, pkg.Wrap(op, err)
	}
	if err := cfg.checkOutput(op); err != nil {
		return cfg, err
	}
	if cfg.Eps == 0 {
		cfg.Eps = CompressEps
	}
	if !(cfg.Eps > 0 && cfg.Eps < 1) {
		return cfg, pkg.Wrong(op, "Eps", cfg.Eps, "a number between 0 and 1")
	}
	if cfg.RopeStep == 0 {
		cfg.RopeStep = 1
	}
	if cfg.RopeStep < 1 || c.Ratio%cfg.RopeStep != 0 {
		return cfg, pkg.Wrong(op, "RopeStep", cfg.RopeStep, "a divisor of %d", c.Ratio)
	}
	return cfg.invocations(op, caps)
}

// invocations settles the size of a workgroup: 4 channels per invocation, and for a
// long window several invocations that share its rows, because one workgroup has to
// keep many loads under way to stream a window at its share of the bandwidth. A step
// that saves states makes few entries of short windows, for which code comes from
// memory: one channel per invocation then is a quarter of it.
func (cfg CompressConfig) invocations(op string, caps *vk.Caps) (CompressConfig, error) {
	lanes := cfg.Compression.Dim / 4
	if cfg.Compression != C128Main {
		most := int(caps.MaxWorkgroupInvocations)
		if cfg.Invocations == 0 {
			cfg.Invocations = lanes
			if cfg.Save && 4*lanes <= most {
				cfg.Invocations = 4 * lanes
			}
		}
		if n := cfg.Invocations; n != lanes && n != 4*lanes || n > most {
			return cfg, pkg.Wrong(op, "Invocations", n, "%d or %d, at most %d on this device", lanes, 4*lanes, most)
		}
		return cfg, nil
	}
	most := min(int(caps.MaxWorkgroupInvocations), 1024)
	if cfg.Invocations == 0 {
		cfg.Invocations = max(min(most, 512)/lanes*lanes, lanes)
		if cfg.Invocations == 3*lanes {
			cfg.Invocations = 2 * lanes
		}
	}
	n := cfg.Invocations
	if n < lanes || n > most || n&(n-1) != 0 {
		return cfg, pkg.Wrong(op, "Invocations", n, "128, 256, 512 or 1024, at most %d on this device", most)
	}
	if need := compressShared(cfg.Compression, n); need > int(caps.SharedMemory) {
		return cfg, pkg.Wrong(op, "Invocations", n, "fewer: they need %d bytes of shared memory, the device has %d", need, caps.SharedMemory)
	}
	return cfg, nil
}

// compressChunk is how many rows an invocation loads together. 8 take about 100
// registers, more than a GPU has for each of 1024 invocations.
func compressChunk(invocations int) int {
	if invocations > 512 {
		return 4
	}
	return 8
}

// compressShared is the shared memory of kv_compress.comp in bytes, but for one channel per invocation.
func compressShared(c Compression, invocations int) int {
	merged := 48 // of a workgroup with nothing to merge
	if invocations > c.Dim/4 {
		merged = 24 * invocations
	}
	return merged + 8*c.Dim/4 + 4*c.Window() + 864
}

func (cfg CompressConfig) checkOutput(op string) error {
	if cfg.Compression == C4Index {
		_, err := NewIndexKeyLayout(cfg.Keys, cfg.Page, 0)
		return pkg.Wrap(op, err)
	}
	if cfg.Keys != 0 || cfg.Hadamard {
		return pkg.Wrong(op, "Keys, Hadamard", fmt.Sprintf("%v, %v", cfg.Keys, cfg.Hadamard), "neither: K entries have one format and are not rotated")
	}
	_, err := NewLayout(cfg.Page, 0)
	return pkg.Wrap(op, err)
}

// Variant is the name of the variant that was chosen.
func (x *Compress) Variant() string { return x.variant }

// Record checks the arguments and records the operation. Positions, slots and the
// table are read when the commands run. Errors: *vk.ArgumentError, with nothing
// recorded; those of vk.Recorder.Dispatch.
func (x *Compress) Record(rec *vk.Recorder, a CompressArgs) error {
	const op = "compress"
	if err := checkState(x.dev, op, x.variant, a.State, x.cfg.Compression, x.cfg.StatePage); err != nil {
		return err
	}
	pool, stride, err := x.output(op, a)
	if err != nil {
		return err
	}
	if err := x.checkArgs(op, a); err != nil {
		return err
	}
	tokens := a.StateSlots.Shape[0]
	if tokens == 0 {
		return nil
	}
	each, groups := x.grid(tokens)
	push := kvCompressPush{
		StateAddr: a.State.Pool.View().Address(), PoolAddr: pool.View().Address(),
		StateUnits: uint32(a.State.Layout.Stride / poolAlign), StatePages: uint32(a.State.Pages()),
		PoolStride: uint32(stride), PoolPages: uint32(poolPages(pool)),
		Tokens: uint32(tokens), Each: each, Requests: uint32(a.StateTable.Shape[0]), Width: uint32(a.StateTable.Shape[1]),
		RopeRows: uint32(a.CosSin.Shape[0]), Eps: x.cfg.Eps,
	}
	if a.Norm.DType == tensor.BF16 {
		push.NormBf16 = 1
	}
	bind := []vk.View{a.Positions.View(), a.TokenToReq.View(), a.StateSlots.View(), a.Slots.View(),
		a.StateTable.View(), a.Norm.View(), a.CosSin.View()}
	targets := []opkit.Target{{T: a.State.Pool, Access: vk.Read}, {T: pool, Access: vk.Write}}
	if x.cfg.Save {
		targets[0].Access = vk.ReadWrite
		push.KvScoreAddr, bind = a.KvScore.View().Address(), append(bind, a.Ape.View())
		targets = append([]opkit.Target{{T: a.KvScore, Access: vk.Read}}, targets...)
	}
	if x.Divides() {
		push.PooledAddr, push.ArrivedAddr = a.Pooled.View().Address(), a.Arrived.View().Address()
		targets = append(targets, opkit.Target{T: a.Pooled, Access: vk.ReadWrite}, opkit.Target{T: a.Arrived, Access: vk.ReadWrite})
	}
	return pkg.Dispatch(rec, op, x.variant, vk.Dispatch{
		Kernel: x.kernel, Groups: groups, Bind: bind, Push: vk.Bytes(&push),
	}, targets...)
}

// grid is how many workgroups to launch, and the push constant that goes with it. Each costs
// a turn on a compute unit even if its tokens complete no entry, and the workgroups of long
// windows are large; of neighbouring tokens of a prompt no more than one in Ratio completes
// an entry. With Save a token has one for its entry and one for its state.
func (x *Compress) grid(tokens int) (each uint32, groups [3]uint32) {
	if x.Divides() {
		shares := min(tokens, compressShares)
		return uint32(shares), [3]uint32{uint32(x.parts*shares + tokens), 1, 1}
	}
	if x.cfg.Save {
		return 1, [3]uint32{uint32(tokens), 2, 1}
	}
	most := 1024
	if x.cfg.Compression.Ratio == 128 {
		most = 256
	}
	n := opkit.CeilDiv(tokens, most)
	return uint32(n), [3]uint32{uint32(opkit.CeilDiv(tokens, n)), 1, 1}
}

// output is the pool that is written, checked, and its page stride.
func (x *Compress) output(op string, a CompressArgs) (pool tensor.Tensor, stride int, err error) {
	if x.cfg.Compression != C4Index {
		return a.Cache.Pool, a.Cache.Layout.Stride, checkCache(x.dev, op, x.variant, a.Cache, x.cfg.Page)
	}
	if err := a.Keys.check(op); err != nil {
		return pool, 0, err
	}
	if l := a.Keys.Layout; l.Page != x.cfg.Page || l.Format != x.cfg.Keys {
		return pool, 0, pkg.Wrong(op, "Keys.Layout", fmt.Sprintf("%s, %d slots a page", l.Format, l.Page),
			"%s, %d slots a page, which the kernel was built for", x.cfg.Keys, x.cfg.Page)
	}
	return a.Keys.Pool, a.Keys.Layout.Stride, pkg.Reach(x.dev, op, x.variant, opkit.Target{Name: "Keys.Pool", T: a.Keys.Pool, Align: 8})
}

func (x *Compress) checkArgs(op string, a CompressArgs) error {
	if err := pkg.CheckRows(op, "StateSlots", a.StateSlots, tensor.I64, -1); err != nil {
		return err
	}
	tokens := a.StateSlots.Shape[0]
	for _, t := range []struct {
		name string
		t    tensor.Tensor
		dt   tensor.DType
	}{{"Positions", a.Positions, tensor.I32}, {"TokenToReq", a.TokenToReq, tensor.I32}, {"Slots", a.Slots, tensor.I64}} {
		if err := checkTokens(op, t.name, t.t, t.dt, tokens); err != nil {
			return err
		}
	}
	if err := pkg.CheckRows(op, "StateTable", a.StateTable, tensor.I32, -1, -1); err != nil {
		return err
	}
	dt := tensor.F32
	if a.Norm.DType == tensor.BF16 {
		dt = tensor.BF16
	}
	if err := pkg.CheckRows(op, "Norm", a.Norm, dt, x.cfg.Compression.Dim); err != nil {
		return err
	}
	if err := pkg.CheckRows(op, "CosSin", a.CosSin, tensor.F32, -1, RopeDim); err != nil {
		return err
	}
	switch {
	case a.StateTable.Len() == 0:
		return pkg.Wrong(op, "StateTable", a.StateTable, "at least one entry")
	case a.CosSin.Shape[0] == 0:
		return pkg.Wrong(op, "CosSin", a.CosSin, "at least one row")
	}
	return opkit.First(x.checkSave(op, a), x.checkParts(op, a))
}

// compressShares is how many workgroups at most share the entries of a step, for each of
// their parts. On an H100 a step of 32 tokens that all complete one takes 4 % longer with 4
// of them than with 8, and one in which none does 0.5 % longer with 16.
const compressShares = 8

// checkParts checks what passes between workgroups.
func (x *Compress) checkParts(op string, a CompressArgs) error {
	if !x.Divides() {
		if !a.Pooled.IsZero() || !a.Arrived.IsZero() {
			return pkg.Wrong(op, "Pooled, Arrived", a.Pooled, "absent, for entries that are not divided")
		}
		return nil
	}
	dt := tensor.U32
	if a.Arrived.DType == tensor.I32 {
		dt = tensor.I32
	}
	if err := opkit.First(pkg.CheckRows(op, "Pooled", a.Pooled, tensor.F32, -1, x.cfg.Compression.Dim), pkg.CheckRows(op, "Arrived", a.Arrived, dt, -1)); err != nil {
		return err
	}
	if tokens, n := a.StateSlots.Shape[0], min(a.Pooled.Shape[0], a.Arrived.Shape[0]); n < tokens {
		return pkg.Wrong(op, "Pooled, Arrived", n, "at least the %d rows of StateSlots", tokens)
	}
	return pkg.Reach(x.dev, op, x.variant, opkit.Target{Name: "Pooled", T: a.Pooled, Align: 16}, opkit.Target{Name: "Arrived", T: a.Arrived, Align: 4})
}

// checkSave checks what is saved first, if it is.
func (x *Compress) checkSave(op string, a CompressArgs) error {
	if !x.cfg.Save {
		if !a.KvScore.IsZero() || !a.Ape.IsZero() {
			return pkg.Wrong(op, "KvScore, Ape", a.KvScore, "absent without CompressConfig.Save")
		}
		return nil
	}
	tokens := a.StateSlots.Shape[0]
	if tokens > SaveTokens {
		return pkg.Wrong(op, "StateSlots", a.StateSlots, "at most %d tokens", SaveTokens)
	}
	if err := checkInputs(op, x.cfg.Compression, a.KvScore, a.Ape); err != nil {
		return err
	}
	if tokens > a.KvScore.Shape[0] {
		return pkg.Wrong(op, "KvScore", a.KvScore, "at least the %d rows of StateSlots", tokens)
	}
	return pkg.Reach(x.dev, op, x.variant, opkit.Target{Name: "KvScore", T: a.KvScore, Align: 16})
}
