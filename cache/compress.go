package cache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// compressEps is the number that released models add to the mean square of an entry.
const compressEps = 1e-6

// CompressConfig says what a Compress is built for.
type CompressConfig struct {
	Compression Compression
	StatePage   int            // tokens per page of the state cache
	Page        int            // slots per page of the caches it will write
	Record      Record         // of K entries; other than RecordV4 only with Compression.Latent
	Keys        IndexKeyFormat // of indexer keys (Dim = IndexDim); 0 for K entries
	Hadamard    bool           // of indexer keys, without Compression.Latent: rotate them as indexer queries are rotated; both or neither
	Eps         float32        // 0 means 1e-6
	RopeStep    int            // positions from a row of CosSin to the next: 1 (or 0), or a divisor of Ratio
	Invocations int            // of a workgroup: Dim/4 or Dim, for windows of over 8 rows Dim/4 times a power of two; 0: best known
	MaxBytes    uint64         // size of the largest pool; 0: whatever a descriptor of the device can hold
	Variant     string         // "" picks the best

	// Save stores the states of a step's tokens, as SaveState does, in the same launch. It is for
	// steps of few tokens: each token has a workgroup, and most of these only store a state. Each
	// request's tokens stand side by side in the order of their positions.
	Save bool
}

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
	Cache      KVCache       // written if Dim is D: all bytes of the slots named
	Keys       IndexKeyCache // written if Dim is IndexDim

	// CompressConfig.Save only; then State is written, too.
	KvScore tensor.Tensor // [N, 2*C] f32, as SaveStateArgs has it; with Compression.Ungated [N, Dim], the rows
	Ape     tensor.Tensor // [Ratio, C] f32

	// Compression.Latent only: written, row i if token i makes an entry; may be absent.
	Latent tensor.Tensor // [T, Dim] bf16
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
// With Compression.Latent, as DeepSeek-V4.1 has it, v is rounded to bf16 before the norm and n
// before it turns; that is the latent. With Compression.Ungated v is the token's row of KvScore:
// State, StateTable, StateSlots, TokenToReq and Ape are absent, Save is set, and Slots counts the
// tokens.
//
// Where data is bad: a row at a negative position, beyond the table's width or at a page
// outside the pool is absent from the window; a token at a negative position, with a request
// outside the table, or with a slot outside its pool is skipped; a CosSin row beyond the last
// reads the last. If all rows are absent, or scores are not finite, the bytes of the entry
// are unspecified.
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
	dev *vk.Device
	cfg CompressConfig
	built
	kernel *vk.Kernel
	most   int // workgroups of a launch that does not save
}

// kvCompressPush is the push block of kv_compress.comp.
type kvCompressPush struct {
	StateAddr   uint64
	PoolAddr    uint64
	KvScoreAddr uint64

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
	HasLatent  uint32
	LatentAddr uint64
}

// NewCompress chooses the variant and builds its kernel, which the device owns.
//
// Errors: *vk.ArgumentError; *vk.MissingError; those of vk.Device.Kernel.
func NewCompress(dev *vk.Device, cfg CompressConfig) (*Compress, error) {
	const op = "compress"
	variant, err := pkg.Choose(dev, op, opkit.Builds("kv_compress"), cfg.Variant, cfg.MaxBytes)
	if err != nil {
		return nil, err
	}
	tune := &tuning.Of(dev).Compress
	if cfg, err = cfg.complete(op, dev.Caps(), tune); err != nil {
		return nil, err
	}
	stem := "kv_compress"
	if cfg.Save {
		stem = "kv_compress_save"
	}
	k, err := pkg.Kernel(dev, opkit.Spec{
		Stem: stem, Variant: variant, Bindings: compressAccess(cfg.state()), Bound: compressBound,
		Push: kvCompressPush{}, Constants: cfg.constants(tune),
	})
	if err != nil {
		return nil, err
	}
	return &Compress{dev: dev, cfg: cfg, built: built(variant), kernel: k, most: cfg.groups()}, nil
}

// state returns the kernel's access to the pool of states.
func (cfg CompressConfig) state() vk.Access {
	if cfg.Save {
		return vk.ReadWrite
	}
	return vk.Read
}

// compressBound is the number of bindings of kv_compress.comp that builds by address have, too.
const compressBound = 8

// compressAccess lists the uses that kv_compress.comp makes of its bindings: small tensors, numbers
// of tokens, the pool of states, that of entries, latents.
func compressAccess(state vk.Access) []vk.Access {
	return append(slices.Repeat([]vk.Access{vk.Read}, compressBound+1), state, vk.Write, vk.Write)
}

