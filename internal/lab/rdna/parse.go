package rdna

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Numbers of scalar registers beyond s0 to s105.
const (
	vcc     = 106
	ttmp    = 108
	m0      = 124
	exec    = 126
	nowhere = 130 // where results for null go
	scalars = 132
)

type kind uint8

const (
	kindVector   kind = iota // registers of lanes
	kindScalar               // registers of the wave
	kindConstant             // a number
	kindSCC                  // the condition as 0 or 1
	kindOff                  // no register
)

// operand is a register, several that follow each other, or a number, as LLVM writes it.
type operand struct {
	kind     kind
	reg, n   int    // registers
	half     int    // 0: all of a register, 1: its low half, 2: its high half
	neg, abs bool   // of the sign of a float
	sext     bool   // of a part of a register
	bits     uint32 // a number as an integer or float of 32 bits
	float    bool   // a number that is written as a float
	value    float64
	null     bool
	lanes    *lanes // a number, as often as a wave may have lanes; set where it is read
}

// line is an instruction of LLVM's text.
type line struct {
	op   string // without the encoding
	enc  string // e32, e64, dpp, sdwa
	args []operand
	mods map[string]string // what follows the operands; "" where only the name stands there
	word uint32            // the first of the instruction
}

// plainOps are those whose operands need not be read: they only wait, or order what is in order
// here.
var plainOps = set(`s_delay_alu s_nop s_clause s_set_inst_prefetch_distance s_inst_prefetch s_sendmsg s_sleep s_waitcnt
	s_waitcnt_depctr s_waitcnt_vscnt s_waitcnt_vmcnt s_waitcnt_lgkmcnt s_waitcnt_expcnt s_wait_alu s_wait_dscnt s_wait_kmcnt
	s_wait_loadcnt s_wait_loadcnt_dscnt s_wait_storecnt s_wait_storecnt_dscnt s_wait_idle s_prefetch_inst_pc_rel
	s_barrier_signal buffer_gl0_inv buffer_gl1_inv global_inv global_wb v_nop s_endpgm s_barrier s_barrier_wait`)

