package rdna

import (
	"fmt"
	"math/bits"
	"strings"
)

// specials are vector instructions that a table of functions of lanes cannot describe.
var specials = map[string]func(c compiler, l line) (step, error){
	"v_cndmask_b32": compiler.choose, "v_cndmask_b16": compiler.choose,
	"v_add_co_u32": compiler.carry, "v_sub_co_u32": compiler.carry, "v_subrev_co_u32": compiler.carry,
	"v_add_co_ci_u32": compiler.carry, "v_sub_co_ci_u32": compiler.carry, "v_subrev_co_ci_u32": compiler.carry,
	"v_lshlrev_b64": compiler.shift64, "v_lshrrev_b64": compiler.shift64, "v_ashrrev_i64": compiler.shift64,
	"v_fma_mix_f32": compiler.mixed, "v_fma_mixlo_f16": compiler.mixed, "v_fma_mixhi_f16": compiler.mixed,
	"v_mad_u64_u32": compiler.multiply64, "v_cvt_pk_f32_fp8": compiler.fromPair8,
}

// maskOf is the register of a mask of lanes; vcc where none is named.
func maskOf(l line, i int) (int, error) {
	if len(l.args) <= i {
		return vcc, nil
	}
	if o := l.args[i]; o.kind == kindScalar || o.null {
		return o.reg, nil
	}
	return 0, fmt.Errorf("a mask that is not known")
}

// choose takes the second operand where a mask has a bit, else the first.
func (c compiler) choose(l line) (step, error) {
	mask, err := maskOf(l, 3)
	if err != nil {
		return nil, err
	}
	f, out := fFloat, fInt // it only has signs to change
	if l.op == "v_cndmask_b16" {
		f, out = fHalf, fWord
	}
	var in [2]input
	for i := range in {
		if in[i], err = c.input(l, i, l.args[1+i], f); err != nil {
			return nil, err
		}
	}
	after, err := result(l, out)
	if err != nil {
		return nil, err
	}
	d := l.args[0]
	if out == fWord && d.half == 0 && l.enc != "sdwa" {
		d.half = 1 + l.list("op_sel", 4, 0)[3]
	}
	return guarded(l, func(w *wave) {
		a, b, m := in[0].get(w, &w.t[0], &w.t[4]), in[1].get(w, &w.t[1], &w.t[5]), w.mask(mask)
		t := &w.t[3]
		for i, x := range a[:w.size] {
			if m>>(i&63)&1 == 1 {
				x = b[i]
			}
			t[i] = x
		}
		if after != nil {
			after(w, t)
		}
		w.writeTo(&d, t)
	}), nil
}

// carry adds or subtracts, and sets a bit for each lane whose result does not fit.
func (c compiler) carry(l line) (step, error) {
	if l.enc == "sdwa" || l.enc == "dpp" || l.has("clamp") || len(l.args) < 4 {
		return nil, fmt.Errorf("a form that is not known")
	}
	d, a, b := l.args[0].reg, l.args[2], l.args[3]
	to, err := maskOf(l, 1)
	if err != nil {
		return nil, err
	}
	from := -1
	if strings.Contains(l.op, "_ci_") {
		if from, err = maskOf(l, 4); err != nil {
			return nil, err
		}
	}
	minus, reversed := strings.HasPrefix(l.op, "v_sub"), strings.HasPrefix(l.op, "v_subrev")
	if reversed {
		a, b = b, a
	}
	return func(w *wave) {
		p, q := w.source(&a, &w.t[0]), w.source(&b, &w.t[1])
		in, out := uint64(0), uint64(0)
		if from >= 0 {
			in = w.mask(from)
		}
		for i := range w.size {
			x, y, s := uint64(p[i]), uint64(q[i])+in>>i&1, uint64(0)
			if minus {
				s = x - y
			} else {
				s = x + y
			}
			w.t[3][i] = uint32(s)
			out |= s >> 32 & 1 << i
		}
		w.write(d, &w.t[3])
		w.setMask(to, out&w.exec())
	}, nil
}

// lane64 reads an operand of two registers for one lane.
func (w *wave) lane64(o *operand, i int) uint64 {
	if o.kind == kindVector {
		return wide(w.v[o.reg][i], w.v[o.reg+1][i])
	}
	return w.scalar64(o)
}

