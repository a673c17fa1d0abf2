package indexer

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// MaxK is the largest width of a selection on a device with at least 32 KiB of shared memory; with
// less vk.ErrLimit forbids more than half of it.
const MaxK = 2048

// TopKConfig says what a TopK is built for.
type TopKConfig struct {
	K       int    // width of the selection, 1 to MaxK
	Variant string // a build, as vkmla info lists them; "" picks the best

	// Workgroups is the number of workgroups that fill the device; 0 asks the device. Long rows are
	// sliced where there are fewer rows than that.
	Workgroups int
	// Threads is the invocations of a workgroup, a power of two of at least 64; 0: what suits the
	// device and the number of rows.
	Threads int

	slotPage int  // see SelectConfig.SlotPage
	onDemand bool // see SelectConfig.OnDemand
}

// TopKArgs are the tensors of one TopK.
type TopKArgs struct {
	Logits  tensor.Tensor // [T, N] f32; columns from Lens[t] on are not read
	Lens    tensor.Tensor // [T] i32: columns of a row that count, clamped to 0..N
	Out     tensor.Tensor // [T, K] i32, written
	Scratch vk.View       // ScratchBytes(T, N) bytes, device memory; absent when that is 0
	Arrived tensor.Tensor // [T] i32, all 0, and left 0: counts slices, so that mostly one launch does; may be absent
}

// TopK selects the K largest logits of every row, exactly, and emits their columns in ascending
// order, followed by -1 where a row has fewer. Of equal logits the one with the smaller column is
// taken (TIE RULE marks the lines in each kernel); -0 equals +0 and NaN equals -Inf. A row of at
// most K columns is not read. The definition is TopKRef; results are equal bit for bit, on every
// device and in every run.
//
// Three kernels share the work:
//
//	idx_topk_tiles   a long row of one round, by tops that idx_logits_lanes wrote (Select only)
//	idx_topk_lanes   a row of one round that fits a workgroup, or slices of it with Arrived
//	idx_topk         everything else: the rounds of a Select whose context is longer than a
//	                 segment (prefill of 512 tokens: beyond 65,536), and devices without
//	                 subgroup operations; docs/tried.md says what its large builds gain
//
// Rows are read fastest where N is a multiple of 4.
//
// Source: vLLM persistent_topk (csrc/topk.cu), whose order of results and choice
// among equals are unspecified.
type TopK struct {
	dev *vk.Device
	cfg TopKConfig
	built
	short      []topkKernel // idx_topk for rows that fit registers, ascending
	lanes      []topkKernel // idx_topk_lanes, ascending; none where the device lacks its features
	few, many  *opkit.Later // idx_topk for rows of any length: few rows, and more than fill the device
	workgroups int          // that fill the device
	tune       *tuning.TopK
}

// topkKernel is a build and the most entries that a workgroup of it takes.
type topkKernel struct {
	kernel  *opkit.Later
	entries int
}

// idxTopkPush is the push block of idx_topk.comp.
type idxTopkPush struct {
	K, Width, First, Limit, Lists, SliceShift, Per, Solo, Stage, Flags uint32
	Requests, TableWidth                                               uint32
}

// topkAccess lists the uses that idx_topk.comp makes of its bindings.
var topkAccess = []vk.Access{vk.Read, vk.Read, vk.ReadWrite, vk.Write, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write}

// Flags of idxTopkPush.
const (
	topkWide  = 1 << iota // logits can be loaded by fours
	topkEarly             // what a workgroup loads does not depend on lengths
)

// NewTopK builds the kernels. The device owns them; there is nothing to close.
//
// Errors: vk.ErrArgument for a K out of range, a number of threads that the device cannot run or
// that has no room for K, or an unknown variant; vk.ErrLimit where the device's workgroups are too
// small for K; the others of vk.Device.Kernel.
func NewTopK(dev *vk.Device, cfg TopKConfig) (*TopK, error) {
	return newTopK(dev, cfg, &tuning.Of(dev).TopK)
}

