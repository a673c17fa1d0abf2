package rdna

import (
	"fmt"
	"math/bits"
	"strings"
	"unsafe"
)

// shared is a workgroup's shared memory, with who used each word last.
type shared struct {
	words []uint32
	uses  []use
	group uint32 // counts workgroups, so that uses of others need not be cleared
}

// use remembers the last write of a word and its last reads, each with the phase between two
// barriers, the wave and the instruction.
type use struct {
	wrote, read     uint64 // group << 32 | barriers passed; 0: never
	writer, atWrite int32
	atRead          int32
	bytes           uint8  // written
	atomic          bool   // the write
	readers         uint64 // waves, a bit each
}

func (s *shared) begin(bytes int) {
	n := (bytes + 3) / 4
	if cap(s.words) < n {
		s.words, s.uses = make([]uint32, n), make([]use, n)
	}
	s.words, s.uses = s.words[:n], s.uses[:n]
	for i := range s.words {
		s.words[i] = unwritten
	}
	s.group++
}

// reached returns bytes of shared memory and looks for a race; nil beyond its end.
func (w *wave) reached(at uint32, bytes int, kind uint8) unsafe.Pointer {
	s := &w.k.shared
	if int64(at)+int64(bytes) > int64(4*len(s.words)) {
		w.fault(fmt.Sprintf("%s of %d bytes beyond shared memory of %d", what(kind == reads), bytes, 4*len(s.words)), uint64(at))
		return nil
	}
	if bytes >= 4 && at&3 != 0 {
		w.fault("an access of shared memory that is not aligned", uint64(at))
		return nil
	}
	for i, end := int(at/4), int((at+uint32(bytes)+3)/4); i < end; i++ {
		mask := uint8(15)
		if bytes < 4 {
			mask = (1<<bytes - 1) << (at & 3)
		}
		w.race(&s.uses[i], 4*i, mask, kind)
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(s.words)), at)
}

// Kinds of uses.
const (
	reads uint8 = iota
	writes
	changes // atomically
)

// race reports that another wave wrote, or that this one writes what another one used, with no
// barrier between.
func (w *wave) race(u *use, at int, mask, kind uint8) {
	now := uint64(w.k.shared.group)<<32 | uint64(w.epoch)
	me := uint64(1) << (w.number & 63)
	if u.wrote == now && int(u.writer) != w.number && u.bytes&mask != 0 && (kind != changes || !u.atomic) {
		w.raced(at, int(u.atWrite))
	}
	if kind == reads {
		if u.read != now {
			u.read, u.readers = now, 0
		}
		u.readers |= me
		u.atRead = int32(w.at)
		return
	}
	if u.read == now && u.readers&^me != 0 {
		w.raced(at, int(u.atRead))
	}
	if u.wrote != now || int(u.writer) != w.number {
		u.bytes = 0
	}
	u.wrote, u.writer, u.atWrite, u.atomic = now, int32(w.number), int32(w.at), kind == changes
	u.bytes |= mask
}

func (w *wave) raced(at, other int) {
	w.report(Fault{What: "a race in shared memory", Address: uint64(at),
		Other: fmt.Sprintf("%q at byte %#x", w.prog.insts[other].text, 4*other)})
}

// sharedOp compiles ds instructions.
func (c compiler) sharedOp(l line) (step, error) {
	switch {
	case l.op == "ds_swizzle_b32":
		return c.swizzled(l)
	case l.op == "ds_bpermute_b32":
		return c.permuted(l)
	case changed[strings.Replace(l.op, "_rtn", "", 1)] != nil:
		return c.changed(l)
	case strings.Contains(l.op, "2addr") || strings.HasPrefix(l.op, "ds_read2") || strings.HasPrefix(l.op, "ds_write2"):
		return c.twoPlaces(l)
	}
	a, ok := accessOf(l.op)
	off, err := l.number("offset")
	if !ok || err != nil || len(l.args) != 2 {
		return nil, fmt.Errorf("an access of shared memory that is not known")
	}
	data, place := l.args[0], l.args[1]
	if !a.load {
		data, place = place, data
	}
	return c.sharedAt(a, data, place.reg, uint32(off)), nil
}

func (c compiler) sharedAt(a access, data operand, place int, off uint32) step {
	if a.half != 0 && data.half == 0 || a.bytes >= 4 {
		data.half = a.half
	}
	run, kind := a.run(data), reads
	if !a.load {
		kind = writes
	}
	return func(w *wave) {
		var p [64]unsafe.Pointer
		for e := w.exec(); e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			p[i] = w.reached(w.v[place][i]+off, a.bytes, kind)
		}
		w.banked(&p, a.bytes, kind)
		run(w, w.exec(), &p)
	}
}

