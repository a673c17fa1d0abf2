package rdna

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"
)

// scalarLoad reads registers of the wave from memory; a buffer gives 0 beyond its end. One that
// begins within a buffer may leave it: RADV reads by descriptors before it is known whether that is
// wanted, and makes one load of two neighbours.
func (c compiler) scalarLoad(l line) (step, error) {
	p := strings.Split(l.op, "_")
	n, ok := widths[p[len(p)-1]]
	if !ok || len(l.args) != 3 || l.args[1].kind != kindScalar {
		return nil, fmt.Errorf("a load that is not known")
	}
	off, err := l.number("offset")
	if err != nil {
		return nil, err
	}
	d, base, more := l.args[0].reg, l.args[1].reg, l.args[2]
	buffer := p[1] == "buffer"
	return func(w *wave) {
		from := wide(w.s[base], w.s[base+1]&0xffff)
		at := int64(off) + int64(w.scalar(&more))
		if more.kind == kindConstant {
			at = int64(off) + int64(int32(more.bits))
		}
		if buffer {
			at &^= 3
			if end := int64(w.s[base+2]); at < 0 || at+4*int64(n) > end {
				if at < 0 || at >= end {
					w.fault(fmt.Sprintf("a read of %d bytes beyond a buffer of %d", 4*n, end), uint64(at))
				}
				for j := range n {
					if q := at + int64(4*j); q >= 0 && q+4 <= end {
						w.s[d+j] = w.load32(from + uint64(q))
					} else {
						w.s[d+j] = 0
					}
				}
				return
			}
		}
		q := w.view.at(from+uint64(at), 4*uint64(n))
		if q == nil {
			w.fault("a read outside all memory", from+uint64(at))
			clear(w.s[d : d+n])
			return
		}
		copy(w.s[d:d+n], unsafe.Slice((*uint32)(q), n))
	}, nil
}

func (w *wave) load32(address uint64) uint32 {
	if p := w.view.at(address, 4); p != nil {
		return *(*uint32)(p)
	}
	w.fault("a read outside all memory", address)
	return 0
}