func newTopK(dev *vk.Device, cfg TopKConfig, tune *tuning.TopK) (*TopK, error) {
	const op = "new top-k"
	variant, err := pkg.Choose(dev, op, opkit.Builds("idx_topk"), cfg.Variant, 0)
	if err != nil {
		return nil, err
	}
	if err := opkit.FirstError(pkg.Range(op, "K", cfg.K, 1, MaxK),
		pkg.Range(op, "Workgroups", cfg.Workgroups, 0, math.MaxInt32)); err != nil {
		return nil, err
	}
	if n := cfg.Threads; n != 0 && (n < 64 || n > int(dev.Caps().MaxWorkgroupInvocations) || bits.OnesCount(uint(n)) != 1) {
		return nil, pkg.Wrong(op, "Threads", n, "0 or a power of two from 64 to %d", dev.Caps().MaxWorkgroupInvocations)
	}
	o := &TopK{dev: dev, cfg: cfg, built: built(variant), workgroups: cfg.Workgroups, tune: tune}
	if o.workgroups == 0 {
		o.workgroups = tuning.Of(dev).Device.WorkgroupsOf(dev.Adapter(), 1)
	}
	var shapes []topkShape
	for _, list := range [][]tuning.TopKShape{tune.Few, tune.Many} {
		s, err := pickShape(op, dev.Caps(), cfg.K, cfg.Threads, tuning.SpareShare, list)
		if err != nil {
			return nil, err
		}
		shapes = append(shapes, s)
	}
	shapes = append(shapes, shortShapes(dev.Caps(), cfg.Threads, tune.Short)...)
	kernels := make([]*opkit.Later, len(shapes))
	for i, s := range shapes {
		kernels[i] = pkg.Later(dev, opkit.Spec{
			Stem: "idx_topk", Variant: variant, Bindings: topkAccess,
			Push: idxTopkPush{}, Constants: append(s.constants(), uint32(cfg.slotPage)),
		})
	}
	o.few, o.many = kernels[0], kernels[1]
	for i, k := range kernels[2:] {
		o.short = append(o.short, topkKernel{k, shapes[2+i].entries()})
	}
	o.buildLanes()
	if cfg.onDemand && shapes[0].fits(dev.Caps()) && shapes[1].fits(dev.Caps()) {
		return o, nil
	}
	for _, l := range o.lanes {
		kernels = append(kernels, l.kernel)
	}
	return o, opkit.Ask(kernels...)
}

// topkSlices returns the number of slices of a row, a power of two, for t rows of n columns on a
// device that `workgroups` workgroups fill.
func topkSlices(tune *tuning.TopK, workgroups, t, n int) int {
	s := 1
	for n > tune.SoloColumns && s < tune.MaxSlices && 2*s*t <= workgroups && 2*s*tune.SliceColumns <= n {
		s *= 2
	}
	return s
}

// topkLists is the number of lists that the slices of a row need in scratch, and the carried one.
func topkLists(slices int) int {
	if slices > 1 {
		return 1 + slices
	}
	return 0
}

// listStride is the room for the entries of a list, which are read by fours.
func listStride(k int) int { return (k + 3) &^ 3 }

// listBytes is the size of n lists of candidates for t rows: keys, then columns, and
// a bound of the row.
func listBytes(t, n, k int) uint64 { return uint64(t) * (uint64(n)*uint64(listStride(k))*8 + 16) }

// ScratchBytes returns the bytes of scratch that Record needs for T rows of N columns. It is 0
// where rows are not sliced: if they are short, or if more than half of Workgroups. Otherwise it is
// at most
//
//	T * ((1 + S) * K' * 8 + 16)
//
// with K' the width rounded up to 4 and S slices of a row, a power of two. S is at most what the
// device's profile allows, and S*T at most Workgroups, which bounds the size for any T and N.
func (o *TopK) ScratchBytes(t, n int) uint64 {
	lists := o.lists(t, n)
	if lists == 0 {
		return 0
	}
	return listBytes(t, lists, o.cfg.K)
}

// lists returns the number of lists that the slices of a row need, 0 where rows are not sliced.
func (o *TopK) lists(t, n int) int {
	lists := topkLists(o.slices(t, n))
	if _, s, _ := o.planLanes(t, n, o.tune.MaxSlices); s > 1 {
		lists = max(lists, s)
	}
	return lists
}

func (o *TopK) slices(t, n int) int { return topkSlices(o.tune, o.workgroups, t, n) }

// Record checks the arguments and records one launch, or two where rows are sliced that
// are too long for one, or Arrived is absent.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *TopK) Record(rec *vk.Recorder, a TopKArgs) error {
	const op = "top-k"
	t, n := opkit.DimOrZero(a.Logits, 0), opkit.DimOrZero(a.Logits, 1)
	if err := opkit.FirstError(
		pkg.Check(op, "Logits", a.Logits, tensor.F32, -1, -1),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		pkg.Check(op, "Out", a.Out, tensor.I32, t, o.cfg.K),
		pkg.Bindable(o.dev, op, "Logits", a.Logits),
		pkg.Bindable(o.dev, op, "Out", a.Out),
		pkg.Grid(o.dev, op, "Logits", t, 1, 0),
		checkScratch(o.dev, op, a.Scratch, o.ScratchBytes(t, n)),
		pkg.Optional(op, "Arrived", a.Arrived, tensor.I32, t),
	); err != nil || t == 0 {
		return err
	}
	return o.record(rec, op, topkRound{logits: a.Logits, lens: a.Lens, out: a.Out, scratch: a.Scratch, arrived: a.Arrived,
		slices: o.slices(t, n), lists: o.lists(t, n), limit: n})
}

// checkScratch checks that scratch has the bytes that are needed.
func checkScratch(dev *vk.Device, op string, v vk.View, need uint64) error {
	switch align := dev.Caps().StorageAlignment; {
	case need == 0:
	case v.Buffer == nil || v.Size < need:
		return pkg.Wrong(op, "Scratch", fmt.Sprintf("%d bytes", v.Size), "%d bytes", need)
	case v.Offset%align != 0:
		return pkg.Wrong(op, "Scratch", fmt.Sprintf("offset %d", v.Offset), "a multiple of %d", align)
	}
	return nil
}

