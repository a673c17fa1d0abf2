package vk

import (
	"fmt"
	"slices"

	vulkan "github.com/goki/vulkan"
)

// Split says how a recording is divided into parts. Commands.Submit hands them to the device in
// order, one by one, so that none takes long, and Commands.PartTimes says how long each took.
// Results do not change: workgroups of launches that are divided never wait for each other.
type Split struct {
	Each   bool  // every operation (a launch, a fill, a copy) is a part of its own
	Before []int // else: operations before which parts begin, counted from 0 in the order of recording

	// Of has the pieces of operations that are launches of a divisible kernel
	// (KernelSpec.Divisible), at least 1: each is a part. Count returns those of any other such
	// launch, by its work; nil: one. There are at most MaxPieces, and at most one for each
	// workgroup along the longest side that the kernel can be divided along.
	Of    map[int]int
	Count func(w Work) int
}

// splitting cuts a recording into parts.
type splitting struct {
	Split
	on      bool
	first   int    // operation of the part that is being recorded
	more    bool   // the last operation can be divided into more pieces
	work    Work   // of that part, so far
	list    []Part // complete parts
	marks   []int  // timestamps: before the first part and after each; -1 where none was left
	wall    bool   // there are no timestamps: the host takes the time
	earlier []vulkan.CommandBuffer
}

// Split divides what is recorded later into parts, which are timed. It is called before anything
// is recorded.
//
// Errors: ErrArgument when something was recorded, and for operations and pieces that are none;
// those of Timestamp but for *MissingError: without timestamps the host takes the time.
func (r *Recorder) Split(s Split) error {
	const op = "split"
	if err := r.usable(op); err != nil {
		return err
	}
	if r.operations > 0 || r.parts.on {
		return argument(op, "recorder", "one with something in it", "an empty one")
	}
	for i, n := range s.Of {
		if i < 0 || n < 1 {
			return argument(op, "Of", fmt.Sprintf("%d pieces of operation %d", n, i), "at least 1 of operation 0 or a later one")
		}
	}
	s.Before = slices.Clone(s.Before)
	r.parts = splitting{Split: s, on: true, wall: !r.dev.Caps().clock()}
	if r.parts.wall {
		return nil
	}
	mark, err := r.Timestamp()
	if err != nil {
		r.parts = splitting{}
		return err
	}
	r.parts.marks = []int{mark}
	return nil
}

// operation is called before each operation and begins a part where one is due.
func (r *Recorder) operation() error {
	n := r.operations
	if r.parts.on && n > 0 && (r.parts.Each || slices.Contains(r.parts.Before, n)) {
		if err := r.cut(); err != nil {
			return err
		}
	}
	r.operations++
	r.parts.more = false
	return nil
}

// endPart takes the time where a part ends and notes what is in it. When the timestamps
// have run out the part has none.
func (r *Recorder) endPart() {
	p := &r.parts
	n := r.operations - p.first
	p.list = append(p.list, Part{First: p.first, Operations: n, Divisible: n > 1 || p.more, Work: p.work})
	p.work = Work{}
	p.first = r.operations
	if p.wall {
		return
	}
	m := -1
	if r.marks < maxTimestamps-r.sectionMarks() {
		if at, err := r.Timestamp(); err == nil {
			m = at
		}
	}
	r.parts.marks = append(r.parts.marks, m)
}

// cut ends the command buffer and begins another. Its first barrier, like that of every
// recording, makes what ran before visible.
func (r *Recorder) cut() error {
	const op = "split"
	r.endPart()
	r.proof.record(r)
	if err := r.dev.check(op, int(vulkan.EndCommandBuffer(r.cmd))); err != nil {
		return err
	}
	r.parts.earlier = append(r.parts.earlier, r.cmd)
	return r.begin(op)
}

// begin allocates a command buffer and begins to record it.
func (r *Recorder) begin(op string) error {
	ai := vulkan.CommandBufferAllocateInfo{
		SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: r.pool,
		Level: vulkan.CommandBufferLevelPrimary, CommandBufferCount: 1,
	}
	cmds := make([]vulkan.CommandBuffer, 1)
	code := vulkan.AllocateCommandBuffers(r.dev.h, &ai, cmds)
	ai.Free()
	if err := r.dev.check(op, int(code)); err != nil {
		return err
	}
	r.cmd = cmds[0]
	bi := vulkan.CommandBufferBeginInfo{SType: vulkan.StructureTypeCommandBufferBeginInfo}
	code = vulkan.BeginCommandBuffer(r.cmd, &bi)
	bi.Free()
	if err := r.dev.check(op, int(code)); err != nil {
		return err
	}
	// What ran before on this queue, or was written by the host, is visible from here on.
	n := r.barriers
	r.emit(stageCompute|stageTransfer|stageHost, stageCompute|stageTransfer,
		accessShaderWrite|accessTransferWrite|accessHostWrite,
		accessShaderRead|accessShaderWrite|accessTransferRead|accessTransferWrite)
	r.waiting()
	r.barriers, r.pending = n, r.pending[:0]
	return nil
}

// Parts returns the number of submissions that a Submit makes: 1 unless the recording was split.
func (c *Commands) Parts() int { return len(c.rec.parts.earlier) + 1 }

// PartTimes returns how long each part took in the last submission, in nanoseconds, from
// the end of the part before to its own end; nil if the recording was not split. A part
// without a timestamp has a negative time. On a device without any the times are the host's, and
// too long where it was busy. Errors: those of Timestamps.
func (c *Commands) PartTimes() ([]float64, error) {
	if c.rec.parts.wall {
		return c.wallTimes()
	}
	marks := c.rec.parts.marks
	if marks == nil {
		return nil, nil
	}
	ns, err := c.Timestamps()
	if err != nil {
		return nil, err
	}
	times := make([]float64, len(marks)-1)
	for i := range times {
		times[i] = -1
		if a, b := marks[i], marks[i+1]; a >= 0 && b >= 0 {
			times[i] = ns[b] - ns[a]
		}
	}
	return times, nil
}

// clock reports whether the device has timestamps.
func (c *Caps) clock() bool { return c.timestampMask != 0 && c.TimestampPeriod != 0 }

// wallTimes are PartTimes by the host's clock.
func (c *Commands) wallTimes() ([]float64, error) {
	const op = "part times"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, fmt.Errorf("vk: %s: commands %w", op, ErrClosed)
	case c.flying == nil:
		return nil, fmt.Errorf("vk: %s: %w", op, ErrBusy)
	}
	if done, err := c.flying.poll(0); !done {
		return nil, fmt.Errorf("vk: %s: %w", op, ErrBusy)
	} else if err != nil {
		return nil, err
	}
	return slices.Clone(c.flying.took), nil
}
