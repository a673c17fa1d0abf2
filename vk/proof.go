package vk

// #include "abi.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// proof shows that the device executed commands. Each part of them copies one word to the next,
// after everything else that it does. The host writes the first, another number each time, and
// finds it in the last once all parts have finished.
type proof struct {
	buf    *Buffer // nil without a call of door.Prove
	words  int     // copies recorded
	number uint32  // of the last submission
}

// proofWords bounds the parts that take part. Only recordings with a part for each operation
// have as many.
const proofWords = 1024

// prove is door.Prove.
func (r *Recorder) prove() error {
	const op = "prove"
	if err := r.usable(op); err != nil {
		return err
	}
	if r.operations > 0 || r.proof.buf != nil {
		return argument(op, "recorder", "one with something in it", "an empty one")
	}
	buf, err := r.dev.NewBuffer(BufferSpec{Label: "proofs", Size: 4 * proofWords, Memory: Readback})
	if err != nil {
		return err
	}
	clear(buf.mapped)
	r.proof.buf = buf
	return nil
}

// record copies the number on, at the end of a part.
func (p *proof) record(r *Recorder) {
	if p.buf == nil || p.words == proofWords-1 {
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
	return p.number
}

// proved compares the number of a submission that has finished with what the device wrote, and
// looks whether workgroups starved.
func (p *Pending) proved() error {
	r, d := p.c.rec, p.c.rec.dev
	if buf := r.proof.buf; buf != nil {
		if got := binary.LittleEndian.Uint32(buf.mapped[4*r.proof.words:]); got != p.number {
			d.lose(false)
			return fmt.Errorf("vk: wait: %w: the driver reports work as finished that was not executed (proof %d, want %d)%s",
				ErrDeviceLost, got, p.number, d.why.text)
		}
	}
	if r.mayStarve && d.Starved() {
		return d.starvedError("wait")
	}
	return nil
}
