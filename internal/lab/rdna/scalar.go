package rdna

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// scalarOp computes a scalar from up to two others, each of one register or two.
type scalarOp struct {
	to, a, b int  // registers: 1 or 2, 0: none
	nonzero  bool // the condition says whether the result is not 0
	keeps    bool // the first operand is the destination, too
	f        func(w *wave, a, b uint64) uint64
}

// scalarOp compiles an instruction of scalarOps, or of those with an immediate number.
func (c compiler) scalarOp(l line) (step, error) {
	if strings.HasPrefix(l.op, "s_cmp") || strings.HasPrefix(l.op, "s_bitcmp") {
		return scalarCompare(l)
	}
	if strings.Contains(l.op, "_saveexec_") {
		return saveExec(l)
	}
	if l.op == "s_fmac_f32" {
		return scalarFused(l)
	}
	op, ok := scalarOps[l.op]
	n := 1
	for _, r := range []int{op.a, op.b} {
		if r > 0 {
			n++
		}
	}
	if op.keeps {
		l.args = append(l.args[:1:1], l.args...)
	}
	if !ok || len(l.args) != n {
		return nil, fmt.Errorf("a scalar instruction that is not known")
	}
	for _, o := range l.args {
		if o.neg || o.abs || o.half != 0 || o.kind == kindVector || o.kind == kindOff {
			return nil, fmt.Errorf("an operand that is not known")
		}
	}
	if strings.HasSuffix(l.op, "k_i32") || l.op == "s_addk_co_i32" { // an immediate with sign
		o := &l.args[n-1]
		o.bits = uint32(int32(int16(o.bits)))
		o.value = float64(int32(o.bits))
	}
	return op.step(l.args), nil
}

func (op scalarOp) step(args []operand) step {
	d := args[0].reg
	read := func(w *wave, i, registers int) uint64 {
		switch registers {
		case 0:
			return 0
		case 1:
			return uint64(w.scalar(&args[i]))
		}
		return w.scalar64(&args[i])
	}
	return func(w *wave) {
		a := read(w, 1, op.a)
		b := read(w, 2, op.b)
		r := op.f(w, a, b)
		if op.to == 1 {
			r &= math.MaxUint32
			w.s[d] = uint32(r)
		} else {
			w.s[d], w.s[d+1] = uint32(r), uint32(r>>32)
		}
		if op.nonzero {
			w.scc = r != 0
		}
	}
}

var scalarOps = map[string]scalarOp{}

