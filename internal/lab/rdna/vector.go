package rdna

import (
	"fmt"
	"math/bits"
)

// format describes how an instruction reads and writes lanes.
type format byte

const (
	fInt   format = iota // 32 bits, without signs to change
	fFloat               // a float of 32 bits
	fWord                // 16 bits of an integer
	fHalf                // a float of 16 bits
	fPair                // two floats of 16 bits, each on its own
)

// vectorOp computes every lane from the same lane of up to three operands.
type vectorOp struct {
	n       int // operands
	in, out format
	f       func(d, a, b, c []uint32)
}

// accumulates are those whose third operand is the destination.
var accumulates = set("v_fmac_f32 v_dot2c_f32_f16 v_dot2acc_f32_f16")

// input is an operand with what is done to it before it is computed with.
type input struct {
	o    operand
	prep func(w *wave, from, to *lanes) // nil: nothing
}

// get returns the operand's lanes; tmp and tmp2 may be used for them.
func (in *input) get(w *wave, tmp, tmp2 *lanes) *lanes {
	p := w.source(&in.o, tmp)
	if in.prep == nil {
		return p
	}
	in.prep(w, p, tmp2)
	return tmp2
}

// vector compiles an instruction of vectorOps.
func (c compiler) vector(l line) (step, error) {
	op, ok := vectorOps[l.op]
	if !ok {
		return nil, fmt.Errorf("an instruction that is not known")
	}
	if want := op.n; accumulates[l.op] && len(l.args) != op.n || !accumulates[l.op] && len(l.args) != want+1 {
		return nil, fmt.Errorf("%d operands", len(l.args))
	}
	args := l.args[1:]
	if accumulates[l.op] {
		d := l.args[0]
		args = append(args[:len(args):len(args)], d)
	}
	if op.in == fPair {
		return c.packed(l, op, args)
	}
	var in [3]input
	for i := range args {
		var err error
		if in[i], err = c.input(l, i, args[i], op.format(i)); err != nil {
			return nil, err
		}
	}
	if l.has("clamp") && saturated[l.op] != nil {
		op.f = saturated[l.op]
	}
	d := l.args[0]
	if op.out == fWord || op.out == fHalf {
		if d.half == 0 && c.gfx >= 10 {
			d.half = 1 + l.list("op_sel", op.n+1, 0)[op.n]
			if l.enc == "sdwa" { // place says where
				d.half = 0
			}
		}
	}
	after, err := result(l, op.out)
	if err != nil {
		return nil, err
	}
	if d.kind == kindScalar { // v_s_
		return func(w *wave) {
			a := in[0].get(w, &w.t[0], &w.t[1])
			op.f(w.t[3][:1], a[:1], a[:1], a[:1])
			w.s[d.reg] = w.t[3][0]
		}, nil
	}
	if d.kind != kindVector {
		return nil, fmt.Errorf("a destination that is not known")
	}
	return guarded(l, op.step(d, in, after)), nil
}

// format returns an operand's.
func (op vectorOp) format(i int) format {
	if i == 2 && op.n == 3 && op.in == fInt && op.out == fFloat { // a sum of products of pairs
		return fFloat
	}
	return op.in
}

// step runs a compiled vector instruction.
func (op vectorOp) step(d operand, in [3]input, after func(w *wave, x *lanes)) step {
	f, whole := op.f, d.half == 0 && after == nil
	args := func(w *wave) (a, b, c []uint32) {
		n := w.size
		a = in[0].get(w, &w.t[0], &w.t[4])[:n]
		b, c = a, a
		if op.n > 1 {
			b = in[1].get(w, &w.t[1], &w.t[5])[:n]
		}
		if op.n > 2 {
			c = in[2].get(w, &w.t[2], &w.t[6])[:n]
		}
		return a, b, c
	}
	if whole {
		return func(w *wave) {
			a, b, c := args(w)
			if w.exec() == w.all {
				f(w.v[d.reg][:w.size], a, b, c)
				return
			}
			f(w.t[3][:w.size], a, b, c)
			w.write(d.reg, &w.t[3])
		}
	}
	return func(w *wave) {
		a, b, c := args(w)
		f(w.t[3][:w.size], a, b, c)
		if after != nil {
			after(w, &w.t[3])
		}
		w.writeTo(&d, &w.t[3])
	}
}

