package vk

// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	vulkan "github.com/goki/vulkan"

	"github.com/vkmla/vkmla/internal/door"
)

const (
	stageTransfer = 0x1000
	stageCompute  = 0x800
	stageHost     = 0x4000

	accessShaderRead    = 0x20
	accessShaderWrite   = 0x40
	accessTransferRead  = 0x800
	accessTransferWrite = 0x1000
	accessHostRead      = 0x2000
	accessHostWrite     = 0x4000
)

// maxTimestamps bounds the timestamps of one Commands.
const maxTimestamps = 8192

// markChunk timestamps are reset at a time, as they are needed. To reset all of them costs
// every submission tens of microseconds.
const markChunk = 32

// Recorder records commands. It is used from one goroutine; End turns it into
// Commands, Close gives up what was recorded. Commands take effect in the order of
// recording, as far as they touch the same bytes.
type Recorder struct {
	dev   *Device
	pool  vulkan.CommandPool
	cmd   vulkan.CommandBuffer
	query vulkan.QueryPool
	marks int

	pending    []use // accesses since the last barrier
	barriers   int
	dispatches int
	operations int // launches, fills and copies
	parts      splitting
	sections   []sectionMark // nil unless sections are timed
	waits      []int         // then: launches recorded before each place that waits for all of them
	sectionErr error
	whole      bool // everything is one section
	hostSees   bool // something was written that the host reads where it is
	hostRead   bool // something of that in host memory: the barrier for it counts
	sets       map[string]boundSet
	held       map[*Buffer]bool
	writes     map[*Buffer]ranges // of tracked buffers
	proof      proof
	mayStarve  bool
	ended      bool
}

type boundSet struct {
	bindings int
	set      vulkan.DescriptorSet
}

// use is one access to a byte range by one pipeline stage.
type use struct {
	view   View
	access Access
	stage  uint32
}

// Dispatch is one launch of a kernel.
type Dispatch struct {
	Kernel *Kernel   // of the recorder's device
	Groups [3]uint32 // workgroups in x, y, z; all at least 1
	Bind   []View    // one for each of the kernel's bindings, in order
	Reach  []Reach   // memory that the kernel reaches by device address
	Push   []byte    // push constants, exactly the kernel's PushSize

	// Products bounds the multiply-adds of the launch, for Split.Count; 0: few.
	Products float64
}

// Reach is memory that a kernel reaches by device address, named so that barriers
// can be derived and the buffer stays alive.
type Reach struct {
	View   View
	Access Access
}

// NewRecorder starts recording.
//
// Errors: ErrDeviceLost, ErrClosed, ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (d *Device) NewRecorder() (*Recorder, error) {
	const op = "new recorder"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	r := &Recorder{dev: d, sets: map[string]boundSet{}, held: map[*Buffer]bool{}}
	pi := vulkan.CommandPoolCreateInfo{
		SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: uint32(d.adapter.raw.queueFamily),
	}
	var pool vulkan.CommandPool
	code := vulkan.CreateCommandPool(d.h, &pi, nil, &pool)
	pi.Free()
	r.pool = pool
	if err := d.check(op, int(code)); err != nil {
		return nil, err
	}
	if err := r.begin(op); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Recorder) emit(srcStage, dstStage, srcAccess, dstAccess uint32) {
	C.vm_barrier(r.dev.c, unsafe.Pointer(r.cmd), C.uint32_t(srcStage), C.uint32_t(dstStage), C.uint32_t(srcAccess), C.uint32_t(dstAccess))
	r.barriers++
}

func (r *Recorder) usable(op string) error {
	if r == nil || r.dev == nil {
		return argument(op, "recorder", "nil", "a recorder that Device.NewRecorder returned")
	}
	if r.ended {
		return fmt.Errorf("vk: %s: recorder %w", op, ErrClosed)
	}
	return r.dev.usable(op)
}

