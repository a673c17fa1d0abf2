package rdna

import (
	"fmt"
	"math/bits"
)

// dppFrom returns the lane that each lane reads, -1 for none.
func dppFrom(l line) (from [64]int, err error) {
	num := func(mod string) int {
		n, e := l.number(mod)
		if e != nil {
			err = e
		}
		return n
	}
	quad, eight := l.list("quad_perm", 4, 0), l.list("dpp8", 8, 0)
	for i := range from {
		row, at := i&^15, i&15
		to := -1
		switch {
		case l.has("quad_perm"):
			from[i] = i&^3 | quad[i&3]
			continue
		case l.has("dpp8"):
			from[i] = i&^7 | eight[i&7]
			continue
		case l.has("row_xmask"):
			to = at ^ num("row_xmask")
		case l.has("row_share"):
			to = num("row_share")
		case l.has("row_ror"):
			to = (at + 16 - num("row_ror")) & 15
		case l.has("row_shl"):
			to = at + num("row_shl")
		case l.has("row_shr"):
			to = at - num("row_shr")
		case l.has("row_mirror"):
			to = 15 - at
		case l.has("row_half_mirror"):
			to = at&8 | 7 - at&7
		default:
			return from, fmt.Errorf("lanes that are not known")
		}
		from[i] = row | to
		if to < 0 || to > 15 {
			from[i] = -1
		}
	}
	return from, err
}

// dpp compiles an operand that is read from other lanes. What lies outside or takes no part is 0.
func (c compiler) dpp(l line, o operand, f format) (in input, err error) {
	if o.kind != kindVector {
		return in, fmt.Errorf("lanes of what is no vector register")
	}
	for _, m := range []string{"row_mask", "bank_mask"} {
		if x, err := l.number(m); err != nil || l.has(m) && x != 15 {
			return in, fmt.Errorf("%s:%s is not known", m, l.mods[m])
		}
	}
	in.o = o
	from, err := dppFrom(l)
	if err != nil {
		return in, err
	}
	half := o.half
	if half == 0 && (f == fHalf || f == fWord) {
		half = 1 + l.list("op_sel", 4, 0)[0]
	}
	change := prepare(half, o.neg, o.abs, f)
	inactive := l.has("fi")
	in.prep = func(w *wave, p, to *lanes) {
		e := w.before
		var moved lanes
		for i := range w.size {
			if j := from[i]; j >= 0 && (inactive || e>>j&1 == 1) {
				moved[i] = p[j]
			}
		}
		if change == nil {
			*to = moved
			return
		}
		change(w, &moved, to)
	}
	return in, nil
}

// guarded makes an instruction that reads other lanes leave out those that find nothing there.
func guarded(l line, run step) step {
	if l.enc != "dpp" {
		return run
	}
	from, err := dppFrom(l)
	zero := l.has("bound_ctrl") || l.has("dpp8")
	inactive := l.has("fi")
	return func(w *wave) {
		if err != nil {
			panic(err)
		}
		e := w.exec()
		w.before = e
		if zero {
			run(w)
			return
		}
		valid := uint64(0)
		for i, j := range from[:w.size] {
			if j >= 0 && (inactive || e>>j&1 == 1) {
				valid |= 1 << i
			}
		}
		w.setExec(e & valid)
		run(w)
		w.setExec(e)
	}
}

// selects are the parts of a register that RDNA2's SDWA reads and writes: first bit, and bits.
var selects = map[string][2]uint{"BYTE_0": {0, 8}, "BYTE_1": {8, 8}, "BYTE_2": {16, 8}, "BYTE_3": {24, 8},
	"WORD_0": {0, 16}, "WORD_1": {16, 16}, "DWORD": {0, 32}, "": {0, 32}}

func sdwa(l line, i int, o operand, f format) (in input, err error) {
	in.o = o
	if i > 1 { // the destination, or a mask
		return in, nil
	}
	name := l.mods[fmt.Sprintf("src%d_sel", i)]
	part, ok := selects[name]
	if !ok || o.kind == kindConstant && part[1] != 32 {
		return in, fmt.Errorf("a part of a register that is not known")
	}
	shift, n := part[0], part[1]
	if (f == fHalf || f == fWord) && n > 16 {
		n = 16
	}
	if o.kind == kindConstant && o.float && f == fHalf {
		in.o.bits = toHalf(o.value)
		in.o.lanes = repeat(in.o.bits)
	}
	neg, abs, sext := o.neg, o.abs, o.sext
	in.prep = func(w *wave, from, to *lanes) {
		for j, x := range from[:w.size] {
			x = x >> shift << (32 - n)
			if sext {
				x = uint32(int32(x) >> (32 - n))
			} else {
				x >>= 32 - n
			}
			to[j] = withSign(x, neg, abs, f)
		}
	}
	return in, nil
}