// input compiles operand i.
func (c compiler) input(l line, i int, o operand, f format) (in input, err error) {
	in.o = o
	if l.enc == "dpp" && i == 0 {
		return c.dpp(l, o, f)
	}
	if l.enc == "sdwa" {
		return sdwa(l, i, o, f)
	}
	if (o.neg || o.abs) && signOf(f) == 0 || o.sext {
		return in, fmt.Errorf("an operand's change that is not known")
	}
	half := o.half
	if small := f == fWord || f == fHalf; small {
		if half == 0 && o.kind != kindConstant {
			half = 1 + l.list("op_sel", 4, 0)[i]
		}
		if o.kind == kindConstant && o.float {
			in.o.bits = toHalf(o.value)
		}
		in.o.bits &= 0xffff
	}
	if o.kind == kindConstant {
		in.o.bits = withSign(in.o.bits, o.neg, o.abs, f)
		in.o.lanes = repeat(in.o.bits)
		return in, nil
	}
	in.prep = prepare(half, o.neg, o.abs, f)
	return in, nil
}

// signOf is the bit of a float's sign.
func signOf(f format) uint32 {
	switch f {
	case fHalf:
		return 1 << 15
	case fFloat:
		return 1 << 31
	}
	return 0
}

func withSign(x uint32, neg, abs bool, f format) uint32 {
	if abs {
		x &^= signOf(f)
	}
	if neg {
		x ^= signOf(f)
	}
	return x
}

// prepare takes a half and changes signs; nil where there is nothing to do.
func prepare(half int, neg, abs bool, f format) func(w *wave, from, to *lanes) {
	if half == 0 && !neg && !abs {
		return nil
	}
	shift, mask := uint(0), uint32(0xffffffff)
	if half != 0 {
		shift, mask = uint(half-1)*16, 0xffff
	}
	clear, flip := uint32(0), uint32(0)
	if abs {
		clear = signOf(f)
	}
	if neg {
		flip = signOf(f)
	}
	mask &^= clear
	return func(w *wave, from, to *lanes) {
		for i, x := range from[:w.size] {
			to[i] = x>>shift&mask ^ flip
		}
	}
}

// result compiles what is done to a result before it is stored: scaling, clamping, a part of a
// register; nil: nothing.
func result(l line, out format) (func(w *wave, x *lanes), error) {
	var steps []func(w *wave, x *lanes)
	by := float32(1)
	if n, err := l.number("mul"); err != nil {
		return nil, err
	} else if n != 0 {
		by = float32(n)
	}
	if n, err := l.number("div"); err != nil {
		return nil, err
	} else if n != 0 {
		by = 1 / float32(n)
	}
	if by != 1 {
		if out != fFloat {
			return nil, fmt.Errorf("scaling of what is no float")
		}
		steps = append(steps, func(w *wave, x *lanes) {
			for i := range x[:w.size] {
				x[i] = flush(asBits(asFloat(x[i]) * by))
			}
		})
	}
	if l.has("clamp") {
		switch {
		case out == fFloat:
			steps = append(steps, func(w *wave, x *lanes) {
				for i := range x[:w.size] {
					x[i] = smaller(larger(x[i], 0), 0x3f800000)
				}
			})
		case out == fHalf:
			steps = append(steps, func(w *wave, x *lanes) {
				for i := range x[:w.size] {
					x[i] = toHalf(float64(max(0, min(1, fromHalf(x[i])))))
				}
			})
		case saturated[l.op] == nil:
			return nil, fmt.Errorf("clamping of integers is not known")
		}
	}
	if l.enc == "sdwa" {
		if f, err := place(l); err != nil || f != nil {
			return f, err
		}
	}
	switch len(steps) {
	case 0:
		return nil, nil
	case 1:
		return steps[0], nil
	}
	return func(w *wave, x *lanes) {
		for _, f := range steps {
			f(w, x)
		}
	}, nil
}