func init() {
	plain := func(name string, to, a, b int, f func(a, b uint64) uint64) {
		scalarOps[name] = scalarOp{to: to, a: a, b: b, f: func(_ *wave, a, b uint64) uint64 { return f(a, b) }}
	}
	tests := func(name string, to, a, b int, f func(a, b uint64) uint64) {
		plain(name, to, a, b, f)
		op := scalarOps[name]
		op.nonzero = true
		scalarOps[name] = op
	}
	for n, w := range []string{"32", "64"} { // of both widths
		n++
		plain("s_mov_b"+w, n, n, 0, func(a, _ uint64) uint64 { return a })
		tests("s_not_b"+w, n, n, 0, func(a, _ uint64) uint64 { return ^a })
		tests("s_and_b"+w, n, n, n, func(a, b uint64) uint64 { return a & b })
		tests("s_or_b"+w, n, n, n, func(a, b uint64) uint64 { return a | b })
		tests("s_xor_b"+w, n, n, n, func(a, b uint64) uint64 { return a ^ b })
		tests("s_nand_b"+w, n, n, n, func(a, b uint64) uint64 { return ^(a & b) })
		tests("s_nor_b"+w, n, n, n, func(a, b uint64) uint64 { return ^(a | b) })
		tests("s_xnor_b"+w, n, n, n, func(a, b uint64) uint64 { return ^(a ^ b) })
		for _, name := range []string{"s_and_not1_b", "s_andn2_b"} {
			tests(name+w, n, n, n, func(a, b uint64) uint64 { return a &^ b })
		}
		for _, name := range []string{"s_or_not1_b", "s_orn2_b"} {
			tests(name+w, n, n, n, func(a, b uint64) uint64 { return a | ^b })
		}
		size := uint64(32 * n)
		tests("s_lshl_b"+w, n, n, 1, func(a, b uint64) uint64 { return a << (b & (size - 1)) })
		tests("s_lshr_b"+w, n, n, 1, func(a, b uint64) uint64 { return a >> (b & (size - 1)) })
		plain("s_bfm_b"+w, n, 1, 1, func(a, b uint64) uint64 { return (1<<(a&(size-1)) - 1) << (b & (size - 1)) })
		tests("s_bcnt1_i32_b"+w, 1, n, 0, func(a, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) })
		for _, name := range []string{"s_ctz_i32_b", "s_ff1_i32_b"} {
			plain(name+w, 1, n, 0, func(a, _ uint64) uint64 {
				if a == 0 {
					return math.MaxUint32
				}
				return uint64(bits.TrailingZeros64(a))
			})
		}
		scalarOps["s_cselect_b"+w] = scalarOp{to: n, a: n, b: n, f: func(w *wave, a, b uint64) uint64 {
			if w.scc {
				return a
			}
			return b
		}}
	}
	tests("s_ashr_i32", 1, 1, 1, func(a, b uint64) uint64 { return uint64(uint32(int32(a) >> (b & 31))) })
	tests("s_ashr_i64", 2, 2, 1, func(a, b uint64) uint64 { return uint64(int64(a) >> (b & 63)) })
	tests("s_bfe_u32", 1, 1, 1, func(a, b uint64) uint64 { return a >> (b & 31) & (1<<(b>>16&127) - 1) })
	plain("s_brev_b32", 1, 1, 0, func(a, _ uint64) uint64 { return uint64(bits.Reverse32(uint32(a))) })
	tests("s_abs_i32", 1, 1, 0, func(a, _ uint64) uint64 { return uint64(uint32(max(int32(a), -int32(a)))) })
	tests("s_absdiff_i32", 1, 1, 1, func(a, b uint64) uint64 { d := int32(a) - int32(b); return uint64(uint32(max(d, -d))) })
	plain("s_sext_i32_i16", 1, 1, 0, func(a, _ uint64) uint64 { return uint64(uint32(int16(a))) })
	plain("s_movk_i32", 1, 1, 0, func(a, _ uint64) uint64 { return a })
	plain("s_mul_i32", 1, 1, 1, func(a, b uint64) uint64 { return a * b })
	plain("s_mul_hi_u32", 1, 1, 1, func(a, b uint64) uint64 { return a * b >> 32 })
	plain("s_mul_hi_i32", 1, 1, 1, func(a, b uint64) uint64 { return uint64(int64(int32(a)) * int64(int32(b)) >> 32) })
	plain("s_mul_u64", 2, 2, 2, func(a, b uint64) uint64 { return a * b })
	plain("s_add_nc_u64", 2, 2, 2, func(a, b uint64) uint64 { return a + b })
	plain("s_sub_nc_u64", 2, 2, 2, func(a, b uint64) uint64 { return a - b })
	plain("s_pack_ll_b32_b16", 1, 1, 1, func(a, b uint64) uint64 { return a&0xffff | b<<16 })
	plain("s_pack_lh_b32_b16", 1, 1, 1, func(a, b uint64) uint64 { return a&0xffff | b&0xffff0000 })
	plain("s_pack_hl_b32_b16", 1, 1, 1, func(a, b uint64) uint64 { return a>>16 | b<<16 })
	plain("s_pack_hh_b32_b16", 1, 1, 1, func(a, b uint64) uint64 { return a>>16 | b&0xffff0000 })
	plain("s_bitreplicate_b64_b32", 2, 1, 0, func(a, _ uint64) (r uint64) {
		for i := range 32 {
			r |= a >> i & 1 * 3 << (2 * i)
		}
		return r
	})
	for _, name := range []string{"s_cmov_b32", "s_cmovk_i32"} {
		scalarOps[name] = scalarOp{to: 1, a: 1, b: 1, keeps: true, f: func(w *wave, a, b uint64) uint64 {
			if w.scc {
				return b
			}
			return a
		}}
	}
	scalarSums()
	scalarFloats()
	for name, f := range map[string]func(a, b uint64) uint64{
		"s_bitset0_b32": func(a, b uint64) uint64 { return a &^ (1 << (b & 31)) },
		"s_bitset1_b32": func(a, b uint64) uint64 { return a | 1<<(b&31) },
		"s_mulk_i32":    func(a, b uint64) uint64 { return a * b },
	} {
		scalarOps[name] = scalarOp{to: 1, a: 1, b: 1, keeps: true, f: func(_ *wave, a, b uint64) uint64 { return f(a, b) }}
	}
}

