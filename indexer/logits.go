package indexer

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// LogitsConfig says what a Logits is built for.
type LogitsConfig struct {
	Heads    int                  // 1 to 128
	Format   cache.IndexKeyFormat // of queries and keys
	Page     int                  // keys per page of the caches it will read
	Group    int                  // tokens in a row that usually share a request: 0 or 1 for decode, more for prefill
	MaxBytes uint64               // size of the largest pool or output; 0: whatever a descriptor of the device can hold
	Variant  string               // "" picks the best

	// Workgroups is the number of workgroups that fill the device; 0 asks the device. Results
	// depend neither on it nor on Group.
	Workgroups int

	// Raw takes queries and weights as in LogitsArgs.Raw; the kernel of the scores turns and
	// quantises them. It needs the variant cm with matrices in lanes; NewLogits fails with
	// vk.ErrMissingFeature on other devices.
	Raw bool
	// Few says that launches have few tokens, and so workgroups few entries each: with Raw more
	// subgroups then share the work on the queries, and the launch of a Select may pick, too.
	// Results do not depend on it.
	Few bool

	// Blocks is the number of candidate blocks of a token, in LogitsArgs.Blocks: columns are then
	// the entries of these, and tokens share no keys, whatever Group is; a row of
	// LogitsArgs.BlockTable has at most 2^31 slots. 0: columns are all entries.
	Blocks int
	Block  int // entries of a candidate block, a power of two up to MaxBlock; unused without any

	tops     bool        // LogitsArgs.tops will be written
	picks    *scorePicks // the launch picks, too
	onDemand bool        // see SelectConfig.OnDemand
}

// LogitsArgs are the tensors of one Logits.
type LogitsArgs struct {
	Q          tensor.Tensor       // [T, H, 128] u8 E4M3, or [T, H, 64] u8 with two E2M1 codes a byte, the even one low
	QScale     tensor.Tensor       // [T, H, 4] u8 UE8M0, each of 32 numbers; absent for FP8
	Weights    tensor.Tensor       // [T, H] f32, of any sign
	Keys       cache.IndexKeyCache // scales of FP8 keys: any positive f32
	BlockTable tensor.Tensor       // [R, W] i32 pages of each request
	TokenToReq tensor.Tensor       // [T] i32 row of BlockTable
	Lens       tensor.Tensor       // [T] i32 entries that a token may see, 0 (or less) for padding
	Blocks     tensor.Tensor       // [T, LogitsConfig.Blocks] i32 candidate blocks; Lens are then CandidateBlocks.Columns
	First      int                 // entry of column 0 of Out
	Out        tensor.Tensor       // [T, width] f32, written where First+column < Lens[t], elsewhere left as it is
	Raw        RawQueries          // with LogitsConfig.Raw, in place of Q, QScale and Weights

	tops tensor.Tensor // [T, W] i32, with LogitsConfig.tops: see idx_logits_lanes.comp
}

// Logits scores compressed entries, read in place from pages: for entry n of token
// t's request, First <= n < First+width and n < Lens[t],
//
//	FP8    out[t][n-First] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
//	MXFP4  out[t][n-First] = sum_h relu(dot[h]) * weights[t][h],  dot[h] =
//	       sum_b 2^(sq[t][h][b]-127) * 2^(sk[n][b]-127) * sum_{d in b} q[t][h][d] * k[n][d]
//
// with f32 sums. Entries below Lens[t] are the causal range; there is no other mask. So one form
// serves decode, where each token has its own request, and prefill, where each token of a request
// has its own length.
//
// With LogitsConfig.Blocks, of S = LogitsConfig.Block entries, entry n of a token is entry
// Blocks[t][n/S]*S + n%S of its request, and Lens counts entries of its blocks: what package cache
// keeps in pages is read block by block.
//
// An entry without a page (beyond the table, negative, beyond the pool, or of a request outside
// the table) gets -Inf. E4M3 NaN codes, which no finite number is quantised to, make the logits of
// that key, or of that query's token, any number or NaN.
//
// The definition is LogitsRef. A variant gives the same bits on every run of a
// device, whatever First, width, Group and the other tokens are. In MXFP4, cm counts
// a block of a row (query head or key) whose scale is below 2^-24 of the row's largest
// with fewer bits, and from 2^-30 on as zero. So do half and dot, and where a device's dot products
// take subnormal numbers for zeros, dot from 2^-14 on. The other variants keep every scale.
//
// Sources: DeepGEMM fp8_paged_mqa_logits (csrc/apis/attention.hpp,
// tests/test_attention.py), and vLLM sparse_attn_indexer.py, which calls it.
type Logits struct {
	dev     *vk.Device
	cfg     LogitsConfig
	tune    *tuning.Logits
	variant string
	tiling  cmTiling // of the cooperative-matrix variants
	inLanes bool     // the kernel is idx_logits_lanes, not idx_logits_cm
	lanes   laneTiling
	shared  bool // the kernel is idx_logits_prompt, not idx_logits_lanes
	prompt  promptTiling
	k       *opkit.Later
}