// packed compiles an instruction that computes both halves.
func (c compiler) packed(l line, op vectorOp, args []operand) (step, error) {
	if l.has("clamp") || l.has("mul") || l.has("div") {
		return nil, fmt.Errorf("a result's change that is not known")
	}
	type part struct {
		lo, hi func(w *wave, from, to *lanes)
	}
	var parts [3]part
	low, high := l.list("op_sel", 3, 0), l.list("op_sel_hi", 3, 1)
	negLow, negHigh := l.list("neg_lo", 3, 0), l.list("neg_hi", 3, 0)
	for i := range args {
		o := &args[i]
		if o.neg || o.abs || o.half != 0 {
			return nil, fmt.Errorf("a packed operand that is not known")
		}
		if o.kind == kindConstant && o.float { // stands in the low half
			o.bits = toHalf(o.value)
			o.lanes = repeat(o.bits)
		}
		parts[i] = part{prepare(1+low[i], negLow[i] == 1, false, fHalf), prepare(1+high[i], negHigh[i] == 1, false, fHalf)}
	}
	d, n := l.args[0].reg, op.n
	return func(w *wave) {
		for i := range n {
			p := w.source(&args[i], &w.t[0])
			parts[i].lo(w, p, &w.t[1+i])
			parts[i].hi(w, p, &w.t[4+i])
		}
		z := w.size
		op.f(w.t[7][:z], w.t[1][:z], w.t[2][:z], w.t[3][:z])
		op.f(w.t[8][:z], w.t[4][:z], w.t[5][:z], w.t[6][:z])
		for i := range z {
			w.t[7][i] = w.t[7][i]&0xffff | w.t[8][i]<<16
		}
		w.write(d, &w.t[7])
	}, nil
}

// each1, each2 and each3 make a function of lanes of one of numbers.
func each1(f func(a uint32) uint32) func(d, a, b, c []uint32) {
	return func(d, a, _, _ []uint32) {
		a = a[:len(d)]
		for i := range d {
			d[i] = f(a[i])
		}
	}
}

func each2(f func(a, b uint32) uint32) func(d, a, b, c []uint32) {
	return func(d, a, b, _ []uint32) {
		a, b = a[:len(d)], b[:len(d)]
		for i := range d {
			d[i] = f(a[i], b[i])
		}
	}
}

func each3(f func(a, b, c uint32) uint32) func(d, a, b, c []uint32) {
	return func(d, a, b, c []uint32) {
		a, b, c = a[:len(d)], b[:len(d)], c[:len(d)]
		for i := range d {
			d[i] = f(a[i], b[i], c[i])
		}
	}
}

// Makers of table entries.
func int1(f func(a uint32) uint32) vectorOp       { return vectorOp{1, fInt, fInt, each1(f)} }
func int2(f func(a, b uint32) uint32) vectorOp    { return vectorOp{2, fInt, fInt, each2(f)} }
func int3(f func(a, b, c uint32) uint32) vectorOp { return vectorOp{3, fInt, fInt, each3(f)} }
func word2(f func(a, b uint32) uint32) vectorOp   { return vectorOp{2, fWord, fWord, each2(f)} }

func float1(f func(a float32) float32) vectorOp {
	return vectorOp{1, fFloat, fFloat, each1(func(a uint32) uint32 { return flush(asBits(f(asFloat(flush(a))))) })}
}

func float2(f func(a, b float32) float32) vectorOp {
	return vectorOp{2, fFloat, fFloat, each2(func(a, b uint32) uint32 { return flush(asBits(f(asFloat(flush(a)), asFloat(flush(b))))) })}
}

// pick2 and pick3 choose among floats, whose bits stay.
func pick2(f func(a, b uint32) uint32) vectorOp {
	return vectorOp{2, fFloat, fFloat, each2(func(a, b uint32) uint32 { return f(flush(a), flush(b)) })}
}

func pick3(f func(a, b, c uint32) uint32) vectorOp {
	return vectorOp{3, fFloat, fFloat, each3(func(a, b, c uint32) uint32 { return f(flush(a), flush(b), flush(c)) })}
}

func half2(in format, f func(a, b float64) float64) vectorOp {
	return vectorOp{2, in, in, each2(func(a, b uint32) uint32 { return toHalf(f(float64(fromHalf(a)), float64(fromHalf(b)))) })}
}

func signed2(f func(a, b int32) int32) vectorOp {
	return int2(func(a, b uint32) uint32 { return uint32(f(int32(a), int32(b))) })
}

func signed3(f func(a, b, c int32) int32) vectorOp {
	return int3(func(a, b, c uint32) uint32 { return uint32(f(int32(a), int32(b), int32(c))) })
}

// countOnes is the number of bits set.
func countOnes(x uint32) uint32 { return uint32(bits.OnesCount32(x)) }