// scalarSums are those whose condition is a carry or an overflow.
func scalarSums() {
	put := func(f func(w *wave, a, b uint64) uint64, names ...string) {
		for _, name := range names {
			scalarOps[name] = scalarOp{to: 1, a: 1, b: 1, keeps: strings.HasPrefix(name, "s_addk"), f: f}
		}
	}
	carry := func(w *wave) uint64 {
		if w.scc {
			return 1
		}
		return 0
	}
	overflow := func(w *wave, r int64) uint64 {
		w.scc = r != int64(int32(r))
		return uint64(r)
	}
	put(func(w *wave, a, b uint64) uint64 { w.scc = a+b > math.MaxUint32; return a + b }, "s_add_u32", "s_add_co_u32")
	put(func(w *wave, a, b uint64) uint64 { w.scc = b > a; return a - b }, "s_sub_u32", "s_sub_co_u32")
	put(func(w *wave, a, b uint64) uint64 { s := a + b + carry(w); w.scc = s > math.MaxUint32; return s }, "s_addc_u32", "s_add_co_ci_u32")
	put(func(w *wave, a, b uint64) uint64 { b += carry(w); w.scc = b > a; return a - b }, "s_subb_u32", "s_sub_co_ci_u32")
	put(func(w *wave, a, b uint64) uint64 { return overflow(w, int64(int32(a))+int64(int32(b))) },
		"s_add_i32", "s_add_co_i32", "s_addk_i32", "s_addk_co_i32")
	put(func(w *wave, a, b uint64) uint64 { return overflow(w, int64(int32(a))-int64(int32(b))) }, "s_sub_i32", "s_sub_co_i32")
	put(func(w *wave, a, b uint64) uint64 { w.scc = a > b; return max(a, b) }, "s_max_u32")
	put(func(w *wave, a, b uint64) uint64 { w.scc = a < b; return min(a, b) }, "s_min_u32")
	put(func(w *wave, a, b uint64) uint64 { w.scc = int32(a) > int32(b); return uint64(max(int32(a), int32(b))) }, "s_max_i32")
	put(func(w *wave, a, b uint64) uint64 { w.scc = int32(a) < int32(b); return uint64(min(int32(a), int32(b))) }, "s_min_i32")
	for i := 1; i < 5; i++ {
		put(func(w *wave, a, b uint64) uint64 { s := a<<i + b; w.scc = s > math.MaxUint32; return s }, fmt.Sprintf("s_lshl%d_add_u32", i))
	}
}

// scalarFloats are those of RDNA3.5 and 4.
func scalarFloats() {
	bits32 := func(name string, b int, f func(a, b uint32) uint32) {
		scalarOps[name] = scalarOp{to: 1, a: 1, b: b, f: func(_ *wave, x, y uint64) uint64 { return uint64(f(uint32(x), uint32(y))) }}
	}
	two := func(name string, f func(a, b float32) float32) {
		bits32(name, 1, func(a, b uint32) uint32 { return flush(asBits(f(asFloat(flush(a)), asFloat(flush(b))))) })
	}
	one := func(name string, f func(a float64) float64) {
		bits32(name, 0, func(a, _ uint32) uint32 { return flush(asBits(float32(f(float64(asFloat(flush(a))))))) })
	}
	two("s_add_f32", func(a, b float32) float32 { return a + b })
	two("s_sub_f32", func(a, b float32) float32 { return a - b })
	two("s_mul_f32", func(a, b float32) float32 { return a * b })
	one("s_ceil_f32", math.Ceil)
	one("s_floor_f32", math.Floor)
	one("s_trunc_f32", math.Trunc)
	one("s_rndne_f32", math.RoundToEven)
	for _, num := range []string{"", "num_"} {
		bits32("s_max_"+num+"f32", 1, func(a, b uint32) uint32 { return larger(flush(a), flush(b)) })
		bits32("s_min_"+num+"f32", 1, func(a, b uint32) uint32 { return smaller(flush(a), flush(b)) })
	}
	bits32("s_cvt_f32_u32", 0, func(a, _ uint32) uint32 { return asBits(float32(a)) })
	bits32("s_cvt_f32_i32", 0, func(a, _ uint32) uint32 { return asBits(float32(int32(a))) })
	bits32("s_cvt_u32_f32", 0, func(a, _ uint32) uint32 { return toUnsigned(a) })
	bits32("s_cvt_i32_f32", 0, func(a, _ uint32) uint32 { return toSigned(a) })
	bits32("s_cvt_f16_f32", 0, func(a, _ uint32) uint32 { return toHalf(float64(asFloat(a))) })
	bits32("s_cvt_f32_f16", 0, func(a, _ uint32) uint32 { return asBits(fromHalf(a & 0xffff)) })
}

