package spirv

import (
	"encoding/binary"
	"slices"
)

// Prune returns a module without the branches that its specialisation constants never take, and
// without the functions that nothing calls then. Constants are those of Module.LocalSize; the
// module keeps its own, and has to be specialised with the same ones. What is no module with one
// compute entry point stays as it is.
//
// Drivers fold constants themselves, but late: on NVIDIA's a call that is never made can keep a
// kernel's matrices out of registers (see Depth), and all take longer over a longer module.
func Prune(code []byte, constants []uint32) []byte {
	m, err := Parse(code)
	if err != nil {
		return code
	}
	head, functions, ok := split(code)
	if !ok {
		return code
	}
	bodies := map[uint32][]inst{}
	for _, f := range functions {
		bodies[f.id] = f.prune(func(id uint32) (holds, known bool) {
			v, err := m.eval(id, constants, 0)
			return v != 0, err == nil
		})
	}
	out := append(make([]byte, 0, len(code)), code[:20]...)
	gone := map[uint32]bool{} // what instructions define that are dropped
	var kept []inst
	called := calls(head, bodies)
	for _, f := range functions {
		var stays []inst
		if slices.Contains(called, f.id) {
			stays = bodies[f.id]
		}
		if len(stays) < len(f.code) {
			mark(gone, f.code, true)
			mark(gone, stays, false)
		}
		kept = append(kept, stays...)
	}
	for _, in := range head {
		if id, ok := in.result(); ok {
			gone[id] = false
		}
	}
	for _, in := range head {
		if (in.op != opName && in.op != opDecorate) || !gone[in.args[0]] {
			out = in.append(out)
		}
	}
	for _, in := range kept {
		out = in.append(out)
	}
	return out
}

// function is a function's instructions, from the first to the last.
type function struct {
	id   uint32
	code []inst
}

