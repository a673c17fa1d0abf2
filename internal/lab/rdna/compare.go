package rdna

import (
	"fmt"
	"strings"
)

// compare compiles v_cmp and v_cmpx, which sets exec.
func (c compiler) compare(l line) (step, error) {
	p := strings.Split(l.op, "_") // v cmp lt u32
	if len(p) != 4 || len(l.args) < 2 {
		return nil, fmt.Errorf("a comparison that is not known")
	}
	to := exec
	if p[1] == "cmp" {
		if o := l.args[0]; len(l.args) != 3 || o.kind != kindScalar && !o.null {
			return nil, fmt.Errorf("a mask that is not known")
		}
		to = l.args[0].reg
	}
	args := l.args[len(l.args)-2:]
	if strings.HasSuffix(p[3], "64") {
		return wide2(p[2], p[3], args, to)
	}
	test, f, err := comparison(p[2], p[3])
	if err != nil {
		return nil, err
	}
	var in [2]input
	for i := range in {
		g := f
		if i == 1 && p[2] == "class" {
			g = fInt
		}
		if in[i], err = c.input(l, i, args[i], g); err != nil {
			return nil, err
		}
	}
	return guarded(l, func(w *wave) {
		a, b := in[0].get(w, &w.t[0], &w.t[4]), in[1].get(w, &w.t[1], &w.t[5])
		w.setMask(to, test(a[:w.size], b[:w.size])&w.exec())
	}), nil
}

// wide2 compares integers of 64 bits.
func wide2(cond, ty string, args []operand, to int) (step, error) {
	flip := map[string]uint64{"u64": 0, "i64": 1 << 63}
	f, ok := flip[ty]
	test := orders[cond]
	if !ok || test == nil {
		return nil, fmt.Errorf("a comparison that is not known")
	}
	return func(w *wave) {
		m := uint64(0)
		for i := range w.size {
			if test(w.lane64(&args[0], i)^f, w.lane64(&args[1], i)^f) {
				m |= 1 << i
			}
		}
		w.setMask(to, m&w.exec())
	}, nil
}

// orders are conditions of integers.
var orders = map[string]func(a, b uint64) bool{
	"lt": func(a, b uint64) bool { return a < b }, "le": func(a, b uint64) bool { return a <= b },
	"gt": func(a, b uint64) bool { return a > b }, "ge": func(a, b uint64) bool { return a >= b },
	"eq": func(a, b uint64) bool { return a == b }, "ne": func(a, b uint64) bool { return a != b },
	"lg": func(a, b uint64) bool { return a != b },
}

// floatTests are conditions of floats: those with n hold for NaNs, too.
var floatTests = map[string]func(a, b float32) bool{
	"lt": func(a, b float32) bool { return a < b }, "le": func(a, b float32) bool { return a <= b },
	"gt": func(a, b float32) bool { return a > b }, "ge": func(a, b float32) bool { return a >= b },
	"eq": func(a, b float32) bool { return a == b }, "neq": func(a, b float32) bool { return a != b },
	"lg":  func(a, b float32) bool { return a < b || a > b },
	"nlt": func(a, b float32) bool { return !(a < b) }, "nle": func(a, b float32) bool { return !(a <= b) },
	"ngt": func(a, b float32) bool { return !(a > b) }, "nge": func(a, b float32) bool { return !(a >= b) },
	"nlg": func(a, b float32) bool { return !(a < b || a > b) },
	"o":   func(a, b float32) bool { return a == a && b == b }, "u": func(a, b float32) bool { return a != a || b != b },
}

// comparison returns what gives a bit for each lane, and how its operands are read.
func comparison(cond, ty string) (func(a, b []uint32) uint64, format, error) {
	f := map[string]format{"u32": fInt, "i32": fInt, "b32": fInt, "f32": fFloat, "f16": fHalf, "u16": fWord, "i16": fWord}
	form, ok := f[ty]
	switch {
	case !ok:
	case cond == "class" && ty == "f32":
		return masked(func(a, b uint32) bool { return classOf(a, 8, 23)&b != 0 }), form, nil
	case cond == "class" && ty == "f16":
		return masked(func(a, b uint32) bool { return classOf(a, 5, 10)&b != 0 }), form, nil
	case ty == "f32" && floatTests[cond] != nil:
		t := floatTests[cond]
		return masked(func(a, b uint32) bool { return t(asFloat(flush(a)), asFloat(flush(b))) }), form, nil
	case ty == "f16" && floatTests[cond] != nil:
		t := floatTests[cond]
		return masked(func(a, b uint32) bool { return t(fromHalf(a), fromHalf(b)) }), form, nil
	case ty == "i16" && orders[cond] != nil:
		return integers(cond, 1<<15), form, nil
	case ty == "i32" && orders[cond] != nil:
		return integers(cond, 1<<31), form, nil
	case ty[0] == 'u' && orders[cond] != nil:
		return integers(cond, 0), form, nil
	}
	return nil, 0, fmt.Errorf("a comparison that is not known")
}

func masked(test func(a, b uint32) bool) func(a, b []uint32) uint64 {
	return func(a, b []uint32) (m uint64) {
		b = b[:len(a)]
		for i, x := range a {
			if test(x, b[i]) {
				m |= 1 << (i & 63)
			}
		}
		return m
	}
}

// integers compares what orders like unsigned ones after a bit is turned. The four conditions that
// run most have loops.
func integers(cond string, flip uint32) func(a, b []uint32) uint64 {
	less := func(a, b []uint32) (m uint64) {
		b = b[:len(a)]
		for i, x := range a {
			_, c := subtract(x^flip, b[i]^flip)
			m |= uint64(c) << (i & 63)
		}
		return m
	}
	equal := func(a, b []uint32) (m uint64) {
		b = b[:len(a)]
		for i, x := range a {
			if x == b[i] {
				m |= 1 << (i & 63)
			}
		}
		return m
	}
	switch cond { // bits beyond the wave are cut by exec
	case "lt":
		return less
	case "gt":
		return func(a, b []uint32) uint64 { return less(b, a) }
	case "ge":
		return func(a, b []uint32) uint64 { return ^less(a, b) }
	case "le":
		return func(a, b []uint32) uint64 { return ^less(b, a) }
	case "eq":
		return equal
	}
	return func(a, b []uint32) uint64 { return ^equal(a, b) }
}

// subtract returns the difference, and 1 if it is negative.
func subtract(a, b uint32) (uint32, uint32) {
	d := uint64(a) - uint64(b)
	return uint32(d), uint32(d>>32) & 1
}