func (w *wave) banked(p *[64]unsafe.Pointer, bytes int, kind uint8) {
	if t := w.k.tally; t != nil {
		t.banked(unsafe.Pointer(unsafe.SliceData(w.k.shared.words)), p, w.exec(), w.size, bytes, kind)
	}
}

// twoPlaces compiles an access of two places with one address.
func (c compiler) twoPlaces(l line) (step, error) {
	one, two, err := offsets(l)
	if err != nil {
		return nil, err
	}
	p := strings.Split(l.op, "_")
	n := widths[p[len(p)-1]]
	load := p[1] == "load" || strings.HasPrefix(p[1], "read")
	scale := 4 * n
	if strings.Contains(l.op, "st64") || strings.Contains(l.op, "stride64") {
		scale *= 64
	}
	if n == 0 || n > 2 || load && len(l.args) != 2 || !load && len(l.args) != 3 {
		return nil, fmt.Errorf("an access of shared memory that is not known")
	}
	if load {
		d, place := l.args[0], l.args[1].reg
		return func(w *wave) {
			at := w.v[place] // which may be one of the results
			for half, off := range [2]int{one, two} {
				var p [64]unsafe.Pointer
				for e := w.exec(); e != 0; e &= e - 1 {
					i := bits.TrailingZeros64(e) & 63
					p[i] = w.reached(at[i]+uint32(off*scale), 4*n, reads)
					for j := range n {
						w.v[d.reg+half*n+j][i] = wordAt(p[i], j)
					}
				}
				w.banked(&p, 4*n, reads)
			}
		}, nil
	}
	a := access{bytes: 4 * n}
	first, second := c.sharedAt(a, l.args[1], l.args[0].reg, uint32(one*scale)), c.sharedAt(a, l.args[2], l.args[0].reg, uint32(two*scale))
	return func(w *wave) { first(w); second(w) }, nil
}

func wordAt(p unsafe.Pointer, i int) uint32 {
	if p == nil {
		return 0
	}
	return *(*uint32)(unsafe.Add(p, 4*i))
}

// changed are atomic operations on words.
var changed = map[string]func(a, b uint32) uint32{
	"ds_add_u32": func(a, b uint32) uint32 { return a + b }, "ds_sub_u32": func(a, b uint32) uint32 { return a - b },
	"ds_max_u32": func(a, b uint32) uint32 { return max(a, b) }, "ds_min_u32": func(a, b uint32) uint32 { return min(a, b) },
	"ds_or_b32": func(a, b uint32) uint32 { return a | b }, "ds_and_b32": func(a, b uint32) uint32 { return a & b },
	"ds_xor_b32": func(a, b uint32) uint32 { return a ^ b },
}

func (c compiler) changed(l line) (step, error) {
	off, err := l.number("offset")
	f := changed[strings.Replace(l.op, "_rtn", "", 1)]
	before := -1
	if strings.Contains(l.op, "_rtn") {
		before, l.args = l.args[0].reg, l.args[1:]
	}
	if err != nil || len(l.args) != 2 {
		return nil, fmt.Errorf("an atomic operation that is not known")
	}
	place, data := l.args[0].reg, l.args[1].reg
	return func(w *wave) {
		var p [64]unsafe.Pointer
		for e := w.exec(); e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			p[i] = w.reached(w.v[place][i]+uint32(off), 4, changes)
			old, x := wordAt(p[i], 0), w.v[data][i]
			if p[i] != nil {
				*(*uint32)(p[i]) = f(old, x)
			}
			if before >= 0 {
				w.v[before][i] = old
			}
		}
		w.banked(&p, 4, changes)
	}, nil
}

// swizzled reads registers of other lanes, 0 of those that take no part.
func (c compiler) swizzled(l line) (step, error) {
	from, err := swizzle(l.mods["offset"])
	if err != nil {
		return nil, err
	}
	d, s := l.args[0].reg, l.args[1].reg
	return func(w *wave) {
		e := w.exec()
		for i := range w.size {
			w.t[3][i] = 0
			if j := from[i]; e>>j&1 == 1 {
				w.t[3][i] = w.v[s][j]
			}
		}
		w.write(d, &w.t[3])
	}, nil
}

func (c compiler) permuted(l line) (step, error) {
	off, err := l.number("offset")
	d, place, s := l.args[0].reg, l.args[1].reg, l.args[2].reg
	return func(w *wave) {
		e := w.exec()
		for i := range w.size {
			w.t[3][i] = 0
			if j := int(w.v[place][i]+uint32(off)) >> 2 & (w.size - 1); e>>j&1 == 1 {
				w.t[3][i] = w.v[s][j]
			}
		}
		w.write(d, &w.t[3])
	}, err
}