// order remembers the uses. It places a barrier first if one of them would race with
// an access since the last barrier: read after write, write after read, or write after
// write. The barrier is global and covers everything before it. A narrow one costs
// the same on the devices measured.
func (r *Recorder) order(uses []use) {
	for _, u := range uses {
		if r.conflicts(u) {
			r.barrier()
			break
		}
	}
	for _, u := range uses {
		r.pending = append(r.pending, u)
		r.overwrite(u, uses)
		if !r.held[u.view.Buffer] {
			r.held[u.view.Buffer] = true
			u.view.Buffer.retain()
		}
		if b := u.view.Buffer; u.access&Write != 0 && b.mapped != nil && (b.cached || b.spec.Memory != DeviceLocal) {
			r.hostSees, r.hostRead = true, r.hostRead || b.spec.Memory != DeviceLocal
		}
	}
}

// maxPending bounds the accesses that are remembered. Each new access is compared with all
// of them, which would take thousands of copies of different ranges longer on the host
// than a barrier takes on the device. A barrier clears the list.
const maxPending = 512

// conflicts reports whether a barrier has to come before an access.
func (r *Recorder) conflicts(u use) bool {
	if len(r.pending) >= maxPending {
		return true
	}
	for _, p := range r.pending {
		if (p.access|u.access)&Write != 0 && p.view.overlaps(u.view) {
			return true
		}
	}
	return false
}

func (r *Recorder) barrier() {
	var src, dst, srcAccess, dstAccess uint32
	for _, p := range r.pending {
		src |= p.stage
		if p.access&Write != 0 {
			srcAccess |= writeAccess(p.stage)
		}
	}
	// Later commands rely on this barrier too, so it opens both stages.
	dst = stageCompute | stageTransfer
	dstAccess = accessShaderRead | accessShaderWrite | accessTransferRead | accessTransferWrite
	if srcAccess == 0 { // only reads before: an execution dependency is enough
		dstAccess = 0
	}
	r.emit(src, dst, srcAccess, dstAccess)
	r.waiting()
	r.pending = r.pending[:0]
}

func writeAccess(stage uint32) uint32 {
	if stage == stageTransfer {
		return accessTransferWrite
	}
	return accessShaderWrite
}

// Dispatch records a launch. Nothing is recorded when it returns an error.
//
// Errors: ErrArgument when the grid, a view or the push constants do not fit the
// kernel or the device; ErrClosed, ErrDeviceLost, ErrOutOfDeviceMemory; those of
// Kernel.Ready.
func (r *Recorder) Dispatch(x Dispatch) error {
	if x.Kernel == nil {
		return argument("dispatch", "Kernel", "nil", "a kernel")
	}
	k := x.Kernel
	op := "dispatch " + k.spec.Name
	if err := r.usable(op); err != nil {
		return err
	}
	uses, err := r.checkDispatch(op, x)
	if err != nil {
		return err
	}
	if err := k.Ready(); err != nil {
		return err
	}
	set, err := r.set(op, k.layout, x.Bind)
	if err != nil {
		return err
	}
	side, work := k.side(x.Groups), workOf(x.Products, uses)
	pieces, most := 1, 1
	if k.spec.Divisible {
		pieces, most = r.piecesOf(x.Groups, side, work)
	}
	if err := r.operation(); err != nil {
		return err
	}
	r.parts.more = pieces < most
	r.order(uses)
	if pieces > 1 {
		return r.launchPieces(k, set, x, work, side, pieces)
	}
	r.parts.work.add(work, 1)
	r.bind(k, set, x.Push)
	r.launch(x.Groups)
	return nil
}

// checkDispatch holds a launch against its kernel and the device, and lists what it
// accesses.
func (r *Recorder) checkDispatch(op string, x Dispatch) ([]use, error) {
	c, k := r.dev.Caps(), x.Kernel
	for i, g := range x.Groups {
		if g == 0 || g > c.MaxWorkgroupCount[i] {
			return nil, argument(op, "Groups", fmt.Sprint(x.Groups), "1 to %v", c.MaxWorkgroupCount)
		}
	}
	if len(x.Bind) != len(k.spec.Bindings) {
		return nil, argument(op, "Bind", fmt.Sprintf("%d views", len(x.Bind)), "%d", len(k.spec.Bindings))
	}
	if len(x.Push) != k.spec.PushSize {
		return nil, argument(op, "Push", fmt.Sprintf("%d bytes", len(x.Push)), "%d", k.spec.PushSize)
	}
	uses := make([]use, 0, len(x.Bind)+len(x.Reach))
	for i, v := range x.Bind {
		arg := fmt.Sprintf("Bind[%d]", i)
		if err := v.check(r.dev, op, arg); err != nil {
			return nil, err
		}
		if v.Size > c.MaxStorageBufferRange {
			return nil, argument(op, arg, v.String(), "at most %d bytes in a descriptor", c.MaxStorageBufferRange)
		}
		if v.Offset%c.StorageAlignment != 0 {
			return nil, argument(op, arg, v.String(), "an offset that is a multiple of %d", c.StorageAlignment)
		}
		if v.Buffer != r.dev.dummy {
			uses = append(uses, use{v, k.spec.Bindings[i], stageCompute})
		}
	}
	for i, v := range x.Reach {
		if err := v.View.check(r.dev, op, fmt.Sprintf("Reach[%d]", i)); err != nil {
			return nil, err
		}
		uses = append(uses, use{v.View, v.Access, stageCompute})
	}
	return uses, nil
}

