package indexer

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// MaxK is the largest width of a selection on a device with at least 32 KiB of
// shared memory; with less it is half of that.
const MaxK = 2048

// TopKVariants are the variants of TopK: one build, which needs no feature.
var TopKVariants = opkit.Ladder("idx_topk", VariantBase)

// TopKConfig says what a TopK is built for.
type TopKConfig struct {
	K       int    // width of the selection, 1 to MaxK
	Variant string // "" or "base"

	// Workgroups is how many workgroups it takes to fill the device; long rows are
	// sliced where there are fewer rows. 0: what suits the kind of device.
	Workgroups int
	// Threads is the invocations of a workgroup, a power of two of at least 64; 0:
	// what suits the device and the number of rows.
	Threads int
}

// TopKArgs are the tensors of one TopK.
type TopKArgs struct {
	Logits  tensor.Tensor // [T, N] f32; columns from Lens[t] on are not read
	Lens    tensor.Tensor // [T] i32: columns of a row that count, clamped to 0..N
	Out     tensor.Tensor // [T, K] i32, written
	Scratch vk.View       // ScratchBytes(T, N) bytes, device memory; absent when that is 0
}

// TopK selects the K largest logits of every row, exactly, and emits their columns
// in ascending order, followed by -1 where a row has fewer. Of equal logits the one
// with the smaller column is taken; -0 equals +0 and NaN equals -Inf. A row of at
// most K columns is not read. The definition is TopKRef; results are equal bit for
// bit, on every device and in every run.
//
// Source: vLLM persistent_topk (csrc/topk.cu), whose order of results and choice
// among equals are unspecified.
type TopK struct {
	dev        *vk.Device
	cfg        TopKConfig
	few, many  *vk.Kernel // for few rows, and for more of them than fill the device
	workgroups int
}

// idxTopkPush is the push block of idx_topk.comp.
type idxTopkPush struct {
	K, Width, First, Limit, Lists, SliceShift, Solo, Stage uint32
}

// Rows are sliced so that a slice is one load of a workgroup of 1024, and into no
// more slices than the selection from them takes one load either.
const (
	sliceColumns = 16384
	soloColumns  = 2 * sliceColumns // a row up to here is faster in one piece
	maxSlices    = 16
)

// topkShape is what a build of idx_topk is specialised for.
type topkShape struct {
	threads, held, bits int
}

// shared is the shared memory of a workgroup in bytes; see idx_topk.comp.
func (s topkShape) shared() int { return s.held*8 + 4<<s.bits + 1<<s.bits/8 + 20 }

func (s topkShape) constants() []uint32 {
	return []uint32{uint32(s.threads), uint32(s.held), uint32(s.bits)}
}

// topkShapes lists shapes, best first, for few rows or for many: many rows do better
// with smaller workgroups, of which two share a compute unit.
func topkShapes(many bool) []topkShape {
	if many {
		return []topkShape{{512, 2048, 10}, {512, 4096, 10}, {256, 3072, 10}, {128, 2048, 10}, {128, 1536, 8}}
	}
	return []topkShape{{1024, 4096, 11}, {512, 4096, 10}, {256, 3072, 10}, {128, 2048, 10}, {128, 1536, 8}}
}

// pickShape returns the best shape that the device can run for a K; threads other
// than 0 are taken as they are.
func pickShape(op string, dev *vk.Device, k, threads int, many bool) (topkShape, error) {
	caps := dev.Caps()
	limit := 0
	for _, s := range topkShapes(many) {
		if threads > 0 {
			s.threads = threads
		} else if dev.Adapter().Type == vk.TypeCPU {
			s.threads = min(s.threads, 128)
		}
		if s.shared() > int(caps.SharedMemory) || s.threads > int(caps.MaxWorkgroupInvocations) || s.held%s.threads != 0 || s.held > 32*s.threads {
			continue
		}
		// Room for half as many entries again keeps selections rare.
		if largest := s.held * 2 / 3; k <= largest {
			return s, nil
		} else {
			limit = max(limit, largest)
		}
	}
	return topkShape{}, pkg.Wrong(op, "K", k, "1 to %d, for %d invocations with %d bytes of shared memory", min(limit, MaxK), max(threads, 64), caps.SharedMemory)
}