// constants are the specialisation constants of kv_compress.comp.
func (cfg CompressConfig) constants(tune *tuning.Compress) []uint32 {
	c := cfg.Compression
	list := opkit.Constants(cfg.Invocations, cfg.Page, cfg.StatePage, c.Ratio, int(opkit.Bit(0, c.Overlap)), c.Dim,
		int(cfg.Keys), int(opkit.Bit(0, cfg.Hadamard)), cfg.RopeStep, compressChunk(c, cfg.Invocations, tune))
	return opkit.AppendNonzero(list, int(opkit.Bit(0, c.Latent)+opkit.Bit(0, c.Ungated)), int(cfg.Record))
}

// groups is the most workgroups of a launch that does not save.
func (cfg CompressConfig) groups() int {
	return tuning.CompressGroups * (cfg.Compression.Dim / 4) / cfg.Invocations
}

// complete checks a configuration and puts values in place of zeros.
func (cfg CompressConfig) complete(op string, caps *vk.Caps, tune *tuning.Compress) (CompressConfig, error) {
	c := cfg.Compression
	if c.Ungated {
		cfg.StatePage = 1 // there are none
	}
	if _, err := NewStateLayout(c, cfg.StatePage, 0); err != nil {
		return cfg, pkg.Wrap(op, err)
	}
	if c.Ungated && !cfg.Save {
		return cfg, pkg.Wrong(op, "Save", cfg.Save, "true with Compression.Ungated")
	}
	if err := cfg.checkOutput(op); err != nil {
		return cfg, err
	}
	cfg.Eps = cmp.Or(cfg.Eps, compressEps)
	if !(cfg.Eps > 0 && cfg.Eps < 1) {
		return cfg, pkg.Wrong(op, "Eps", cfg.Eps, "a number between 0 and 1")
	}
	cfg.RopeStep = cmp.Or(cfg.RopeStep, 1)
	if cfg.RopeStep < 1 || c.Ratio%cfg.RopeStep != 0 {
		return cfg, pkg.Wrong(op, "RopeStep", cfg.RopeStep, "a divisor of %d", c.Ratio)
	}
	return cfg.invocations(op, caps, tune)
}

// invocations settles the size of a workgroup: Dim/4 invocations of four channels each, or
// several times as many. Those share the rows of a long window, because one workgroup has to keep
// many loads under way to stream it at its share of the bandwidth. Of a short window they share
// the channels.
func (cfg CompressConfig) invocations(op string, caps *vk.Caps, tune *tuning.Compress) (CompressConfig, error) {
	c, lanes := cfg.Compression, cfg.Compression.Dim/4
	fits := func(n int) bool {
		return n <= min(int(caps.MaxWorkgroupInvocations), maxInvocations) && compressShared(c, n, tune) <= int(caps.SharedMemory)
	}
	if cfg.Invocations == 0 {
		cfg.Invocations = lanes
		if !c.Ungated && !c.long() && cfg.Save && fits(4*lanes) {
			cfg.Invocations = 4 * lanes
		}
		for n := 2 * lanes; c.long() && n <= tuning.LongInvocations && n/lanes*chunkRows <= c.Window() && fits(n); n *= 2 {
			cfg.Invocations = n
		}
	}
	n := cfg.Invocations
	legal := n == lanes || n == 4*lanes
	if c.long() {
		legal = n >= lanes && n%lanes == 0 && n&(n-1) == 0
	}
	if !legal || n > maxInvocations {
		return cfg, pkg.Wrong(op, "Invocations", n, "%s, at most %d", c.legalInvocations(), maxInvocations)
	}
	return cfg, nil
}

func (c Compression) legalInvocations() string {
	if c.long() {
		return fmt.Sprintf("%d times a power of two", c.Dim/4)
	}
	return fmt.Sprintf("%d or %d", c.Dim/4, c.Dim)
}

const (
	chunkRows      = 8    // rows that an invocation loads together at most
	maxInvocations = 1024 // of a workgroup
)

// long tells whether a window has more rows than an invocation loads together.
func (c Compression) long() bool { return c.Window() > chunkRows }

// compressChunk returns the number of rows that an invocation loads together.
func compressChunk(c Compression, invocations int, tune *tuning.Compress) int {
	if c.Window() <= chunkRows/2 || c.long() && invocations > tune.ChunkInvocations {
		return chunkRows / 2
	}
	return chunkRows
}

// compressShared is the shared memory of kv_compress.comp in bytes.
func compressShared(c Compression, invocations int, tune *tuning.Compress) int {
	groups := invocations / (c.Dim / 4)
	part := 48 // nothing to merge
	switch {
	case groups == 4 && c.Window() <= compressChunk(c, invocations, tune): // one channel an invocation
		part = 4 * c.Dim
	case groups > 1:
		part = 24 * invocations
	}
	vectors := 1
	if c.keys() {
		vectors = groups
	}
	return part + 4*IndexDim*vectors + 4*c.Window() + 8*c.Dim/4 + 352
}