// bind records what a launch of the kernel uses.
func (r *Recorder) bind(k *Kernel, set vulkan.DescriptorSet, push []byte) {
	vulkan.CmdBindPipeline(r.cmd, vulkan.PipelineBindPointCompute, k.h)
	vulkan.CmdBindDescriptorSets(r.cmd, vulkan.PipelineBindPointCompute, k.layout.pipeline, 0, 1, []vulkan.DescriptorSet{set}, 0, nil)
	if len(push) > 0 {
		vulkan.CmdPushConstants(r.cmd, k.layout.pipeline, vulkan.ShaderStageFlags(vulkan.ShaderStageComputeBit),
			0, uint32(len(push)), unsafe.Pointer(&push[0]))
	}
}

// set returns a descriptor set for the views; launches that bind the same views
// share one.
func (r *Recorder) set(op string, l *layout, views []View) (vulkan.DescriptorSet, error) {
	var key strings.Builder
	for _, v := range views {
		fmt.Fprintf(&key, "%p,%d,%d;", v.Buffer, v.Offset, v.Size)
	}
	if s, ok := r.sets[key.String()]; ok {
		return s.set, nil
	}
	s, err := r.dev.newSet(op, l, views)
	if err == nil {
		r.sets[key.String()] = boundSet{l.bindings, s}
	}
	return s, err
}

// Fill records writing the 32-bit word over the view, whose offset and size are
// multiples of 4. The size may be any if the view ends with the buffer.
//
// Errors: ErrArgument, with nothing recorded; ErrClosed, ErrDeviceLost.
func (r *Recorder) Fill(v View, word uint32) error {
	const op = "fill"
	if err := r.usable(op); err != nil {
		return err
	}
	if err := v.check(r.dev, op, "view"); err != nil {
		return err
	}
	if v.Offset%4 != 0 || (v.Size%4 != 0 && v.Offset+v.Size != v.Buffer.spec.Size) {
		return argument(op, "view", v.String(), "offset and size that are multiples of 4")
	}
	if err := r.operation(); err != nil {
		return err
	}
	r.order([]use{{v, Write, stageTransfer}})
	vulkan.CmdFillBuffer(r.cmd, v.Buffer.h, vulkan.DeviceSize(v.Offset), vulkan.DeviceSize((v.Size+3)&^3), word)
	return nil
}

// Copy records copying src to dst, of the same size; they must not overlap.
//
// Errors: ErrArgument, with nothing recorded; ErrClosed, ErrDeviceLost.
func (r *Recorder) Copy(dst, src View) error {
	const op = "copy"
	if err := r.usable(op); err != nil {
		return err
	}
	if err := dst.check(r.dev, op, "dst"); err != nil {
		return err
	}
	if err := src.check(r.dev, op, "src"); err != nil {
		return err
	}
	if dst.Size != src.Size || dst.overlaps(src) {
		return argument(op, "dst, src", dst.String()+", "+src.String(), "two disjoint ranges of one size")
	}
	if err := r.operation(); err != nil {
		return err
	}
	r.order([]use{{dst, Write, stageTransfer}, {src, Read, stageTransfer}})
	C.vm_copy(r.dev.c, unsafe.Pointer(r.cmd), handleValue(unsafe.Pointer(src.Buffer.h)), handleValue(unsafe.Pointer(dst.Buffer.h)),
		C.uint64_t(src.Offset), C.uint64_t(dst.Offset), C.uint64_t(src.Size))
	return nil
}