// NewTopK builds the kernels. The device owns them; there is nothing to close.
//
// Errors: vk.ErrArgument for a K out of range or beyond what the device's shared
// memory holds, a number of threads that the device cannot run, or an unknown
// variant; those of vk.Device.Kernel.
func NewTopK(dev *vk.Device, cfg TopKConfig) (*TopK, error) {
	const op = "new top-k"
	if _, err := pkg.Choose(dev, op, TopKVariants, cfg.Variant, 0); err != nil {
		return nil, err
	}
	if err := opkit.First(pkg.Range(op, "K", cfg.K, 1, MaxK), pkg.Range(op, "Workgroups", cfg.Workgroups, 0, math.MaxInt32)); err != nil {
		return nil, err
	}
	if n := cfg.Threads; n != 0 && (n < 64 || n > int(dev.Caps().MaxWorkgroupInvocations) || bits.OnesCount(uint(n)) != 1) {
		return nil, pkg.Wrong(op, "Threads", n, "0 or a power of two from 64 to %d", dev.Caps().MaxWorkgroupInvocations)
	}
	o := &TopK{dev: dev, cfg: cfg, workgroups: cfg.Workgroups}
	if o.workgroups == 0 {
		o.workgroups = defaultWorkgroups(dev.Adapter().Type)
	}
	for _, x := range []struct {
		k    **vk.Kernel
		many bool
	}{{&o.few, false}, {&o.many, true}} {
		s, err := pickShape(op, dev, cfg.K, cfg.Threads, x.many)
		if err != nil {
			return nil, err
		}
		if *x.k, err = pkg.Kernel(dev, opkit.Spec{
			Stem: "idx_topk", Variant: VariantBase, Bindings: []vk.Access{vk.Read, vk.Read, vk.ReadWrite, vk.Write},
			PushSize: int(unsafe.Sizeof(idxTopkPush{})), Constants: s.constants(),
		}); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// defaultWorkgroups is how many workgroups are taken to fill a device.
func defaultWorkgroups(t vk.DeviceType) int {
	switch t {
	case vk.TypeDiscrete, vk.TypeVirtual:
		return 128
	case vk.TypeCPU:
		return 4
	}
	return 16
}

// Variant is the name of the variant that was chosen.
func (o *TopK) Variant() string { return VariantBase }

// K is the width of the selection.
func (o *TopK) K() int { return o.cfg.K }

// topkSlices is into how many slices rows of n columns are cut, a power of two, where
// so many workgroups fill the device.
func topkSlices(workgroups, t, n int) int {
	s := 1
	if n <= soloColumns {
		return s
	}
	for s < maxSlices && 2*s*t <= workgroups && 2*s*sliceColumns <= n {
		s *= 2
	}
	return s
}

// topkLists is the number of lists that so many slices of a row need in scratch,
// without one that is carried.
func topkLists(slices int) int {
	if slices > 1 {
		return 1 + slices
	}
	return 0
}

// listBytes is the size of n lists of candidates for t rows: K entries of a number
// and its place, and a bound.
func listBytes(t, n, k int) uint64 { return uint64(t) * uint64(n) * uint64(k+1) * 8 }

// ScratchBytes is how much scratch Record needs for T rows of N columns: 0, or where
// rows are sliced
//
//	T * (1 + S) * (K + 1) * 8
//
// with S slices of a row: the largest power of two of at most 16, N/16384 and
// Workgroups/T. With 128 workgroups and K = 1024 that is at most 1.2 MB.
func (o *TopK) ScratchBytes(t, n int) uint64 {
	return listBytes(t, topkLists(topkSlices(o.workgroups, t, n)), o.cfg.K)
}

// Record checks the arguments and records one launch, or two where rows are sliced.
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *TopK) Record(rec *vk.Recorder, a TopKArgs) error {
	const op = "top-k"
	t, n := opkit.Dim(a.Logits, 0), opkit.Dim(a.Logits, 1)
	if err := opkit.First(
		pkg.Check(op, "Logits", a.Logits, tensor.F32, -1, -1),
		pkg.Check(op, "Lens", a.Lens, tensor.I32, t),
		pkg.Check(op, "Out", a.Out, tensor.I32, t, o.cfg.K),
		pkg.Reach(o.dev, op, VariantBase, opkit.Target{Name: "Logits", T: a.Logits}, opkit.Target{Name: "Out", T: a.Out}),
		checkTokens(o.dev, op, "Logits", t),
		checkScratch(o.dev, op, a.Scratch, o.ScratchBytes(t, n)),
	); err != nil || t == 0 {
		return err
	}
	slices := topkSlices(o.workgroups, t, n)
	return o.record(rec, op, topkRound{logits: a.Logits, lens: a.Lens, out: a.Out, scratch: a.Scratch,
		slices: slices, lists: topkLists(slices), limit: n})
}

// checkTokens checks the number of tokens against the device's grid.
func checkTokens(dev *vk.Device, op, arg string, t int) error {
	if limit := int(dev.Caps().MaxWorkgroupCount[0]); t > limit {
		return pkg.Wrong(op, arg, fmt.Sprintf("%d tokens", t), "at most %d on this device", limit)
	}
	return nil
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

// topkRound is a selection from columns first.. of longer rows, whose best entries so
// far are carried in list 0 of the scratch. A round in which a row ends writes it to
// out.
type topkRound struct {
	logits, lens, out tensor.Tensor
	scratch           vk.View
	slices            int  // of a row
	lists             int  // of a row in scratch: the carried one and those of slices; 0: none
	first, limit      int  // limit: entries of a row at most
	beside            bool // other work is meant to run at the same time: leave shared memory for it
}

func (o *TopK) record(rec *vk.Recorder, op string, r topkRound) error {
	t, n := r.logits.Shape[0], r.logits.Shape[1]
	s := r.slices
	k := o.few
	if t*s > o.workgroups || r.beside && s == 1 && 2*t > o.workgroups {
		k = o.many
	}
	push := idxTopkPush{
		K: uint32(o.cfg.K), Width: uint32(n), First: uint32(r.first), Limit: uint32(r.limit), Lists: uint32(r.lists),
		SliceShift: uint32(bits.TrailingZeros(uint(s))), Solo: math.MaxUint32,
	}
	scratch := r.out.View() // what is bound and not used has to be this launch's own as well
	if r.lists > 0 {
		scratch = r.scratch
		scratch.Size = listBytes(t, r.lists, o.cfg.K)
	}
	d := vk.Dispatch{Kernel: k, Groups: [3]uint32{uint32(t), 1, 1}, Bind: []vk.View{r.logits.View(), r.lens.View(), scratch, r.out.View()}}
	if s > 1 {
		push.Solo, push.Stage = soloColumns, 1
		slices := d
		slices.Groups[1], slices.Push = uint32(s), vk.Bytes(&push)
		if err := pkg.Dispatch(rec, op, VariantBase, slices); err != nil {
			return err
		}
		push.Stage = 0
	}
	d.Push = vk.Bytes(&push)
	return pkg.Dispatch(rec, op, VariantBase, d)
}