// idxLogitsPush is the push block of idx_logits.comp and of its kernels with matrices.
type idxLogitsPush struct {
	QAddr, QScaleAddr           uint64
	WeightsAddr, BlockTableAddr uint64
	TokenToReqAddr, LensAddr    uint64
	KeysAddr, DstAddr, SideAddr uint64
	KeysStride, KeysPages       uint32
	Tokens, Heads               uint32
	First, Width                uint32
	Requests, TableWidth        uint32
	Chunk, SideWidth            uint32
	TableAddr                   uint64
	SoftmaxScale, HeadScale     float32
}

// block is the constant BLOCKS of the kernels: entries of a candidate block, 0 without these.
func (c *LogitsConfig) block() int {
	if c.Blocks == 0 {
		return 0
	}
	return c.Block
}

// baseKeys is the number of entries that a workgroup takes in the builds without matrices.
const baseKeys = 128

// baseHeads is their constant HEADS, 0 for its default.
func (o *Logits) baseHeads() int {
	if o.cfg.Heads <= 32 {
		return 32
	}
	return 0
}

// NewLogits chooses the variant and builds its kernel. The device owns the kernel; there is nothing
// to close. For cm a short launch finds out how matrices lie in a subgroup's lanes.
//
// Errors: vk.ErrArgument for an unknown format or variant, a page or number of heads out of range,
// or a variant that cannot hold MaxBytes; *vk.MissingError or vk.ErrMissingFeature for a variant
// that the device cannot run; those of vk.Device.Kernel and of a launch.
func NewLogits(dev *vk.Device, cfg LogitsConfig) (*Logits, error) {
	return newLogits(dev, cfg, cmChoose, true)
}

type cmChooser func(caps *vk.Caps, tune *tuning.Profile, element string, heads, tokens int) (cmTiling, error)

func newLogits(dev *vk.Device, cfg LogitsConfig, choose cmChooser, inLanes bool) (*Logits, error) {
	const op = "logits"
	tune := &tuning.Of(dev).Logits
	if err := opkit.FirstError(
		checkFormat(op, cfg.Format),
		pkg.Range(op, "Heads", cfg.Heads, 1, MaxHeads),
		pkg.Range(op, "Group", cfg.Group, 0, math.MaxInt32),
		pkg.Range(op, "Blocks", cfg.Blocks, 0, math.MaxInt32/MaxBlock),
		pkg.Range(op, "Workgroups", cfg.Workgroups, 0, math.MaxInt32),
	); err != nil {
		return nil, err
	}
	if _, err := cache.NewIndexKeyLayout(cfg.Format, cfg.Page, 0); err != nil {
		return nil, pkg.Wrong(op, "Page", cfg.Page, "a legal page size: %v", err)
	}
	if cfg.Workgroups == 0 {
		device := &tuning.Of(dev).Device
		cfg.Workgroups = device.WorkgroupsOf(dev.Adapter(), device.PerUnit)
	}
	if cfg.Blocks > 0 {
		if err := checkBlock(op, "Block", cfg.Block); err != nil {
			return nil, err
		}
		cfg.Group = 0
	}
	o := &Logits{dev: dev, cfg: cfg, tune: tune}
	if err := o.choose(op, choose); err != nil {
		return nil, err
	}
	if o.variant == opkit.CM && inLanes && !o.tiling.codes {
		var err error
		if o.lanes, o.inLanes, err = lanesChoose(dev, tune, cfg); err != nil {
			return nil, err
		}
		if o.inLanes {
			o.prompt, o.shared = promptFit(dev.Caps(), tuning.Of(dev), cfg, o.lanes)
		}
	}
	if cfg.Raw && !o.inLanes {
		return nil, fmt.Errorf("%s: %s: %w: variant %s does not quantise queries here", pkg, op, vk.ErrMissingFeature, o.variant)
	}
	if o.k = pkg.Later(dev, o.spec()); cfg.onDemand {
		return o, nil
	}
	return o, opkit.Ask(o.k)
}

