package vk

// #include "abi.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// proof shows that the device executed commands. Each part of them copies one word to the next,
// behind everything else that it does. The host writes the first, another number each time, and
// finds it in the last once all parts have finished. One more word is that of Recorder.Starved.
type proof struct {
	buf    *Buffer // nil if nobody asked for a proof or for Starved
	asked  bool    // Prove was called
	words  int     // copies recorded
	number uint32  // of the last submission
}

// proofWords bounds the parts that take part. Only recordings with a part for each operation
// have as many.
const proofWords = 1024

// starvedWord is where the word of Recorder.Starved lies, behind the others.
const starvedWord = 4 * proofWords

// Prove makes the commands prove, each time, that the device executed them. A driver that resets
// a hung GPU may signal the fence of work that it gave up; Pending.Wait then returns
// ErrDeviceLost, where it would otherwise report success over memory that nobody wrote.
// It must be called before anything is recorded.
//
// Errors: ErrArgument when something was recorded; those of Device.NewBuffer.
func (r *Recorder) Prove() error {
	const op = "prove"
	if err := r.usable(op); err != nil {
		return err
	}
	if r.operations > 0 || r.proof.asked {
		return argument(op, "recorder", "one with something in it", "an empty one")
	}
	if err := r.proof.open(r.dev); err != nil {
		return err
	}
	r.proof.asked = true
	return nil
}

// Starved returns a word of host memory, 0 when the commands begin, for kernels whose workgroups
// wait for each other. One that gives up writes its number and 1 there; Pending.Wait then returns
// ErrStarved. It costs commands nothing that do not write it.
//
// Errors: those of Device.NewBuffer; ErrClosed, ErrDeviceLost.
func (r *Recorder) Starved() (View, error) {
	if err := r.usable("starved"); err != nil {
		return View{}, err
	}
	if err := r.proof.open(r.dev); err != nil {
		return View{}, err
	}
	return r.proof.buf.View(starvedWord, 4), nil
}

// open makes the memory for all words.
func (p *proof) open(d *Device) error {
	if p.buf != nil {
		return nil
	}
	buf, err := d.NewBuffer(BufferSpec{Label: "proofs", Size: starvedWord + 4, Memory: Readback})
	if err != nil {
		return err
	}
	clear(buf.mapped)
	p.buf = buf
	return nil
}

// record copies the number on, at the end of a part.
func (p *proof) record(r *Recorder) {
	if !p.asked || p.words == proofWords-1 {
		return
	}
	n := r.barriers // that of a proof is not one of the caller's commands
	r.emit(stageCompute|stageTransfer, stageTransfer, accessShaderWrite|accessTransferWrite, accessTransferRead|accessTransferWrite)
	r.barriers = n
	h := handleValue(unsafe.Pointer(p.buf.h))
	C.vm_copy(r.dev.c, unsafe.Pointer(r.cmd), h, h, C.uint64_t(4*p.words), C.uint64_t(4*p.words+4), 4)
	p.words++
	r.hostRead = true
}

// next writes the number of the next submission. The device has finished the one before.
func (p *proof) next() uint32 {
	if p.buf == nil {
		return 0
	}
	p.number++
	binary.LittleEndian.PutUint32(p.buf.mapped, p.number)
	binary.LittleEndian.PutUint32(p.buf.mapped[starvedWord:], 0)
	return p.number
}

// proved compares the number of a submission that has finished with what the device wrote, and
// looks whether a workgroup gave up.
func (p *Pending) proved() error {
	proof, d := &p.c.rec.proof, p.c.rec.dev
	if proof.buf == nil {
		return nil
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(proof.buf.mapped[at:]) }
	if got := word(4 * proof.words); proof.asked && got != p.number {
		d.lose(false)
		return fmt.Errorf("vk: wait: %w: the driver reports work as finished that was not executed (proof %d, want %d)%s",
			ErrDeviceLost, got, p.number, d.why.text)
	}
	if who := word(starvedWord); who != 0 {
		d.starved.Store(true)
		return fmt.Errorf("vk: wait: %w: workgroup %d of a launch gave up waiting for others, want all that have begun to go on",
			ErrStarved, who-1)
	}
	return nil
}
