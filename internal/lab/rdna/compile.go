package rdna

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// compile makes an instruction of LLVM's text; word is its first. One that is not known is a fault
// when it runs.
func compile(gfx, size int, text string, word uint32) (x inst) {
	defer func() {
		if e := recover(); e != nil { // an index out of an operand list
			x = unknown(text, fmt.Errorf("not known: %v", e))
		}
	}()
	first, second, pair := strings.Cut(text, "::")
	l, err := parse(first, word)
	if err != nil {
		return unknown(text, err)
	}
	c := compiler{gfx: gfx, size: size}
	x = inst{text: text, words: 1, op: l.op}
	if pair {
		m, err := parse(second, word)
		if err != nil {
			return unknown(text, err)
		}
		x.op += " :: " + m.op
		x.run, err = c.pair(l, m)
		if err != nil {
			return unknown(text, err)
		}
		return x
	}
	if x.run, x.flow, err = c.one(l); err != nil {
		return unknown(text, err)
	}
	return x
}

// compiler makes functions of instructions for one generation and size of waves.
type compiler struct {
	gfx  int
	size int
}

type step = func(w *wave)

func (c compiler) one(l line) (step, flow, error) {
	switch {
	case l.op == "s_endpgm":
		return func(w *wave) { w.paused, w.ended = true, true }, ends, nil
	case l.op == "s_barrier" || l.op == "s_barrier_wait":
		return func(w *wave) { w.paused = true }, waits, nil
	case l.op == "s_branch":
		return func(w *wave) {}, jumps, nil
	case plainOps[l.op]:
		return func(w *wave) {}, onward, nil
	}
	if cond, ok := strings.CutPrefix(l.op, "s_cbranch_"); ok {
		f := conditions[cond]
		if f == nil {
			return nil, 0, fmt.Errorf("a condition that is not known")
		}
		return func(w *wave) { w.taken = f(w) }, branches, nil
	}
	run, err := c.plain(l)
	return run, onward, err
}

var conditions = map[string]func(w *wave) bool{
	"scc0":   func(w *wave) bool { return !w.scc },
	"scc1":   func(w *wave) bool { return w.scc },
	"execz":  func(w *wave) bool { return w.exec() == 0 },
	"execnz": func(w *wave) bool { return w.exec() != 0 },
	"vccz":   func(w *wave) bool { return w.mask(vcc) == 0 },
	"vccnz":  func(w *wave) bool { return w.mask(vcc) != 0 },
}

// plain compiles what only computes, loads or stores.
func (c compiler) plain(l line) (step, error) {
	for i := range l.args {
		if o := &l.args[i]; o.kind == kindConstant {
			o.lanes = repeat(o.bits)
		}
	}
	space, _, _ := strings.Cut(l.op, "_")
	switch {
	case strings.HasPrefix(l.op, "s_load_") || strings.HasPrefix(l.op, "s_buffer_load_"):
		return c.scalarLoad(l)
	case space == "s":
		return c.scalarOp(l)
	case strings.HasPrefix(l.op, "v_cmp"):
		return c.compare(l)
	case strings.HasPrefix(l.op, "v_wmma_"):
		return c.matrix(l)
	case space == "ds":
		return c.sharedOp(l)
	case space == "global" || space == "buffer":
		return c.globalOp(l)
	}
	if f, ok := specials[l.op]; ok {
		return f(c, l)
	}
	return c.vector(l)
}

func repeat(x uint32) *lanes {
	all := new(lanes)
	for i := range all {
		all[i] = x
	}
	return all
}

// pair compiles two instructions that read before either writes.
func (c compiler) pair(l, m line) (step, error) {
	l.op, m.op = strings.Replace(l.op, "v_dual_", "v_", 1), strings.Replace(m.op, "v_dual_", "v_", 1)
	first, err := c.plain(l)
	if err != nil {
		return nil, err
	}
	second, err := c.plain(m)
	if err != nil {
		return nil, err
	}
	into := func(l line, reg int) bool {
		return slices.ContainsFunc(l.args[1:], func(o operand) bool { return o.kind == kindVector && o.reg == reg }) ||
			accumulates[l.op] && l.args[0].reg == reg
	}
	x, y := l.args[0].reg, m.args[0].reg
	switch {
	case x == y:
		return nil, fmt.Errorf("both write v%d", x)
	case !into(m, x):
		return func(w *wave) { first(w); second(w) }, nil
	case !into(l, y):
		return func(w *wave) { second(w); first(w) }, nil
	}
	return func(w *wave) {
		before := w.v[x]
		first(w)
		after := w.v[x]
		w.v[x] = before
		second(w)
		w.v[x] = after
	}, nil
}

// Known lists the instructions that a table here knows; those of comparisons, memory and matrices
// are made of parts.
func known() []string {
	names := slices.Concat(slices.Collect(maps.Keys(vectorOps)), slices.Collect(maps.Keys(scalarOps)), slices.Collect(maps.Keys(specials)))
	slices.Sort(names)
	return names
}