// spec is the build of the kernel.
func (o *Logits) spec() opkit.Spec {
	spec := opkit.Spec{
		Stem: "idx_logits", Variant: o.variant,
		Bindings:  []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Read, vk.Read},
		Push:      idxLogitsPush{},
		Constants: []uint32{uint32(o.cfg.Page), uint32(o.cfg.Format)},
	}
	if o.shared {
		spec.Stem, spec.Subgroup = "idx_logits_prompt", uint32(o.prompt.subgroup)
		spec.Constants = append(spec.Constants, o.prompt.constants()...)
	} else if o.inLanes {
		spec.Stem = "idx_logits_lanes"
		spec.Subgroup = uint32(o.lanes.subgroup)
		spec.Constants = append(spec.Constants, o.lanes.constants(o.cfg.tops, o.cfg.block())...)
		if o.cfg.Raw {
			spec.Stem = "idx_logits_lanes_raw"
		}
		if o.cfg.picks != nil {
			spec.Stem = "idx_logits_lanes_picks"
			spec.Push = idxLogitsPicksPush{}
			spec.Constants = append(spec.Constants, o.cfg.picks.constants(o.lanes.threads())...)
		}
	} else if o.matrix() {
		if o.tiling.codes {
			spec.Stem = "idx_logits_codes"
		}
		spec.Subgroup = uint32(o.tiling.subgroup)
		spec.Constants = append(spec.Constants, o.tiling.constants()...)
	} else {
		spec.Constants = append(spec.Constants, uint32(o.tune.BaseUnroll))
		spec.Constants = opkit.AppendNonzero(spec.Constants, o.cfg.block(), o.baseHeads())
	}
	return spec
}

// choose picks the variant: the one asked for, else the best that the device has the
// features and, for products, a shape for.
func (o *Logits) choose(op string, choose cmChooser) (err error) {
	o.variant, err = pkg.ChooseOn(o.dev, op, opkit.Builds("idx_logits"), o.cfg.Variant, o.cfg.MaxBytes, func(v string) (err error) {
		if v == opkit.CM {
			o.tiling, err = choose(o.dev.Caps(), tuning.Of(o.dev), "f16", o.cfg.Heads, max(o.cfg.Group, 1))
			if err == nil && o.cfg.Blocks > 0 {
				o.tiling.ofBlocks(o.dev.Caps(), tuning.Of(o.dev), o.cfg.Block)
			}
		}
		return err
	})
	if err == nil && o.variant == opkit.CM {
		err = o.chooseCodes(choose)
	}
	if t := &o.tiling; err == nil && o.variant == opkit.CM && !t.codes {
		t.rows, err = pkg.MatrixRows(o.dev, opkit.CM, t.m, t.n, t.k, t.subgroup, t.rows)
	} else if !t.codes {
		t.rows = 0
	}
	return err
}

// codesFit is the tiling for matrices of E4M3, where the profile asks for them and a shape fits.
func codesFit(caps *vk.Caps, tune *tuning.Profile, cfg *LogitsConfig, choose cmChooser) (t cmTiling, ok bool) {
	lacks := len(caps.Missing(shaders.Requires("idx_logits_codes_cm"))) > 0
	if !tune.Logits.MatrixCodes || cfg.Blocks > 0 || cfg.Format != cache.IndexKeyFP8 || lacks {
		return t, false
	}
	t, err := choose(caps, tune, "e4m3", cfg.Heads, max(cfg.Group, 1))
	return t, err == nil
}

// chooseCodes takes matrices of E4M3 where they fit and the device's are exact.
func (o *Logits) chooseCodes(choose cmChooser) error {
	t, ok := codesFit(o.dev.Caps(), tuning.Of(o.dev), &o.cfg, choose)
	if !ok {
		return nil
	}
	exact, rows, err := pkg.MatrixCodes(o.dev, t.m, t.n, t.k, t.subgroup, t.rows)
	if exact {
		o.tiling = t
		o.tiling.rows = rows
	}
	return err
}

func (o *Logits) matrix() bool { return o.variant == opkit.CM }

// Variant is the name of the variant that was chosen.
func (o *Logits) Variant() string { return o.variant }

