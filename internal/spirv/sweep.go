package spirv

import "slices"

// sweep is what comes before the functions of a module without the types, constants and variables
// that neither functions nor specialisation constants need, and without the capabilities that only
// these needed. Where debug information may name anything, all stays.
func (m *Module) sweep(head, functions []inst) []inst {
	if slices.ContainsFunc(head, func(in inst) bool { return in.op == opExtInst }) {
		return head
	}
	live := m.live(head, functions)
	dead := func(id uint32) bool { return !live[id] }
	defined := map[uint32]bool{}
	for _, in := range head {
		if id, ok := in.defines(); ok && in.op != opString && in.op != opExtInstImport {
			defined[id] = true
		}
	}
	var kept []inst
	for _, in := range head {
		id, defines := in.defines()
		if slices.Contains(ofTargets, in.op) || in.op == opMemberName || in.op == opMemberDecorate {
			id, defines = in.args[0], true
		}
		if defines && defined[id] && dead(id) {
			continue
		}
		if in.op == opEntryPoint { // after its name come the variables that it uses
			begin := 3 + slices.IndexFunc(in.args[2:], lastOfText)
			in.args = slices.Concat(in.args[:begin], slices.DeleteFunc(slices.Clone(in.args[begin:]), dead))
		}
		kept = append(kept, in)
	}
	unneeded := slices.DeleteFunc(slices.Clone(needs), func(n needed) bool {
		return slices.ContainsFunc(kept, n.by) || slices.ContainsFunc(functions, n.by)
	})
	return slices.DeleteFunc(kept, func(in inst) bool {
		return slices.ContainsFunc(unneeded, func(n needed) bool {
			return in.op == opCapability && in.args[0] == uint32(n.capability) || in.op == opExtension && text(in.args) == n.extension
		})
	})
}

// live are the ids that functions name, or that what they name needs.
func (m *Module) live(head, functions []inst) map[uint32]bool {
	live := map[uint32]bool{m.workgroup: true}
	need := func(in inst) {
		for _, part := range in.operands() {
			for _, id := range part {
				live[id] = true
			}
		}
	}
	for _, in := range functions {
		need(in)
	}
	for _, in := range head {
		id, defines := in.defines()
		switch {
		case in.op == opExecutionModeID || in.op == opDecorateID:
			need(in)
		case defines && m.decorations[[2]uint32{id, decorationSpecID}] != nil:
			live[id] = true
		}
	}
	for before := -1; before < len(live); { // again while there is more: a pointer's type may be named before it comes
		before = len(live)
		for _, in := range slices.Backward(head) {
			if id, ok := in.defines(); ok && live[id] {
				need(in)
			}
		}
	}
	return live
}

// operands are the words of an instruction that may be ids of what comes before functions.
func (in inst) operands() [][]uint32 {
	a := in.args
	first := func(n int) [][]uint32 { return [][]uint32{a[:min(n, len(a))]} }
	from := func(n int) []uint32 { return a[min(n, len(a)):] }
	memory := func(n int) [][]uint32 { // n ids, and then there may be literals, which are bits and an alignment, and scopes
		const aligned = 2
		if skip := n + 1; n < len(a) {
			if a[n]&aligned != 0 {
				skip++
			}
			return append(first(n), from(skip))
		}
		return first(n)
	}
	switch in.op {
	case opTypeInt, opTypeFloat, opTypeForwardPointer, opLine:
		return nil
	case opConstant, opSpecConstant, opSelectionMerge, opBranchConditional, opSwitch:
		return first(1)
	case opTypeVector, opTypeMatrix:
		return [][]uint32{a[1:2]}
	case opTypePointer:
		return [][]uint32{a[2:3]}
	case opLoopMerge:
		return first(2)
	case opCompositeExtract:
		return first(3)
	case opCompositeInsert, opVectorShuffle:
		return first(4)
	case opVariable, opSpecConstantOp, opFunction:
		return append(first(1), from(3))
	case opExtInst:
		return append(first(3), from(4))
	case opLoad:
		return memory(3)
	case opStore:
		return memory(2)
	case opCooperativeMatrixLoad:
		return memory(5)
	case opCooperativeMatrixStore:
		return memory(4)
	}
	return [][]uint32{a}
}

// needed is a capability that a module needs while it has an instruction.
type needed struct {
	capability Capability
	extension  string // that comes with it
	by         func(inst) bool
}

// needs are the capabilities that sweep can do without; what is not among them stays.
var needs = []needed{
	{Int64, "", integers(64)}, {Int16, "", integers(16)}, {Int8, "", integers(8)},
	{Float16, "", floats(16, false)},
	{BFloat16Type, "SPV_KHR_bfloat16", floats(16, true)}, {BFloat16CoopMatrix, "", floats(16, true)},
	{Float8, "SPV_EXT_float8", floats(8, true)}, {Float8CoopMatrix, "", floats(8, true)},
	{MixedDot, "SPV_VALVE_mixed_float_dot_product", ops(opFDot2MixAcc32, opFDot2MixAcc32)},
	{GroupNonUniform, "", subgroups},
	{GroupNonUniformArithmetic, "", ops(349, 364)}, {GroupNonUniformShuffle, "", ops(345, 346)},
}

// subgroups are operations of these, and variables that know of them.
func subgroups(in inst) bool {
	return ops(333, 366)(in) || in.op == opDecorate && in.args[1] == decorationBuiltIn && len(in.args) > 2 &&
		slices.Contains([]uint32{36, 38, 40, 41}, in.args[2])
}

func ops(first, last uint16) func(inst) bool {
	return func(in inst) bool { return first <= in.op && in.op <= last }
}

func integers(width uint32) func(inst) bool {
	return func(in inst) bool { return in.op == opTypeInt && in.args[1] == width }
}

// floats are types of a width; those with an encoding are not IEEE 754's.
func floats(width uint32, encoded bool) func(inst) bool {
	return func(in inst) bool {
		return in.op == opTypeFloat && in.args[1] == width && (len(in.args) > 2) == encoded
	}
}

// lastOfText tells whether a string operand ends in a word.
func lastOfText(w uint32) bool { return w&0xFF == 0 || w&0xFF00 == 0 || w&0xFF0000 == 0 || w>>24 == 0 }