func (cfg CompressConfig) checkOutput(op string) error {
	if cfg.Compression.Latent && cfg.Hadamard {
		return pkg.Wrong(op, "Hadamard", cfg.Hadamard, "false with Compression.Latent")
	}
	if cfg.Record != RecordV4 && (!cfg.Compression.Latent || cfg.Compression.keys()) {
		return pkg.Wrong(op, "Record", cfg.Record, "%s, or K entries with Compression.Latent", RecordV4)
	}
	if cfg.Compression.keys() {
		_, err := NewIndexKeyLayout(cfg.Keys, cfg.Page, 0)
		return pkg.Wrap(op, err)
	}
	if cfg.Keys != 0 || cfg.Hadamard {
		return pkg.Wrong(op, "Keys, Hadamard", fmt.Sprintf("%v, %v", cfg.Keys, cfg.Hadamard),
			"neither: K entries have one format and are not rotated")
	}
	_, err := NewRecordLayout(cfg.Record, cfg.Page, 0)
	return pkg.Wrap(op, err)
}

// Record checks the arguments and records the operation. Positions, slots and the
// table are read when the commands run. Errors: *vk.ArgumentError, with nothing
// recorded; those of vk.Recorder.Dispatch.
func (x *Compress) Record(rec *vk.Recorder, a CompressArgs) error {
	const op = "compress"
	pool, stride, err := x.output(op, a)
	if err != nil {
		return err
	}
	if err := x.checkArgs(op, a); err != nil {
		return err
	}
	tokens := x.tokens(a)
	if tokens == 0 {
		return nil
	}
	each, groups := x.grid(tokens)
	push := kvCompressPush{
		PoolAddr: pool.View().Address(), LatentAddr: opkit.ViewOrDummy(x.dev, a.Latent).Address(),
		PoolStride: uint32(stride), PoolPages: uint32(poolPages(pool)), Tokens: uint32(tokens), Each: each,
		RopeRows: uint32(a.CosSin.Shape[0]), Eps: x.cfg.Eps, HasLatent: opkit.Bit(0, !a.Latent.IsZero()),
	}
	if a.Norm.DType == tensor.BF16 {
		push.NormBf16 = 1
	}
	bind := []vk.View{a.Positions.View(), opkit.ViewOrDummy(x.dev, a.TokenToReq), opkit.ViewOrDummy(x.dev, a.StateSlots), a.Slots.View(),
		opkit.ViewOrDummy(x.dev, a.StateTable), a.Norm.View(), a.CosSin.View(), opkit.ViewOrDummy(x.dev, a.Ape)}
	kvScore := opkit.Or(a.KvScore, a.Norm)
	targets := []opkit.Target{{T: kvScore, Access: vk.Read}, {T: opkit.Or(a.State.Pool, pool), Access: x.cfg.state()},
		{T: pool, Access: vk.Write}, {T: opkit.Or(a.Latent, pool), Access: vk.Write}}
	push.KvScoreAddr = kvScore.View().Address()
	if !x.cfg.Compression.Ungated {
		push.StateAddr, push.StateUnits = a.State.Pool.View().Address(), uint32(a.State.Layout.Stride/poolAlign)
		push.StatePages, push.Requests, push.Width = uint32(a.State.pages()), uint32(a.StateTable.Shape[0]), uint32(a.StateTable.Shape[1])
	}
	return pkg.Dispatch(rec, op, x.Variant(), vk.Dispatch{
		Kernel: x.kernel, Groups: groups, Bind: bind, Push: vk.Bytes(&push),
	}, targets...)
}

// tokens is the number of tokens of a step.
func (x *Compress) tokens(a CompressArgs) int {
	if x.cfg.Compression.Ungated {
		return opkit.DimOrZero(a.Slots, 0)
	}
	return opkit.DimOrZero(a.StateSlots, 0)
}

// grid returns the tokens of a workgroup and the workgroups of a launch. With Save a
// token has one workgroup for its entry and one for its state.
func (x *Compress) grid(tokens int) (each uint32, groups [3]uint32) {
	switch {
	case x.cfg.Compression.Ungated:
		return 1, [3]uint32{uint32(tokens), 1, 1}
	case x.cfg.Save:
		return 1, [3]uint32{uint32(tokens), 2, 1}
	}
	n := opkit.CeilDiv(tokens, x.most)
	return uint32(n), [3]uint32{uint32(opkit.CeilDiv(tokens, n)), 1, 1}
}