// widths are registers of a load or store.
var widths = map[string]int{"b32": 1, "b64": 2, "b96": 3, "b128": 4, "b256": 8, "b512": 16,
	"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}

// access describes what a vector instruction loads or stores for a lane.
type access struct {
	load   bool
	bytes  int
	signed bool
	half   int // of a register: 0 all, 1 low, 2 high; the other half stays
}

// small are the accesses of less than a word, by their names without the space.
var small = func() map[string]access {
	m := map[string]access{}
	for names, a := range map[string]access{
		"load_u8 load_ubyte read_u8": {true, 1, false, 0}, "load_i8 load_sbyte read_i8": {true, 1, true, 0},
		"load_u16 load_ushort read_u16": {true, 2, false, 0}, "load_i16 load_sshort read_i16": {true, 2, true, 0},
		"load_d16_b16 load_u16_d16 load_short_d16 read_u16_d16":                 {true, 2, false, 1},
		"load_d16_hi_b16 load_u16_d16_hi load_short_d16_hi read_u16_d16_hi":     {true, 2, false, 2},
		"load_d16_u8 load_u8_d16 load_ubyte_d16 read_u8_d16":                    {true, 1, false, 1},
		"load_d16_hi_u8 load_u8_d16_hi load_ubyte_d16_hi read_u8_d16_hi":        {true, 1, false, 2},
		"store_b8 store_byte write_b8":                                          {false, 1, false, 0},
		"store_b16 store_short write_b16":                                       {false, 2, false, 0},
		"store_d16_hi_b16 store_b16_d16_hi store_short_d16_hi write_b16_d16_hi": {false, 2, false, 2},
		"store_d16_hi_b8 store_b8_d16_hi store_byte_d16_hi write_b8_d16_hi":     {false, 1, false, 2},
	} {
		for _, n := range strings.Fields(names) {
			m[n] = a
		}
	}
	return m
}()

// accessOf reads an instruction's name.
func accessOf(op string) (a access, ok bool) {
	_, name, _ := strings.Cut(op, "_")
	if a, ok = small[name]; ok {
		return a, true
	}
	verb, width, _ := strings.Cut(name, "_")
	n, ok := widths[width]
	a = access{load: verb == "load" || verb == "read", bytes: 4 * n}
	return a, ok && n <= 4 && (a.load || verb == "store" || verb == "write")
}

// globalOp compiles accesses of memory by address or by buffer.
func (c compiler) globalOp(l line) (step, error) {
	off, err := l.number("offset")
	if err != nil {
		return nil, err
	}
	buffer := strings.HasPrefix(l.op, "buffer_")
	if strings.Contains(l.op, "_atomic_add") {
		return c.atomicAdd(l, off)
	}
	a, ok := accessOf(l.op)
	if !ok || l.has("idxen") || buffer && len(l.args) != 4 || !buffer && len(l.args) != 3 {
		return nil, fmt.Errorf("an access of memory that is not known")
	}
	data, va := l.args[0], l.args[1]
	if !a.load && !buffer {
		data, va = va, data
	}
	place := globalAddress(va, l.args[2], off)
	if buffer {
		place = bufferAddress(l, off)
	}
	if a.half != 0 && data.half == 0 || a.bytes >= 4 {
		data.half = a.half
	}
	if data.kind != kindVector {
		return nil, fmt.Errorf("data that is not known")
	}
	run := a.run(data)
	return func(w *wave) {
		var p [64]unsafe.Pointer
		e := w.exec()
		place(w, a.bytes, a.load, e, &p)
		if t := w.k.tally; t != nil {
			t.moved(&p, e, a.bytes)
		}
		run(w, e, &p)
	}, nil
}

// reach finds the memory of each lane that takes part; none where there is no such.
type reach func(w *wave, bytes int, load bool, e uint64, p *[64]unsafe.Pointer)

// globalAddress adds a lane's registers to those of the wave, or has both halves in the lane's.
func globalAddress(va, base operand, off int) reach {
	return func(w *wave, bytes int, load bool, e uint64, p *[64]unsafe.Pointer) {
		lo, hi, from := &w.v[va.reg], &w.v[va.reg+1], uint64(int64(off))
		if base.kind == kindScalar {
			from += wide(w.s[base.reg], w.s[base.reg+1])
		}
		for ; e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			at := from + uint64(lo[i])
			if base.kind == kindOff {
				at += uint64(hi[i]) << 32
			}
			if p[i] = w.view.at(at, uint64(bytes)); p[i] == nil {
				w.fault(what(load)+" outside all memory", at&addressBits)
			}
		}
	}
}

func what(load bool) string {
	if load {
		return "a read"
	}
	return "a write"
}

func bufferAddress(l line, off int) reach {
	va, rs, more, offen := l.args[1], l.args[2].reg, l.args[3], l.has("offen")
	return func(w *wave, bytes int, load bool, e uint64, p *[64]unsafe.Pointer) {
		base, end := wide(w.s[rs], w.s[rs+1]&0xffff), uint64(w.s[rs+2])
		if w.s[rs+1]>>16&0x3fff != 0 {
			panic(fmt.Errorf("a buffer with a stride"))
		}
		from := uint64(w.scalar(&more))
		for ; e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			in := uint32(off) // the sum wraps: RADV folds constants into it that go below 0
			if offen {
				in += w.v[va.reg][i]
			}
			at := from + uint64(in)
			if at+uint64(bytes) > end {
				w.fault(fmt.Sprintf("%s of %d bytes beyond a buffer of %d", what(load), bytes, end), at)
				p[i] = nil
				continue
			}
			if p[i] = w.view.at(base+at, uint64(bytes)); p[i] == nil {
				w.fault(what(load)+" in a buffer outside all memory", base+at)
			}
		}
	}
}