// each64 stores two registers of every lane that takes part.
func (w *wave) each64(d int, f func(i int) uint64) {
	for e := w.exec(); e != 0; e &= e - 1 {
		i := bits.TrailingZeros64(e)
		x := f(i)
		w.v[d][i], w.v[d+1][i] = uint32(x), uint32(x>>32)
	}
}

func (c compiler) shift64(l line) (step, error) {
	d, by, o := l.args[0].reg, l.args[1], l.args[2]
	if o.kind == kindConstant && o.float {
		return nil, fmt.Errorf("a float as an integer of 64 bits")
	}
	f := map[string]func(x uint64, n uint32) uint64{
		"v_lshlrev_b64": func(x uint64, n uint32) uint64 { return x << (n & 63) },
		"v_lshrrev_b64": func(x uint64, n uint32) uint64 { return x >> (n & 63) },
		"v_ashrrev_i64": func(x uint64, n uint32) uint64 { return uint64(int64(x) >> (n & 63)) },
	}[l.op]
	return func(w *wave) {
		n := *w.source(&by, &w.t[0]) // the destination may be the count
		w.each64(d, func(i int) uint64 { return f(w.lane64(&o, i), n[i]) })
	}, nil
}

// multiply64 is a*b + c of 64 bits.
func (c compiler) multiply64(l line) (step, error) {
	d, a, b, add := l.args[0].reg, l.args[2], l.args[3], l.args[4]
	to, err := maskOf(l, 1)
	if err != nil {
		return nil, err
	}
	return func(w *wave) {
		p, q, over := *w.source(&a, &w.t[0]), *w.source(&b, &w.t[1]), uint64(0)
		w.each64(d, func(i int) uint64 {
			x := uint64(p[i]) * uint64(q[i])
			s, more := bits.Add64(x, w.lane64(&add, i), 0)
			over |= more << i
			return s
		})
		w.setMask(to, over)
	}, nil
}

// mixed is a fused multiply-add of floats of 32 and 16 bits.
func (c compiler) mixed(l line) (step, error) {
	if l.has("clamp") {
		return nil, fmt.Errorf("clamping is not known")
	}
	high, small := l.list("op_sel", 3, 0), l.list("op_sel_hi", 3, 0)
	var in [3]operand
	for i := range in {
		in[i] = l.args[1+i]
		if o := &in[i]; o.kind == kindConstant && small[i] == 1 && o.float {
			o.bits = toHalf(o.value)
			o.lanes = repeat(o.bits)
		}
	}
	d := l.args[0]
	if h := strings.Index("lohi", strings.TrimSuffix(strings.TrimPrefix(l.op, "v_fma_mix"), "_f16")); h >= 0 && l.op != "v_fma_mix_f32" {
		d.half = 1 + h/2
	}
	wholeFloat := d.half == 0
	return func(w *wave) {
		for j := range in {
			o, p := &in[j], w.source(&in[j], &w.t[0])
			for i, x := range p[:w.size] {
				if small[j] == 1 {
					x = asBits(fromHalf(x >> (16 * high[j]) & 0xffff))
				}
				w.t[1+j][i] = flush(withSign(x, o.neg, o.abs, fFloat))
			}
		}
		for i := range w.size {
			r := fused(asFloat(w.t[1][i]), asFloat(w.t[2][i]), asFloat(w.t[3][i]))
			if wholeFloat {
				w.t[4][i] = flush(asBits(r))
			} else {
				w.t[4][i] = toHalf(float64(r))
			}
		}
		w.writeTo(&d, &w.t[4])
	}, nil
}

// fromPair8 converts two floats of 8 bits.
func (c compiler) fromPair8(l line) (step, error) {
	d, o := l.args[0].reg, l.args[1]
	half := o.half
	if half == 0 {
		half = 1 + l.list("op_sel", 1, 0)[0]
	}
	shift := uint(half-1) * 16
	if o.kind == kindConstant || l.enc == "sdwa" || l.enc == "dpp" {
		return nil, fmt.Errorf("a form that is not known")
	}
	return func(w *wave) {
		p := *w.source(&o, &w.t[0])
		w.each64(d, func(i int) uint64 {
			x := p[i] >> shift
			return wide(asBits(fromE4M3(x&255)), asBits(fromE4M3(x>>8&255)))
		})
	}, nil
}