// Timestamp records taking the device's time once everything recorded before has
// finished, and returns the timestamp's index in Commands.Timestamps.
//
// Errors: *MissingError when the queue has no timestamps; ErrArgument for more
// than 8192 of them; ErrClosed, ErrDeviceLost, ErrOutOfHostMemory,
// ErrOutOfDeviceMemory.
func (r *Recorder) Timestamp() (int, error) {
	const op = "timestamp"
	if err := r.usable(op); err != nil {
		return 0, err
	}
	if !r.dev.Caps().clock() {
		return 0, &MissingError{What: op, Device: r.dev.adapter.Name,
			Required: []string{"timestampValidBits"}, Missing: []string{"timestampValidBits"}}
	}
	if r.marks == maxTimestamps {
		return 0, argument(op, "count", fmt.Sprint(r.marks+1), "at most %d", maxTimestamps)
	}
	if r.query == nil {
		qi := vulkan.QueryPoolCreateInfo{
			SType: vulkan.StructureTypeQueryPoolCreateInfo, QueryType: vulkan.QueryTypeTimestamp, QueryCount: maxTimestamps,
		}
		var query vulkan.QueryPool
		code := vulkan.CreateQueryPool(r.dev.h, &qi, nil, &query)
		qi.Free()
		r.query = query
		if err := r.dev.check(op, int(code)); err != nil {
			return 0, err
		}
	}
	if r.marks%markChunk == 0 {
		vulkan.CmdResetQueryPool(r.cmd, r.query, uint32(r.marks), markChunk)
	}
	vulkan.CmdWriteTimestamp(r.cmd, vulkan.PipelineStageBottomOfPipeBit, r.query, uint32(r.marks))
	r.marks++
	return r.marks - 1, nil
}

func init() { door.Separate = func(r any) error { return r.(*Recorder).separate() } }

// separate is door.Separate.
func (r *Recorder) separate() error {
	if err := r.usable("separate"); err != nil {
		return err
	}
	if len(r.pending) > 0 {
		r.barrier()
	}
	return nil
}

// Barriers returns the number of barriers derived so far.
func (r *Recorder) Barriers() int { return r.barriers }

// End finishes the recording. The recorder cannot be used afterwards, even if End
// fails.
//
// Errors: ErrClosed, ErrDeviceLost, ErrOutOfHostMemory, ErrOutOfDeviceMemory.
func (r *Recorder) End() (*Commands, error) {
	const op = "end recording"
	if err := r.usable(op); err != nil {
		if errors.Is(err, ErrDeviceLost) {
			r.Close() // as below: callers do not close a recorder whose End failed
		}
		return nil, err
	}
	if err := r.endSections(); err != nil {
		r.Close()
		return nil, err
	}
	if r.parts.on {
		r.endPart()
	}
	r.proof.record(r)
	if r.hostSees || r.hostRead {
		n := r.barriers
		r.emit(stageCompute|stageTransfer, stageHost, accessShaderWrite|accessTransferWrite, accessHostRead)
		if !r.hostRead {
			r.barriers = n
		}
	}
	if err := r.dev.check(op, int(vulkan.EndCommandBuffer(r.cmd))); err != nil {
		r.Close()
		return nil, err
	}
	c := &Commands{rec: r}
	for i := range min(c.Parts(), inFlight) {
		if err := c.takeFence(op, i); err != nil {
			c.giveFences()
			r.Close()
			return nil, err
		}
	}
	r.ended = true
	return c, nil
}

// Close gives up a recording that was not ended. After End it does nothing.
func (r *Recorder) Close() {
	if r == nil || r.dev == nil || r.ended {
		return
	}
	r.ended = true
	r.release()
}

func (r *Recorder) release() {
	if d := r.dev; !d.left() {
		if r.query != nil {
			vulkan.DestroyQueryPool(d.h, r.query, nil)
		}
		vulkan.DestroyCommandPool(d.h, r.pool, nil)
		for _, s := range r.sets {
			d.releaseSet(s.bindings, s.set)
		}
	}
	for b := range r.held {
		b.release()
	}
	r.proof.buf.Close()
	r.sets, r.held, r.pending = nil, nil, nil
}
