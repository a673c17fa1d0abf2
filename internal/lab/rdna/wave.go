package rdna

import (
	"fmt"
	"math/bits"
)

// lanes are one vector register, or what stands for one.
type lanes [64]uint32

// wave is a wave with its registers.
type wave struct {
	k      *worker
	prog   *program
	group  [3]uint32
	number int
	size   int    // lanes
	all    uint64 // a bit for each of them
	pc     int    // word of the next instruction
	at     int    // and of the one that runs
	taken  bool   // by a branch
	before uint64 // exec, where an instruction reads other lanes
	paused bool
	ended  bool
	epoch  uint32 // barriers passed
	steps  uint64
	scc    bool
	view   view
	s      [scalars]uint32
	v      [256]lanes
	t      [12]lanes // operands and results that are not registers
}

// unwritten fills registers and shared memory at first: NaN as a float of any size.
const unwritten = 0xffffffff

// begin makes a wave ready for its workgroup.
func (w *wave) begin(k *worker, id [3]uint32, number int, threads [3]uint32) {
	l := k.l
	w.k, w.prog, w.group, w.number, w.size = k, l.prog, id, number, l.prog.lanes
	w.all = ^uint64(0) >> (64 - w.size)
	w.pc, w.paused, w.ended, w.epoch, w.steps, w.scc = 0, false, false, 0, 0, false
	w.view = view{all: l.m.memory}
	for r := range l.vectors {
		for i := range w.v[r] {
			w.v[r][i] = unwritten
		}
	}
	for i := range w.s {
		w.s[i] = unwritten
	}
	at := copy(w.s[:], l.user)
	total := threads[0] * threads[1] * threads[2]
	if w.k.m.gfx >= 12 {
		w.s[ttmp+9], w.s[ttmp+7], w.s[ttmp+8] = id[0], id[1]&0xffff|id[2]<<16, uint32(number)<<25
	} else {
		for i := range 3 {
			if l.ids>>i&1 == 1 {
				w.s[at] = id[i]
				at++
			}
		}
		if l.ids>>3&1 == 1 {
			w.s[at] = (total+uint32(w.size)-1)/uint32(w.size) | uint32(number)<<20
		}
	}
	from := uint32(number * w.size)
	n := min(uint32(w.size), total-from)
	w.setExec(^uint64(0) >> (64 - n))
	for i := range n {
		t := from + i
		x, y, z := t%threads[0], t/threads[0]%threads[1], t/(threads[0]*threads[1])
		if w.k.m.gfx == 10 {
			w.v[0][i], w.v[1][i], w.v[2][i] = x, y, z
		} else {
			w.v[0][i] = x | y<<10 | z<<20
		}
	}
}

// mostSteps bounds the instructions of a wave: none of ours takes a tenth.
const mostSteps = 1 << 27

// run goes on until the next barrier or the end.
func (w *wave) run() {
	defer w.caught()
	insts, counts := w.prog.insts, w.k.now
	w.paused = false
	left := mostSteps
	for !w.paused {
		x := &insts[w.pc]
		w.at = w.pc
		counts[w.pc]++
		if w.k.tally != nil {
			w.k.tally.runs[w.pc]++
		}
		w.pc += x.words
		x.run(w)
		if left--; left < 0 {
			panic(fmt.Errorf("a wave does not end"))
		}
	}
}

// caught makes a panic the launch's end, and a fault.
func (w *wave) caught() {
	if e := recover(); e != nil {
		w.ended = true
		w.k.l.failed.Store(true)
		w.fault(fmt.Sprint(e), 0)
	}
}

// fault reports something about the instruction that runs.
func (w *wave) fault(what string, address uint64) {
	w.report(Fault{What: what, Address: address})
}

// report adds to a fault where the wave is.
func (w *wave) report(f Fault) {
	f.Code, f.At, f.Text, f.Group, f.Wave = w.prog.number, 4*w.at, w.prog.insts[w.at].text, w.group, w.number
	if w.k.l != nil {
		f.Dispatch = w.k.l.number
	}
	w.k.m.fault(f)
}

// exec is a bit for each lane that takes part.
func (w *wave) exec() uint64 {
	if w.size == 64 {
		return wide(w.s[exec], w.s[exec+1])
	}
	return uint64(w.s[exec])
}

func (w *wave) setExec(x uint64) { w.s[exec], w.s[exec+1] = uint32(x), uint32(x>>32) }

// mask reads a bit for each lane; setMask writes them.
func (w *wave) mask(r int) uint64 {
	if w.size == 64 {
		return wide(w.s[r], w.s[r+1])
	}
	return uint64(w.s[r])
}

func (w *wave) setMask(r int, x uint64) {
	w.s[r] = uint32(x)
	if w.size == 64 {
		w.s[r+1] = uint32(x >> 32)
	}
}

// source returns an operand's lanes, as its register holds them; tmp is used where it is none.
func (w *wave) source(o *operand, tmp *lanes) *lanes {
	switch o.kind {
	case kindVector:
		return &w.v[o.reg]
	case kindConstant:
		return o.lanes
	}
	x := w.scalar(o)
	for i := range tmp[:w.size] {
		tmp[i] = x
	}
	return tmp
}

// scalar reads an operand that is the same for all lanes.
func (w *wave) scalar(o *operand) uint32 {
	switch {
	case o.kind == kindConstant:
		return o.bits
	case o.kind == kindScalar:
		return w.s[o.reg]
	case o.kind == kindSCC && w.scc:
		return 1
	}
	return 0
}

// scalar64 reads two registers, or a number: integers keep their sign.
func (w *wave) scalar64(o *operand) uint64 {
	switch o.kind {
	case kindScalar:
		return wide(w.s[o.reg], w.s[o.reg+1])
	case kindConstant:
		if o.value < 0 {
			return uint64(int64(int32(o.bits)))
		}
		return uint64(o.bits)
	}
	return uint64(w.scalar(o))
}

// write stores the lanes that take part.
func (w *wave) write(reg int, x *lanes) {
	e, v := w.exec(), &w.v[reg]
	if e == w.all {
		copy(v[:w.size], x[:w.size])
		return
	}
	for ; e != 0; e &= e - 1 {
		i := bits.TrailingZeros64(e) & 63
		v[i] = x[i]
	}
}

// writeHalf stores 16 bits of them: half is 1 for the low ones, 2 for the high.
func (w *wave) writeHalf(reg, half int, x *lanes) {
	shift := uint(half-1) * 16
	keep, v := ^(uint32(0xffff) << shift), &w.v[reg]
	for e := w.exec(); e != 0; e &= e - 1 {
		i := bits.TrailingZeros64(e) & 63
		v[i] = v[i]&keep | x[i]&0xffff<<shift
	}
}

// writeTo stores a result where an operand says.
func (w *wave) writeTo(o *operand, x *lanes) {
	if o.half != 0 {
		w.writeHalf(o.reg, o.half, x)
		return
	}
	w.write(o.reg, x)
}
