package spirv

import (
	"fmt"
	"slices"
)

// Settle gives specialisation constants, words or truth values, their values by name for good, and
// leaves out what is not needed then: branches and functions, bindings, push constants at the end
// that only these used, capabilities. So kernels that need different features of a device can be
// one module. Other specialisation constants stay what they are.
func Settle(code []byte, constants map[string]uint32) ([]byte, error) {
	m, err := Parse(code)
	if err != nil {
		return nil, err
	}
	head, functions, ok := split(code)
	if !ok {
		return nil, fmt.Errorf("spirv: settle: something stands between functions")
	}
	var all []inst
	for _, f := range functions {
		all = append(all, f.code...)
	}
	for name, value := range constants {
		if head, err = m.settle(head, name, value); err != nil {
			return nil, err
		}
	}
	code = write(code[:20], head, all)
	if m, err = Parse(code); err != nil {
		return nil, err
	}
	head, kept, ok := pruner{m, &evaluator{m: m, open: true, done: map[uint32]number{}}}.module(code)
	if !ok {
		return nil, fmt.Errorf("spirv: settle: the module has something that is not understood")
	}
	return write(code[:20], m.sweep(m.shorten(head, all, kept), kept), kept), nil
}

// settle is what comes before functions with a plain constant in place of one of a name.
func (m *Module) settle(head []inst, name string, value uint32) (out []inst, err error) {
	found := 0
	for _, in := range head {
		id, _ := in.defines()
		if in.op == opDecorate {
			id = in.args[0]
		}
		ours := m.names[id] == name && m.decorations[[2]uint32{id, decorationSpecID}] != nil
		switch {
		case ours && in.op == opDecorate && in.args[1] == decorationSpecID:
			found++
			continue
		case ours && in.op == opSpecConstant && len(in.args) == 3:
			in = inst{opConstant, []uint32{in.args[0], id, value}}
		case ours && (in.op == opSpecConstantTrue || in.op == opSpecConstantFalse):
			in.op = opConstantFalse
			if value != 0 {
				in.op = opConstantTrue
			}
		case ours && in.op != opDecorate:
			return nil, fmt.Errorf("spirv: settle: constant %s is neither a word nor a truth value", name)
		}
		out = append(out, in)
	}
	if found != 1 {
		return nil, fmt.Errorf("spirv: settle: %d specialisation constants have the name %s", found, name)
	}
	return out, nil
}

// shorten leaves out the last push constants that functions named before and do not name now.
func (m *Module) shorten(head, before, now []inst) []inst {
	at := slices.IndexFunc(m.variables, func(v inst) bool { return v.args[2] == classPushConstant })
	if at < 0 {
		return head
	}
	push := m.variables[at]
	pointer := m.types[push.args[0]]
	if pointer.op != opTypePointer || m.types[pointer.args[2]].op != opTypeStruct {
		return head
	}
	block := m.types[pointer.args[2]]
	n := len(block.args) - 1
	for n > 0 && m.reads(push.args[1], n-1, before) && !m.reads(push.args[1], n-1, now) {
		n--
	}
	var out []inst
	for _, in := range head {
		switch {
		case !slices.Contains([]uint16{opMemberName, opMemberDecorate, opTypeStruct}, in.op) || in.args[0] != block.args[0]:
		case in.op == opTypeStruct:
			in.args = in.args[:1+n]
		case in.args[1] >= uint32(n):
			continue
		}
		out = append(out, in)
	}
	return out
}

// reads tells whether functions name a member of a variable, or the variable as a whole.
func (m *Module) reads(variable uint32, member int, functions []inst) bool {
	return slices.ContainsFunc(functions, func(in inst) bool {
		if !slices.Contains(in.args, variable) {
			return false
		}
		if in.op != opAccessChain || len(in.args) < 4 {
			return slices.ContainsFunc(in.operands(), func(ids []uint32) bool { return slices.Contains(ids, variable) })
		}
		i, err := m.eval(in.args[3], nil)
		return in.args[2] == variable && (err != nil || int(i) == member)
	})
}