func scalarFused(l line) (step, error) {
	d, a, b := l.args[0].reg, l.args[1], l.args[2]
	return func(w *wave) {
		x, y, z := flush(w.scalar(&a)), flush(w.scalar(&b)), flush(w.s[d])
		w.s[d] = flush(asBits(fused(asFloat(x), asFloat(y), asFloat(z))))
	}, nil
}

// scalarCompare compiles s_cmp, s_cmpk and s_bitcmp, which set the condition.
func scalarCompare(l line) (step, error) {
	p := strings.Split(l.op, "_") // s cmp lt u32
	if len(l.args) != 2 {
		return nil, fmt.Errorf("a comparison that is not known")
	}
	a, b := l.args[0], l.args[1]
	if bit, ok := strings.CutPrefix(p[1], "bitcmp"); ok {
		want := bit == "1"
		if p[2] == "b64" {
			return func(w *wave) { w.scc = w.scalar64(&a)>>(w.scalar(&b)&63)&1 == 1 == want }, nil
		}
		return func(w *wave) { w.scc = w.scalar(&a)>>(w.scalar(&b)&31)&1 == 1 == want }, nil
	}
	if len(p) != 4 {
		return nil, fmt.Errorf("a comparison that is not known")
	}
	if p[1] == "cmpk" && p[3][0] == 'i' {
		b.bits = uint32(int32(int16(b.bits)))
	}
	if p[3] == "f32" && floatTests[p[2]] != nil {
		f := floatTests[p[2]]
		return func(w *wave) { w.scc = f(asFloat(flush(w.scalar(&a))), asFloat(flush(w.scalar(&b)))) }, nil
	}
	f, ok := orders[p[2]]
	flip, known := map[string]uint32{"u32": 0, "i32": 1 << 31}[p[3]]
	switch {
	case ok && known:
		return func(w *wave) { w.scc = f(uint64(w.scalar(&a)^flip), uint64(w.scalar(&b)^flip)) }, nil
	case ok && p[3] == "u64":
		return func(w *wave) { w.scc = f(w.scalar64(&a), w.scalar64(&b)) }, nil
	}
	return nil, fmt.Errorf("a comparison that is not known")
}

// saveExec keeps exec and combines it with a mask.
func saveExec(l line) (step, error) {
	kind, width, _ := strings.Cut(strings.TrimPrefix(l.op, "s_"), "_saveexec_b")
	f := map[string]func(s, e uint64) uint64{
		"and": func(s, e uint64) uint64 { return s & e }, "or": func(s, e uint64) uint64 { return s | e },
		"xor": func(s, e uint64) uint64 { return s ^ e }, "and_not1": func(s, e uint64) uint64 { return s &^ e },
		"andn2": func(s, e uint64) uint64 { return s &^ e }, "and_not0": func(s, e uint64) uint64 { return e &^ s },
		"andn1": func(s, e uint64) uint64 { return e &^ s },
	}[kind]
	if f == nil || len(l.args) != 2 {
		return nil, fmt.Errorf("a change of exec that is not known")
	}
	d, o := l.args[0].reg, l.args[1]
	if width == "64" {
		return func(w *wave) {
			e := wide(w.s[exec], w.s[exec+1])
			r := f(w.scalar64(&o), e)
			w.s[d], w.s[d+1] = uint32(e), uint32(e>>32)
			w.setExec(r)
			w.scc = r != 0
		}, nil
	}
	return func(w *wave) {
		e := w.s[exec]
		r := uint32(f(uint64(w.scalar(&o)), uint64(e)))
		w.s[d], w.s[exec] = e, r
		w.scc = r != 0
	}, nil
}