// Record checks the arguments and records the launch. Lengths, tables and requests
// are read when the commands run. Errors: vk.ErrArgument, with nothing recorded;
// those of vk.Recorder.Dispatch.
func (o *Logits) Record(rec *vk.Recorder, a LogitsArgs) error {
	const op = "logits"
	if err := o.check(op, a); err != nil {
		return err
	}
	t, width := a.Out.Shape[0], a.Out.Shape[1]
	if t == 0 || width == 0 {
		return nil
	}
	groups, chunk, err := o.grid(op, t, a.First, width)
	if err != nil {
		return err
	}
	push := o.push(a, chunk)
	targets := o.targets(a)
	if o.inLanes && o.cfg.Blocks == 0 && o.cfg.tops {
		targets = append(targets, opkit.Target{Name: "tops", T: a.tops, Access: vk.Write, Align: 16})
	}
	kernel, err := o.k.Kernel()
	if err != nil {
		return err
	}
	return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{Kernel: kernel, Groups: groups, Push: vk.Bytes(&push)}, targets...)
}

// push is the push block of a launch.
func (o *Logits) push(a LogitsArgs, chunk int) idxLogitsPush {
	t, width := a.Out.Shape[0], a.Out.Shape[1]
	push := idxLogitsPush{
		QAddr: address(a.Q), QScaleAddr: address(opkit.Or(a.QScale, a.Q)), WeightsAddr: address(a.Weights),
		BlockTableAddr: a.BlockTable.View().Address(), TokenToReqAddr: a.TokenToReq.View().Address(), LensAddr: a.Lens.View().Address(),
		KeysAddr: a.Keys.Pool.View().Address(), DstAddr: a.Out.View().Address(),
		KeysStride: uint32(a.Keys.Layout.Stride), KeysPages: uint32(a.Keys.Pages()),
		Tokens: uint32(t), Heads: uint32(o.cfg.Heads), First: uint32(a.First), Width: uint32(width),
		Requests: uint32(a.BlockTable.Shape[0]), TableWidth: uint32(a.BlockTable.Shape[1]), Chunk: uint32(chunk),
	}
	if o.cfg.Blocks > 0 {
		push.SideAddr, push.SideWidth = a.Blocks.View().Address(), uint32(o.cfg.Blocks)
	} else if o.inLanes && o.cfg.tops {
		push.SideAddr, push.SideWidth = a.tops.View().Address(), uint32(a.tops.Shape[1])
	}
	if o.cfg.Raw {
		push.raw(a.Raw)
	}
	return push
}

// targets lists the memory that base binds and the other variants reach by address.
func (o *Logits) targets(a LogitsArgs) []opkit.Target {
	queries := []opkit.Target{
		{Name: "Q", T: a.Q, Access: vk.Read, Align: 16}, {Name: "QScale", T: opkit.Or(a.QScale, a.Q), Access: vk.Read, Align: 4},
		{Name: "Weights", T: a.Weights, Access: vk.Read, Align: 4},
	}
	if !a.Raw.isZero() {
		queries = a.Raw.targets()
	}
	queries = append(queries, []opkit.Target{
		{Name: "BlockTable", T: a.BlockTable, Access: vk.Read, Align: 4},
		{Name: "TokenToReq", T: a.TokenToReq, Access: vk.Read, Align: 4}, {Name: "Lens", T: a.Lens, Access: vk.Read, Align: 4},
		{Name: "Out", T: a.Out, Access: vk.Write, Align: 4},
		{Name: "Keys.Pool", T: a.Keys.Pool, Access: vk.Read, Align: 16},
	}...)
	if o.cfg.Blocks == 0 && o.variant != opkit.Base {
		return queries
	}
	return append(queries, opkit.Target{Name: "Blocks", T: opkit.Or(a.Blocks, a.Lens), Access: vk.Read, Align: 4})
}