// knownMods are modifiers that compile looks at, and those of caches.
var knownMods = set(`offset offset0 offset1 offen glc slc dlc th scope op_sel op_sel_hi neg_lo neg_hi clamp mul div
	quad_perm row_xmask row_ror row_shl row_shr row_mirror row_half_mirror row_share dpp8 row_mask bank_mask bound_ctrl fi
	dst_sel dst_unused src0_sel src1_sel`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// parse reads one instruction; a pair is two, with :: between them.
func parse(text string, word uint32) (line, error) {
	l := line{mods: map[string]string{}, word: word}
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	l.op, l.enc = encoding(name)
	if plainOps[l.op] || strings.HasPrefix(l.op, "s_branch") || strings.HasPrefix(l.op, "s_cbranch") {
		return l, nil
	}
	parts := split(rest)
	for i, p := range parts {
		f := strings.Fields(p)
		if len(f) == 0 {
			return l, fmt.Errorf("an operand is missing")
		}
		if len(f) > 1 && i < len(parts)-1 {
			return l, fmt.Errorf("operand %q is not known", p)
		}
		o, err := parseOperand(f[0])
		if err != nil {
			return l, err
		}
		l.args = append(l.args, o)
		for _, m := range f[1:] {
			k, v, _ := strings.Cut(m, ":")
			if !knownMods[k] {
				return l, fmt.Errorf("%q is not known", m)
			}
			l.mods[k] = v
		}
	}
	return l, nil
}

func encoding(name string) (op, enc string) {
	for _, e := range []string{"e64_dpp", "e32", "e64", "dpp8", "dpp", "sdwa"} {
		if s, ok := strings.CutSuffix(name, "_"+e); ok {
			return s, strings.TrimPrefix(e, "e64_")
		}
	}
	return name, ""
}

// split cuts at commas that stand in no brackets.
func split(s string) (parts []string) {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '[', '(':
			depth++
		case ']', ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, s[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, s[from:])
}

// named are the registers that have names.
var named = map[string]operand{
	"vcc": scalarAt(vcc, 2), "vcc_lo": scalarAt(vcc, 1), "vcc_hi": scalarAt(vcc+1, 1),
	"exec": scalarAt(exec, 2), "exec_lo": scalarAt(exec, 1), "exec_hi": scalarAt(exec+1, 1), "m0": scalarAt(m0, 1),
	"null": {kind: kindConstant, reg: nowhere, null: true}, "off": {kind: kindOff}, "scc": {kind: kindSCC}, "src_scc": {kind: kindSCC},
}

func scalarAt(reg, n int) operand { return operand{kind: kindScalar, reg: reg, n: n} }

func parseOperand(text string) (o operand, err error) {
	s, neg, abs, sext, half := text, false, false, false, 0
	for {
		if in, ok := within(s, "neg(", ")"); ok {
			neg, s = true, in
		} else if in, ok := within(s, "lit(", ")"); ok {
			s = in
		} else if in, ok := within(s, "sext(", ")"); ok {
			sext, s = true, in
		} else if in, ok := within(s, "|", "|"); ok {
			abs, s = true, in
		} else if len(s) > 1 && s[0] == '-' && (s[1] < '0' || s[1] > '9') {
			neg, s = true, s[1:]
		} else {
			break
		}
	}
	if in, ok := strings.CutSuffix(s, ".l"); ok {
		half, s = 1, in
	} else if in, ok := strings.CutSuffix(s, ".h"); ok {
		half, s = 2, in
	}
	if o, err = bare(s); err != nil {
		return o, fmt.Errorf("operand %q is not known", text)
	}
	o.neg, o.abs, o.sext, o.half = neg, abs, sext, half
	return o, nil
}

// within cuts what encloses s.
func within(s, before, after string) (string, bool) {
	if len(s) > len(before)+len(after) && strings.HasPrefix(s, before) && strings.HasSuffix(s, after) {
		return s[len(before) : len(s)-len(after)], true
	}
	return s, false
}

func bare(s string) (o operand, err error) {
	if o, ok := named[s]; ok {
		return o, nil
	}
	for prefix, start := range map[string]operand{"v": {kind: kindVector}, "s": scalarAt(0, 1), "ttmp": scalarAt(ttmp, 1)} {
		num, ok := strings.CutPrefix(s, prefix)
		if !ok || num == "" || num[0] != '[' && (num[0] < '0' || num[0] > '9') {
			continue
		}
		from, to, ranged := strings.Cut(strings.Trim(num, "[]"), ":")
		if !ranged {
			to = from
		}
		a, err := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || b < a || b > 255 {
			return o, strconv.ErrSyntax
		}
		o = start
		o.reg, o.n = o.reg+a, b-a+1
		return o, nil
	}
	o.kind = kindConstant
	if strings.Contains(s, ".") {
		o.float = true
		o.value, err = strconv.ParseFloat(s, 64)
		o.bits = math.Float32bits(float32(o.value))
		return o, err
	}
	x, err := strconv.ParseInt(s, 0, 64)
	if err != nil || x < math.MinInt32 || x > math.MaxUint32 {
		return o, strconv.ErrSyntax
	}
	o.bits, o.value = uint32(x), float64(x)
	return o, nil
}

// number returns a modifier's value; 0 where it is not there.
func (l line) number(mod string) (int, error) {
	s, ok := l.mods[mod]
	if !ok {
		return 0, nil
	}
	x, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("%s:%s is not a number", mod, s)
	}
	return int(x), nil
}

// list returns a modifier's n values; without, where it is not there or too short.
func (l line) list(mod string, n, without int) []int {
	r := make([]int, n)
	for i := range r {
		r[i] = without
	}
	s, ok := l.mods[mod]
	if !ok {
		return r
	}
	for i, p := range strings.Split(strings.Trim(s, "[]"), ",") {
		if x, err := strconv.Atoi(p); err == nil && i < n {
			r[i] = x
		}
	}
	return r
}

func (l line) has(mod string) bool { _, ok := l.mods[mod]; return ok }