// run compiles what is loaded or stored at the lanes' memory.
func (a access) run(data operand) func(w *wave, e uint64, p *[64]unsafe.Pointer) {
	if a.bytes < 4 {
		return func(w *wave, e uint64, p *[64]unsafe.Pointer) { a.part(w, data, e, p) }
	}
	n := a.bytes / 4
	return func(w *wave, e uint64, p *[64]unsafe.Pointer) {
		for ; e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			if p[i] == nil {
				for j := 0; a.load && j < n; j++ {
					w.v[data.reg+j][i] = 0
				}
				continue
			}
			words := unsafe.Slice((*uint32)(p[i]), n)
			for j := range words {
				if a.load {
					w.v[data.reg+j][i] = words[j]
				} else {
					words[j] = w.v[data.reg+j][i]
				}
			}
		}
	}
}

// part loads or stores one or two bytes of every lane.
func (a access) part(w *wave, data operand, e uint64, p *[64]unsafe.Pointer) {
	t := &w.t[0]
	for m := e; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m) & 63
		t[i] = 0
		if p[i] == nil {
			continue
		}
		b := unsafe.Slice((*byte)(p[i]), a.bytes)
		if !a.load {
			x := w.v[data.reg][i]
			if data.half == 2 {
				x >>= 16
			}
			b[0] = byte(x)
			if a.bytes == 2 {
				b[1] = byte(x >> 8)
			}
			continue
		}
		x := uint32(b[0])
		if a.bytes == 2 {
			x |= uint32(b[1]) << 8
		}
		if a.signed {
			x = uint32(int32(x<<(32-8*a.bytes)) >> (32 - 8*a.bytes))
		}
		t[i] = x
	}
	if a.load {
		w.writeTo(&data, t)
	}
}

// atomicAdd adds to words of memory.
func (c compiler) atomicAdd(l line, off int) (step, error) {
	space, name, _ := strings.Cut(l.op, "_atomic_add")
	before := l.has("glc") || strings.Contains(l.mods["th"], "RETURN")
	if len(l.args) < 3 || name != "" && name != "_u32" {
		return nil, fmt.Errorf("an atomic operation that is not known")
	}
	d, from, n := l.args[0], l.args[0], len(l.args)
	var place reach
	switch {
	case space == "buffer" && n == 4:
		place = bufferAddress(l, off)
	case space == "global" && (n == 4) == before:
		va := l.args[n-3]
		from = l.args[n-2]
		place = globalAddress(va, l.args[n-1], off)
	default:
		return nil, fmt.Errorf("an atomic operation that is not known")
	}
	return func(w *wave) {
		var p [64]unsafe.Pointer
		e := w.exec()
		place(w, 4, false, e, &p)
		if t := w.k.tally; t != nil {
			t.moved(&p, e, 4)
		}
		for ; e != 0; e &= e - 1 {
			i := bits.TrailingZeros64(e) & 63
			if p[i] == nil {
				continue
			}
			x := w.v[from.reg][i]
			if sum := atomic.AddUint32((*uint32)(p[i]), x); before {
				w.v[d.reg][i] = sum - x
			}
		}
	}, nil
}

// offsets returns a modifier's two numbers of ds instructions that access two places.
func offsets(l line) (a, b int, err error) {
	if a, err = l.number("offset0"); err == nil {
		b, err = l.number("offset1")
	}
	return a, b, err
}

// swizzle returns the lane that each lane reads, by LLVM's names.
func swizzle(s string) (from [64]int, err error) {
	in, ok := within(s, "swizzle(", ")")
	f := strings.Split(in, ",")
	name := strings.TrimSpace(f[0])
	var n []int
	for _, x := range f[1:] {
		v, e := strconv.Atoi(strings.TrimSpace(x))
		n, ok = append(n, v), ok && e == nil
	}
	want := map[string]int{"ROTATE": 2, "SWAP": 1, "REVERSE": 1, "BROADCAST": 2}[name]
	if !ok || want == 0 || len(n) != want {
		return from, fmt.Errorf("lanes that are not known")
	}
	for i := range from {
		switch name {
		case "ROTATE": // 0 to the left, 1 to the right
			by := n[1]
			if n[0] == 1 {
				by = 32 - by
			}
			from[i] = i&^31 | (i+by)&31
		case "SWAP":
			from[i] = i ^ n[0]
		case "REVERSE":
			from[i] = i ^ (n[0] - 1)
		case "BROADCAST":
			from[i] = i&^(n[0]-1) | n[1]
		}
	}
	return from, nil
}
