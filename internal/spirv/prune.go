package spirv

import (
	"encoding/binary"
	"slices"
)

// Prune returns a module without the branches that its specialisation constants never take, and
// without the functions that nothing calls then. Constants are those of Module.LocalSize; the
// module keeps its own, and has to be specialised with the same ones. A module stays as it is if it
// has no compute entry point, or something that Prune does not understand.
//
// Drivers fold constants themselves, but late: on NVIDIA's a call that is never made can keep a
// kernel's matrices out of registers (TestDepth), and all take longer over a longer module.
func Prune(code []byte, constants []uint32) []byte {
	m, err := Parse(code)
	if err != nil {
		return code
	}
	head, functions, ok := split(code)
	if !ok {
		return code
	}
	head, kept, ok := pruner{m, &evaluator{m: m, constants: constants, done: map[uint32]number{}}}.module(head, functions)
	if !ok {
		return code
	}
	return write(code[:20], head, kept)
}

// write puts a module together again.
func write(begin []byte, parts ...[]inst) []byte {
	n := len(begin)
	for _, part := range parts {
		for _, in := range part {
			n += 4 + 4*len(in.args)
		}
	}
	out := append(make([]byte, 0, n), begin...)
	for _, part := range parts {
		for _, in := range part {
			out = in.append(out)
		}
	}
	return out
}

// module returns what stays of a module: what comes before functions, and the functions. It returns
// false if there is something that it does not understand.
func (p pruner) module(head []inst, functions []function) (left, kept []inst, ok bool) {
	if slices.ContainsFunc(head, func(in inst) bool { return in.op == opDecorationGroup }) {
		return nil, nil, false // a group may give constants their ids
	}
	bodies := map[uint32][]inst{}
	for _, f := range functions {
		body, ok := p.prune(f)
		if _, twice := bodies[f.id]; twice || !ok {
			return nil, nil, false
		}
		bodies[f.id] = body
	}
	called := calls(head, bodies)
	var gone ids // what instructions define that are dropped
	for _, f := range functions {
		var stays []inst
		if slices.Contains(called, f.id) {
			stays = bodies[f.id]
		}
		if len(stays) < len(f.code) {
			mark(&gone, f.code)
		}
		kept = append(kept, stays...)
	}
	unmark(gone, kept)
	unmark(gone, head)
	if names(head, gone) || names(kept, gone) {
		return nil, nil, false
	}
	return slices.DeleteFunc(slices.Clone(head), func(in inst) bool {
		return slices.Contains(ofTargets, in.op) && gone.has(in.args[0])
	}), kept, true
}

// ofTargets are instructions about the id that is their first operand.
var ofTargets = []uint16{opName, opDecorate, opDecorateID, opDecorateString}

// function is a function's instructions, from the first to the last.
type function struct {
	id   uint32
	code []inst
}

// split takes a module apart; false if it is malformed, or has something between functions.
// Instructions share one array of words.
func split(code []byte) (head []inst, functions []function, ok bool) {
	list := make([]uint32, len(code)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	all, begin := make([]inst, 0, len(list)/4), 0
	for at := 5; at < len(list); {
		n, op := int(list[at]>>16), uint16(list[at])
		if n == 0 || at+n > len(list) || n-1 < leastArgs(op) {
			return nil, nil, false
		}
		ended := len(functions) == 0 || all[len(all)-1].op == opFunctionEnd
		if op == opFunction {
			if len(functions) == 0 {
				head = all[:len(all):len(all)]
			}
			functions, begin = append(functions, function{id: list[at+2]}), len(all)
		}
		if len(functions) > 0 && ended != (op == opFunction) {
			return nil, nil, false
		}
		all = append(all, inst{op, list[at+1 : at+n]})
		if len(functions) > 0 {
			functions[len(functions)-1].code = all[begin:]
		}
		at += n
	}
	return head, functions, len(functions) > 0 && all[len(all)-1].op == opFunctionEnd
}

// pruneArgs has the least number of operands of instructions that Prune looks into and Parse does
// not.
var pruneArgs = map[uint16]int{
	opMemoryModel: 2, opFunction: 4, opFunctionCall: 3, opLabel: 1, opPhi: 2, opExtInst: 4, opDecorateID: 1, opDecorateString: 1,
	opLoopMerge: 3, opSelectionMerge: 2, opBranch: 1, opBranchConditional: 3, opSwitch: 2,
}

// leastArgs returns the least number of operands of an instruction.
func leastArgs(op uint16) int {
	if int(op) < len(leastArgsOf) {
		return int(leastArgsOf[op])
	}
	return 0
}

// leastArgsOf has those of pruneArgs and minArgs.
var leastArgsOf = func() (of [1 << 13]uint8) {
	for _, args := range []map[uint16]int{pruneArgs, minArgs} {
		for op, n := range args {
			of[op] = max(of[op], uint8(n))
		}
	}
	return of
}()

// defines is the id that an instruction defines.
func (in inst) defines() (uint32, bool) {
	at := 1
	if int(in.op) < len(resultAt) {
		at = int(resultAt[in.op])
	}
	if at < 0 || at >= len(in.args) {
		return 0, false
	}
	return in.args[at], true
}

// resultAt has the number of the operand that is the id which an instruction defines, -1 for none.
// It is 1, after a type, for all that are not listed.
var resultAt = func() (at [1 << 13]int8) {
	for op := range at {
		switch op := uint16(op); {
		case slices.Contains(ofTargets, op) || slices.Contains(noResult, op):
			at[op] = -1
		case op >= opTypeFirst && op <= opTypeLast || slices.Contains(noType, op):
		default:
			at[op] = 1
		}
	}
	return at
}()

// mark adds what instructions define, unmark takes it out.
func mark(gone *ids, code []inst) {
	for _, in := range code {
		if id, ok := in.defines(); ok {
			gone.set(id)
		}
	}
}

func unmark(gone ids, code []inst) {
	for _, in := range code {
		if id, ok := in.defines(); ok {
			gone.unset(id)
		}
	}
}

// names tells whether debug information, which may name what does not lead to it, or another
// extended instruction, names one of these.
func names(code []inst, gone ids) bool {
	return slices.ContainsFunc(code, func(in inst) bool { return in.op == opExtInst && slices.ContainsFunc(in.args[4:], gone.has) })
}

// append writes an instruction.
func (in inst) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(in.op)|uint32(len(in.args)+1)<<16)
	return words(to, in.args...)
}

// calls lists the functions that a module's entry points call, by others or themselves. Vendors'
// instructions may call functions too, so every operand of theirs counts.
func calls(head []inst, bodies map[uint32][]inst) (list []uint32) {
	seen := map[uint32]bool{}
	call := func(ids ...uint32) {
		for _, id := range ids {
			if _, is := bodies[id]; is && !seen[id] {
				list, seen[id] = append(list, id), true
			}
		}
	}
	for _, in := range head {
		if in.op == opEntryPoint {
			call(in.args[1])
		}
	}
	for i := 0; i < len(list); i++ {
		for _, in := range bodies[list[i]] {
			if in.op == opFunctionCall {
				call(in.args[2])
			} else if in.op >= opFirstOfVendors {
				call(in.args...)
			}
		}
	}
	return list
}