// place compiles SDWA's destination: a part of a register; nil: all of it.
func place(l line) (func(w *wave, x *lanes), error) {
	part, ok := selects[l.mods["dst_sel"]]
	if !ok || len(l.args) == 0 {
		return nil, fmt.Errorf("a part of a register that is not known")
	}
	if part[1] == 32 {
		return nil, nil
	}
	shift, mask := part[0], uint32(1)<<part[1]-1
	keep, reg := uint32(0), l.args[0].reg
	switch l.mods["dst_unused"] {
	case "UNUSED_PRESERVE":
		keep = ^(mask << shift)
	case "UNUSED_PAD":
	default:
		return nil, fmt.Errorf("dst_unused:%s is not known", l.mods["dst_unused"])
	}
	return func(w *wave, x *lanes) {
		for i := range x[:w.size] {
			x[i] = w.v[reg][i]&keep | x[i]&mask<<shift
		}
	}, nil
}

func init() {
	for name, f := range map[string]func(c compiler, l line) (step, error){
		"v_readfirstlane_b32": compiler.readFirst, "v_readlane_b32": compiler.readLane, "v_writelane_b32": compiler.writeLane,
		"v_permlanex16_b32": compiler.permute16, "v_permlane16_b32": compiler.permute16,
		"v_mbcnt_lo_u32_b32": compiler.countBelow, "v_mbcnt_hi_u32_b32": compiler.countBelow,
		"v_swap_b32": compiler.swap, "v_swap_b16": compiler.swap,
	} {
		specials[name] = f
	}
}

func (c compiler) readFirst(l line) (step, error) {
	d, o := l.args[0].reg, l.args[1]
	return func(w *wave) {
		i := 0
		if e := w.exec(); e != 0 {
			i = bits.TrailingZeros64(e)
		}
		w.s[d] = w.source(&o, &w.t[0])[i]
	}, nil
}

func (c compiler) readLane(l line) (step, error) {
	d, o, n := l.args[0].reg, l.args[1], l.args[2]
	return func(w *wave) { w.s[d] = w.source(&o, &w.t[0])[w.scalar(&n)&uint32(w.size-1)] }, nil
}

func (c compiler) writeLane(l line) (step, error) {
	d, o, n := l.args[0].reg, l.args[1], l.args[2]
	return func(w *wave) { w.v[d][w.scalar(&n)&uint32(w.size-1)] = w.scalar(&o) }, nil
}

// permute16 reads lanes of the same row of 16, or of the other one of a pair.
func (c compiler) permute16(l line) (step, error) {
	d, o, lo, hi := l.args[0].reg, l.args[1], l.args[2], l.args[3]
	if lo.kind == kindVector || hi.kind == kindVector || o.kind != kindVector {
		return nil, fmt.Errorf("operands that are not known")
	}
	cross := 0
	if l.op == "v_permlanex16_b32" {
		cross = 16
	}
	flags := l.list("op_sel", 2, 0)
	inactive, zero := flags[0] == 1, flags[1] == 1
	return func(w *wave) {
		e, from := w.exec(), wide(w.scalar(&lo), w.scalar(&hi))
		for i := range w.size {
			j := i&^15 ^ cross | int(from>>(4*(i&15))&15)
			switch {
			case inactive || e>>j&1 == 1:
				w.t[3][i] = w.v[o.reg][j]
			case zero:
				w.t[3][i] = 0
			default:
				w.t[3][i] = w.v[d][i]
			}
		}
		w.write(d, &w.t[3])
	}, nil
}

// countBelow counts the bits of a mask that belong to lanes below each.
func (c compiler) countBelow(l line) (step, error) {
	d, mask, add := l.args[0].reg, l.args[1], l.args[2]
	shift := 0
	if l.op == "v_mbcnt_hi_u32_b32" {
		shift = 32
	}
	return func(w *wave) {
		m, a := w.source(&mask, &w.t[0]), w.source(&add, &w.t[1])
		for i := range w.size {
			w.t[3][i] = countOnes(m[i]&uint32((uint64(1)<<i-1)>>shift)) + a[i]
		}
		w.write(d, &w.t[3])
	}, nil
}

func (c compiler) swap(l line) (step, error) {
	a, b := l.args[0], l.args[1]
	one, two := prepare(a.half, false, false, fInt), prepare(b.half, false, false, fInt)
	return func(w *wave) {
		w.t[0], w.t[1] = w.v[a.reg], w.v[b.reg]
		if one != nil {
			one(w, &w.v[a.reg], &w.t[0])
			two(w, &w.v[b.reg], &w.t[1])
		}
		w.writeTo(&b, &w.t[0])
		w.writeTo(&a, &w.t[1])
	}, nil
}