// topkRound is a selection from columns first.. of longer rows, whose best entries so far are
// carried in list 0 of the scratch. The round in which a row ends writes it to out.
type topkRound struct {
	logits, lens, out tensor.Tensor
	slots             PickSlots
	requests          tensor.Tensor // of the tokens; with slots only
	scratch           vk.View
	arrived           tensor.Tensor // may be absent
	slices            int           // of a row
	lists             int           // of a row in scratch: the carried one and those of slices; 0: none
	first, limit      int           // limit: entries of a row at most
	tops              tensor.Tensor // of the only round, for tiles
	tiles             *tileTopK     // nil: not by tiles
}

// kernels are those that a round launches.
func (o *TopK) kernels(r topkRound) (list []*opkit.Later) {
	if r.tiles != nil {
		return []*opkit.Later{r.tiles.kernel}
	}
	if k, _, _ := o.roundLanes(r); k != nil {
		return []*opkit.Later{k.kernel}
	}
	for _, p := range o.passes(r) {
		list = append(list, o.pick(r.logits.Shape[0]*p.slices, p.entries))
	}
	return list
}

// topkPass is a launch of idx_topk: slices of a row, and the most entries of each.
type topkPass struct{ slices, entries int }

// passes are the launches of idx_topk for a round.
func (o *TopK) passes(r topkRound) []topkPass {
	n, stride, carried := r.logits.Shape[1], listStride(o.cfg.K), 0
	if r.first > 0 {
		carried = stride
	}
	if r.slices == 1 {
		return []topkPass{{1, carried + n}}
	}
	per := slicePer(n, r.slices)
	return []topkPass{{r.slices, per}, {1, carried + max(o.solo(per), r.slices*stride)}}
}

// slicePer is the most columns of each of some slices of n columns.
func slicePer(n, slices int) int { return opkit.RoundUp(opkit.CeilDiv(n, slices), 32) }

// pick returns the kernel for `groups` workgroups of `entries` entries each.
func (o *TopK) pick(groups, entries int) *opkit.Later {
	for _, k := range o.short {
		if entries <= k.entries {
			return k.kernel
		}
	}
	if groups > o.workgroups {
		return o.many
	}
	return o.few
}

// bind gives the push constants of a round whose rows are whole, and what its launches bind.
func (o *TopK) bind(r topkRound) (push idxTopkPush, views []vk.View) {
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	push = idxTopkPush{
		K: uint32(o.cfg.K), Width: uint32(n), First: uint32(r.first), Limit: uint32(r.limit), Lists: uint32(r.lists),
		SliceShift: uint32(bits.TrailingZeros(uint(r.slices))), Solo: math.MaxUint32,
	}
	if n%4 == 0 && r.logits.View().Offset%16 == 0 {
		push.Flags = topkWide
	}
	scratch := r.out.View() // an unused binding, too, has to be memory of this launch
	if r.lists > 0 {
		scratch = r.scratch
		scratch.Size = listBytes(t, r.lists, o.cfg.K)
	}
	place, count, table, requests := o.bindSlots(r)
	push.Requests, push.TableWidth = r.table()
	return push, []vk.View{r.logits.View(), r.lens.View(), scratch, r.out.View(), r.logits.View(), table, requests, place, count}
}

// registers returns the most entries of a row that a short kernel takes.
func (o *TopK) registers() int {
	if len(o.short) == 0 {
		return 0
	}
	return o.short[len(o.short)-1].entries
}

// solo is the longest row that is not sliced where others are cut into slices of per columns.
func (o *TopK) solo(per int) int {
	if per > o.registers() {
		return min(per, o.tune.SoloColumns)
	}
	return per
}

func (o *TopK) record(rec *vk.Recorder, op string, r topkRound) error {
	if r.tiles != nil {
		return o.recordTiles(rec, op, r)
	}
	if done, err := o.recordLanes(rec, op, r); done || err != nil {
		return err
	}
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	passes := o.passes(r)
	push, views := o.bind(r)
	launch := func(pass topkPass, p idxTopkPush) error {
		kernel, err := o.pick(t*pass.slices, pass.entries).Kernel()
		if err != nil {
			return err
		}
		return pkg.Dispatch(rec, op, o.Variant(), vk.Dispatch{
			Kernel: kernel, Groups: [3]uint32{uint32(t), uint32(pass.slices), 1}, Bind: views, Push: vk.Bytes(&p)})
	}
	registers := o.registers()
	if r.slices == 1 {
		if r.first == 0 && n <= registers {
			push.Flags |= topkEarly
		}
		return launch(passes[0], push)
	}
	// Slices that fit registers are the same for all lengths, so that they can be loaded before
	// lengths are known. Others share out a row's own length.
	per := slicePer(n, r.slices)
	push.Solo = uint32(o.solo(per))
	slices := push
	slices.Stage = 1
	if per <= registers {
		push.Per, slices.Per = uint32(per), uint32(per)
		slices.Flags |= topkEarly
	}
	if err := launch(passes[0], slices); err != nil {
		return err
	}
	return launch(passes[1], push)
}