// split takes a module apart; false if it is malformed. Instructions share one array of words.
func split(code []byte) (head []inst, functions []function, ok bool) {
	list := make([]uint32, len(code)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	all, begin := make([]inst, 0, len(list)/4), 0
	for at := 5; at < len(list); {
		n, op := int(list[at]>>16), uint16(list[at])
		if n == 0 || at+n > len(list) || n-1 < max(pruneArgs[op], minArgs[op]) {
			return nil, nil, false
		}
		if op == opFunction {
			if len(functions) == 0 {
				head = all[:len(all):len(all)]
			} else if all[len(all)-1].op != opFunctionEnd {
				return nil, nil, false
			}
			functions, begin = append(functions, function{id: list[at+2]}), len(all)
		}
		all = append(all, inst{op, list[at+1 : at+n]})
		if len(functions) > 0 {
			functions[len(functions)-1].code = all[begin:]
		}
		at += n
	}
	return head, functions, len(functions) > 0 && all[len(all)-1].op == opFunctionEnd
}

// pruneArgs is how many operands the instructions have at least that Prune looks into and Parse
// does not.
var pruneArgs = map[uint16]int{
	opFunction: 4, opFunctionCall: 3, opLabel: 1, opPhi: 2,
	opLoopMerge: 3, opSelectionMerge: 2, opBranch: 1, opBranchConditional: 3, opSwitch: 2,
}

// prune returns the function's code without the blocks that are never reached. A block comes after
// those that dominate it, so that one that names it has been there before.
func (f function) prune(known func(id uint32) (holds, known bool)) []inst {
	begin := slices.IndexFunc(f.code, func(in inst) bool { return in.op == opLabel })
	if begin < 0 {
		return f.code
	}
	out := append(make([]inst, 0, len(f.code)), f.code[:begin]...)
	live := map[uint32]bool{f.code[begin].args[0]: true} // labels
	edges := map[[2]uint32]bool{}                        // between live blocks
	for at := begin; f.code[at].op == opLabel; {
		end := at + 1
		for end < len(f.code)-1 && f.code[end].op != opLabel && f.code[end].op != opFunctionEnd {
			end++
		}
		if label := f.code[at].args[0]; live[label] {
			block := decide(f.code[at:end], known)
			for _, in := range block {
				for _, to := range in.labels() {
					live[to] = true
					if in.op != opLoopMerge && in.op != opSelectionMerge {
						edges[[2]uint32{label, to}] = true
					}
				}
			}
			out = append(out, block...)
		}
		at = end
	}
	var label uint32
	for i, in := range out {
		switch in.op {
		case opLabel:
			label = in.args[0]
		case opPhi:
			out[i] = in.from(func(parent uint32) bool { return edges[[2]uint32{parent, label}] })
		}
	}
	return append(out, f.code[len(f.code)-1])
}

// decide gives a block that ends with a choice of which the outcome is known a branch in its place.
func decide(block []inst, known func(id uint32) (holds, known bool)) []inst {
	n := len(block)
	if n < 3 || block[n-1].op != opBranchConditional || block[n-2].op != opSelectionMerge {
		return block
	}
	holds, ok := known(block[n-1].args[0])
	if !ok {
		return block
	}
	to := block[n-1].args[2:3]
	if holds {
		to = block[n-1].args[1:2]
	}
	return append(slices.Clone(block[:n-2]), inst{opBranch, to})
}

// labels are the blocks that an instruction names.
func (in inst) labels() []uint32 {
	switch in.op {
	case opLoopMerge:
		return in.args[:2]
	case opSelectionMerge, opBranch:
		return in.args[:1]
	case opBranchConditional:
		return in.args[1:3]
	case opSwitch: // with literals among them: a label that one equals is taken for a target
		return in.args[1:]
	}
	return nil
}

// from is an OpPhi with those of its parents that still lead to it; OpUndef where none does.
func (in inst) from(leads func(parent uint32) bool) inst {
	args := slices.Clone(in.args[:2])
	for i := 2; i+1 < len(in.args); i += 2 {
		if leads(in.args[i+1]) {
			args = append(args, in.args[i:i+2]...)
		}
	}
	if len(args) == 2 {
		return inst{opUndef, args}
	}
	return inst{in.op, args}
}

// mark sets what the instructions of a function define. Of those that define nothing it sets an
// operand, which another one of the function does, or a constant or a variable of the module's.
func mark(gone map[uint32]bool, code []inst, is bool) {
	for _, in := range code {
		if in.op == opLabel {
			gone[in.args[0]] = is
		} else if len(in.args) > 1 {
			gone[in.args[1]] = is
		}
	}
}

// result is the id of a module's constant or variable.
func (in inst) result() (uint32, bool) {
	if in.op == opVariable || in.op >= opConstantTrue && in.op <= opSpecConstantOp {
		return in.args[1], true
	}
	return 0, false
}

// append writes an instruction.
func (in inst) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(in.op)|uint32(len(in.args)+1)<<16)
	return words(to, in.args...)
}

// calls lists the functions that a module's entry points call, by others or themselves.
func calls(head []inst, bodies map[uint32][]inst) (list []uint32) {
	for _, in := range head {
		if in.op == opEntryPoint {
			list = append(list, in.args[1])
		}
	}
	for i := 0; i < len(list); i++ {
		for _, in := range bodies[list[i]] {
			if in.op == opFunctionCall && !slices.Contains(list, in.args[2]) {
				list = append(list, in.args[2])
			}
		}
	}
	return list
}

// Depth is how many functions of a module are under way at a time, at most: 1 where an entry point
// calls none. NVIDIA's compiler writes eight into one another.
func Depth(code []byte) int {
	head, functions, ok := split(code)
	if !ok {
		return 0
	}
	bodies := map[uint32][]inst{}
	for _, f := range functions {
		bodies[f.id] = f.code
	}
	depths := map[uint32]int{}
	var depth func(id uint32) int
	depth = func(id uint32) int {
		if n, ok := depths[id]; ok {
			return n
		}
		depths[id] = 0 // no kernel calls itself
		n := 0
		for _, in := range bodies[id] {
			if in.op == opFunctionCall {
				n = max(n, depth(in.args[2]))
			}
		}
		depths[id] = n + 1
		return n + 1
	}
	most := 0
	for _, in := range head {
		if in.op == opEntryPoint {
			most = max(most, depth(in.args[1]))
		}
	}
	return most
}
