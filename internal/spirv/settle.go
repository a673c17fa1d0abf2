package spirv

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Choices is the number from which on specialisation constants are choices: a module with such is
// several kernels.
const Choices = 90

// Settle makes one of the kernels that a module is: its choices, words or truth values, get their
// values by name for good, those without one 0. What is not needed then is left out: branches and
// functions, bindings, variables, push constants at the end, capabilities. So kernels that need
// different features of a device can be one module. Other specialisation constants stay what they
// are, and so does a module without choices.
func Settle(code []byte, values map[string]uint32) ([]byte, error) {
	m, err := Parse(code)
	if err != nil {
		return nil, err
	}
	choices := m.choices(values)
	if len(choices) == 0 {
		return code, nil
	}
	head, functions, ok := split(code)
	if !ok {
		return nil, fmt.Errorf("spirv: settle: something stands between functions")
	}
	if head, err = m.settle(head, choices); err != nil {
		return nil, err
	}
	head, kept, ok := pruner{m, &evaluator{m: m, open: true, done: map[uint32]number{}}}.module(head, functions)
	if !ok {
		return nil, fmt.Errorf("spirv: settle: the module has something that is not understood")
	}
	begin := slices.Clone(code[:20])
	head = m.trim(begin, head, kept)
	return write(begin, m.sweep(head, kept), kept), nil
}

// choices are the values of these constants by their ids.
func (m *Module) choices(values map[string]uint32) map[uint32]uint32 {
	choices := map[uint32]uint32{}
	for key, ops := range m.decorations {
		if key[1] == decorationSpecID && len(ops) > 0 && ops[0] >= Choices {
			choices[key[0]] = values[text(m.names[key[0]])]
		}
	}
	return choices
}

// settle is what comes before functions with plain constants in place of choices.
func (m *Module) settle(head []inst, choices map[uint32]uint32) (out []inst, err error) {
	out = make([]inst, 0, len(head))
	for _, in := range head {
		id, _ := in.defines()
		value, chosen := choices[id]
		if in.op == opDecorate && in.args[1] == decorationSpecID {
			if _, chosen := choices[in.args[0]]; chosen {
				delete(m.decorations, [2]uint32{in.args[0], decorationSpecID})
				continue
			}
		}
		switch {
		case !chosen:
		case in.op == opSpecConstant && len(in.args) == 3:
			in = inst{opConstant, []uint32{in.args[0], id, value}}
		case in.op == opSpecConstantTrue || in.op == opSpecConstantFalse:
			in.op = opConstantFalse
			if value != 0 {
				in.op = opConstantTrue
			}
		default:
			return nil, fmt.Errorf("spirv: settle: constant %s is neither a word nor a truth value", text(m.names[id]))
		}
		if chosen {
			m.values[id] = in
		}
		out = append(out, in)
	}
	return out, nil
}

// trim leaves out the last push constants, which functions do not name. Where none of 64 bits is
// named, those that are left are pairs of words: a device need not have such numbers for what
// nothing reads.
func (m *Module) trim(begin []byte, head, functions []inst) []inst {
	variable, block := m.pushBlock()
	if block.op != opTypeStruct {
		return head
	}
	members := slices.Clone(block.args[1:])
	is := m.named(variable, members, functions)
	for n := len(members); n > 0 && !is[n-1]; n-- {
		members = members[:n-1]
	}
	var long []int
	for i, t := range members {
		if integers(64)(m.types[t]) {
			long = append(long, i)
		}
	}
	if long != nil && !slices.ContainsFunc(long, func(i int) bool { return is[i] }) {
		var pair uint32
		pair, head = pairs(begin, head)
		for _, i := range long {
			members[i] = pair
		}
	}
	var out []inst
	for _, in := range head {
		switch {
		case !slices.Contains([]uint16{opMemberName, opMemberDecorate, opTypeStruct}, in.op) || in.args[0] != block.args[0]:
		case in.op == opTypeStruct:
			in.args = slices.Concat(in.args[:1], members)
		case in.args[1] >= uint32(len(members)):
			continue
		}
		out = append(out, in)
	}
	return out
}

// pushBlock is the variable that push constants are, and its type; op 0 without one.
func (m *Module) pushBlock() (variable uint32, block inst) {
	at := slices.IndexFunc(m.variables, func(v inst) bool { return v.args[2] == classPushConstant })
	if at < 0 {
		return 0, inst{}
	}
	push := m.variables[at]
	pointer := m.types[push.args[0]]
	if pointer.op != opTypePointer {
		return 0, inst{}
	}
	return push.args[1], m.types[pointer.args[2]]
}

// named tells which members of a variable functions name; all, where they name it as a whole.
func (m *Module) named(variable uint32, members []uint32, functions []inst) []bool {
	is := make([]bool, len(members))
	for _, in := range functions {
		if !slices.Contains(in.args, variable) {
			continue
		}
		if in.op == opAccessChain && len(in.args) > 3 && in.args[2] == variable {
			if i, err := m.eval(in.args[3], nil); err == nil && i >= 0 && i < int64(len(is)) {
				is[i] = true
				continue
			}
		}
		if first, rest := in.operands(); slices.Contains(first, variable) || slices.Contains(rest, variable) {
			for i := range is {
				is[i] = true
			}
		}
	}
	return is
}

// pairs is the type of two words, and head with it in front of all types. It may be a new one, for
// which begin, a module's first words, says how many ids there are.
func pairs(begin []byte, head []inst) (id uint32, out []inst) {
	var front []inst
	for _, t := range []inst{{opTypeInt, []uint32{0, 32, 0}}, {opTypeVector, []uint32{0, 0, 2}}} {
		if t.op == opTypeVector {
			t.args[1] = id
		}
		at := slices.IndexFunc(head, func(in inst) bool { return in.op == t.op && slices.Equal(in.args[1:], t.args[1:]) })
		if at >= 0 {
			id = head[at].args[0]
			head = slices.Delete(head, at, at+1)
		} else {
			id = binary.LittleEndian.Uint32(begin[12:])
			binary.LittleEndian.PutUint32(begin[12:], id+1)
		}
		t.args[0] = id
		front = append(front, t)
	}
	at := slices.IndexFunc(head, func(in inst) bool { return in.op >= opTypeFirst && in.op <= opTypeLast })
	return id, slices.Insert(head, at, front...)
}