// output is the pool that is written, checked, and its page stride.
func (x *Compress) output(op string, a CompressArgs) (pool tensor.Tensor, stride int, err error) {
	if !x.cfg.Compression.keys() {
		return a.Cache.Pool, a.Cache.Layout.Stride, checkCache(x.dev, op, x.Variant(), a.Cache, x.cfg.Page, x.cfg.Record)
	}
	if err := a.Keys.check(op); err != nil {
		return pool, 0, err
	}
	if l := a.Keys.Layout; l.Page != x.cfg.Page || l.Format != x.cfg.Keys {
		return pool, 0, pkg.Wrong(op, "Keys.Layout", fmt.Sprintf("%s, %d slots a page", l.Format, l.Page),
			"%s, %d slots a page, which the kernel was built for", x.cfg.Keys, x.cfg.Page)
	}
	return a.Keys.Pool, a.Keys.Layout.Stride, pkg.Reach(x.dev, op, x.Variant(), opkit.Target{Name: "Keys.Pool", T: a.Keys.Pool, Align: 8})
}

func (x *Compress) checkArgs(op string, a CompressArgs) error {
	tokens, err := x.checkGroups(op, a)
	if err != nil {
		return err
	}
	dt := tensor.F32
	if a.Norm.DType == tensor.BF16 {
		dt = tensor.BF16
	}
	if err := opkit.FirstError(
		checkTokens(op, "Positions", a.Positions, tensor.I32, tokens),
		checkTokens(op, "Slots", a.Slots, tensor.I64, tokens),
		pkg.CheckRows(op, "Norm", a.Norm, dt, x.cfg.Compression.Dim),
		pkg.CheckRows(op, "CosSin", a.CosSin, tensor.F32, -1, RopeDim),
	); err != nil {
		return err
	}
	if a.CosSin.Shape[0] == 0 {
		return pkg.Wrong(op, "CosSin", a.CosSin, "at least one row")
	}
	if !a.Latent.IsZero() {
		if !x.cfg.Compression.Latent {
			return pkg.Wrong(op, "Latent", a.Latent, "absent without Compression.Latent")
		}
		latent := opkit.Target{Name: "Latent", T: a.Latent, Align: 8}
		if err := opkit.FirstError(pkg.CheckRows(op, "Latent", a.Latent, tensor.BF16, tokens, x.cfg.Compression.Dim),
			pkg.Reach(x.dev, op, x.Variant(), latent)); err != nil {
			return err
		}
	}
	return x.checkSave(op, a)
}

// checkGroups checks what says where the rows of a group are, and returns the tokens of the step.
func (x *Compress) checkGroups(op string, a CompressArgs) (tokens int, err error) {
	if x.cfg.Compression.Ungated {
		for name, t := range map[string]tensor.Tensor{"State": a.State.Pool, "StateTable": a.StateTable,
			"StateSlots": a.StateSlots, "TokenToReq": a.TokenToReq} {
			if !t.IsZero() {
				return 0, pkg.Wrong(op, name, t, "absent with Compression.Ungated")
			}
		}
		if err := pkg.CheckRows(op, "Slots", a.Slots, tensor.I64, -1); err != nil {
			return 0, err
		}
		return a.Slots.Shape[0], nil
	}
	if err := opkit.FirstError(
		checkState(x.dev, op, x.Variant(), a.State, x.cfg.Compression, x.cfg.StatePage),
		pkg.CheckRows(op, "StateSlots", a.StateSlots, tensor.I64, -1),
		pkg.CheckRows(op, "StateTable", a.StateTable, tensor.I32, -1, -1),
	); err != nil {
		return 0, err
	}
	if a.StateTable.Len() == 0 {
		return 0, pkg.Wrong(op, "StateTable", a.StateTable, "at least one entry")
	}
	tokens = a.StateSlots.Shape[0]
	return tokens, checkTokens(op, "TokenToReq", a.TokenToReq, tensor.I32, tokens)
}

// checkSave checks what is saved first, if it is.
func (x *Compress) checkSave(op string, a CompressArgs) error {
	if !x.cfg.Save {
		if !a.KvScore.IsZero() || !a.Ape.IsZero() {
			return pkg.Wrong(op, "KvScore, Ape", a.KvScore, "absent without CompressConfig.Save")
		}
		return nil
	}
	tokens := x.tokens(a)
	if err := pkg.Grid(x.dev, op, "Slots", tokens, 1, 0); err != nil {
		return err
	}
	if x.cfg.Compression.Ungated {
		if !a.Ape.IsZero() {
			return pkg.Wrong(op, "Ape", a.Ape, "absent with Compression.Ungated")
		}
		if err := pkg.CheckRows(op, "KvScore", a.KvScore, tensor.F32, -1, x.cfg.Compression.Dim); err != nil {
			return err
		}
	} else if err := checkInputs(op, x.cfg.Compression, a.KvScore, a.Ape); err != nil {
		return err
	}
	if tokens > a.KvScore.Shape[0] {
		return pkg.Wrong(op, "KvScore", a.KvScore, "at least %d rows, one a token", tokens)
	}
	return pkg.Reach(x.dev, op, x.Variant(), opkit.Target{Name: "KvScore", T: a.KvScore, Align: 16})
}