// grid is the number of workgroups and, for builds with matrices, the fewest tiles of each.
func (o *Logits) grid(op string, t, first, width int) (groups [3]uint32, chunk int, err error) {
	x, y := opkit.CeilDiv(width, baseKeys), t
	if o.shared {
		x, y = o.prompt.grid(o.tune, o.cfg.Workgroups/tuning.Of(o.dev).Device.PerUnit, t, width)
		chunk = 1
	} else if o.inLanes {
		x, chunk = o.lanes.shares(o.tune, o.cfg.Workgroups, t, width), 1
	} else if o.matrix() {
		x, y, chunk = o.tiling.grid(o.tune, o.cfg.Workgroups, t, first, width)
	}
	limit := o.dev.Caps().MaxWorkgroupCount
	if y > int(limit[1]) {
		return groups, 0, pkg.Wrong(op, "Out", fmt.Sprintf("%d tokens", t), "at most %d on this device", int(limit[1])*(t/y))
	}
	if x > int(limit[0]) {
		columns := int(limit[0]) * (width / x)
		return groups, 0, pkg.Wrong(op, "Out", fmt.Sprintf("%d columns", width), "at most %d columns on this device", columns)
	}
	return [3]uint32{uint32(x), uint32(y), 1}, chunk, nil
}

func (o *Logits) check(op string, a LogitsArgs) error {
	t := a.tokens()
	if err := opkit.FirstError(
		o.checkQueries(op, t, a),
		pkg.Check(op, "BlockTable", a.BlockTable, tensor.I32, -1, -1),
		pkg.Check(op, "TokenToReq", a.TokenToReq, tensor.I32, t),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		pkg.CheckRows(op, "Out", a.Out, tensor.F32, t, -1),
		a.Keys.Check(string(pkg)+": "+op),
	); err != nil {
		return err
	}
	if err := o.checkBlocks(op, t, a); err != nil {
		return err
	}
	switch l := a.Keys.Layout; {
	case l.Format != o.cfg.Format:
		return pkg.Wrong(op, "Keys.Layout.Format", l.Format, "%v, which the kernel was built for", o.cfg.Format)
	case l.Page != o.cfg.Page:
		return pkg.Wrong(op, "Keys.Layout.Page", l.Page, "%d, which the kernel was built for", o.cfg.Page)
	case a.BlockTable.Shape[0] < 1 || a.BlockTable.Shape[1] < 1:
		return pkg.Wrong(op, "BlockTable", a.BlockTable, "at least one row and one page in it")
	case a.First < 0 || a.First > math.MaxInt32-a.Out.Shape[1]:
		return pkg.Wrong(op, "First", a.First, "0 or more, with the %d columns of Out below 2^31", a.Out.Shape[1])
	}
	return pkg.Reach(o.dev, op, o.variant, o.targets(a)...)
}

// checkBlocks checks candidate blocks; the columns have to be entries of them.
func (o *Logits) checkBlocks(op string, t int, a LogitsArgs) error {
	if o.cfg.Blocks == 0 {
		if !a.Blocks.IsZero() {
			return pkg.Wrong(op, "Blocks", a.Blocks, "absent: LogitsConfig.Blocks is 0")
		}
		return nil
	}
	// Block -1 begins at entry 2^32-Block, which has to lie beyond every table.
	if slots := uint64(a.BlockTable.Shape[1]) * uint64(o.cfg.Page); slots > 1<<31 {
		return pkg.Wrong(op, "BlockTable", a.BlockTable, "at most 2^31 slots of a request, not %d", slots)
	}
	// In whole fours, as rows of scores are.
	if most := opkit.RoundUp(o.cfg.Blocks*o.cfg.Block, 4); a.First+a.Out.Shape[1] > most {
		return pkg.Wrong(op, "Out", a.Out, "at most %d columns, the entries of %d blocks", most, o.cfg.Blocks)
	}
	return pkg.Check(op, "Blocks", a.Blocks, tensor.I32, t, o.cfg.Blocks)
}

// checkQueries checks queries and weights of heads.
func (o *Logits) checkQueries(op string, t int, a LogitsArgs) error {
	if o.cfg.Raw {
		return o.checkRaw(op, t, a)
	}
	if !a.Raw.isZero() {
		return pkg.Wrong(op, "Raw", a.Raw.Q, "absent without LogitsConfig.Raw")
	}
	h := o.cfg.Heads
	if err := opkit.FirstError(
		pkg.Check(op, "Q", a.Q, tensor.U8, t, h, o.cfg.Format.RowBytes()),
		pkg.Check(op, "Weights", a.Weights, tensor.F32, t, h),
	); err != nil {
		return err
	}
	if o.cfg.Format == cache.IndexKeyMXFP4 {
		return pkg.Check(op, "QScale", a.QScale, tensor.U8, t, h, Blocks)
	}
	if !a.QScale.IsZero() {
		return pkg.Wrong(op, "QScale", a.QScale, "absent: an FP8 scale goes into the weight")
	}
	return nil
}
