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
	dead := func(id uint32) bool { return !live.has(id) }
	var defined ids
	for _, in := range head {
		if id, ok := in.defines(); ok && in.op != opString && in.op != opExtInstImport {
			defined.set(id)
		}
	}
	var kept []inst
	for _, in := range head {
		id, defines := in.defines()
		if slices.Contains(ofTargets, in.op) || in.op == opMemberName || in.op == opMemberDecorate {
			id, defines = in.args[0], true
		}
		if defines && defined.has(id) && dead(id) {
			continue
		}
		if in.op == opEntryPoint { // after its name come the variables that it uses
			begin := 3 + slices.IndexFunc(in.args[2:], lastOfText)
			in.args = slices.Concat(in.args[:begin], slices.DeleteFunc(slices.Clone(in.args[begin:]), dead))
		}
		kept = append(kept, in)
	}
	return withoutUnneeded(kept, functions)
}

// withoutUnneeded is what comes before functions without capabilities that nothing needs.
func withoutUnneeded(head, functions []inst) []inst {
	var seen [1 << 13]bool
	kinds := slices.Clone(head) // and one instruction of functions of each
	for _, in := range functions {
		if int(in.op) < len(seen) && !seen[in.op] {
			seen[in.op] = true
			kinds = append(kinds, in)
		}
	}
	unneeded := slices.DeleteFunc(slices.Clone(needs), func(n needed) bool { return slices.ContainsFunc(kinds, n.by) })
	var kept []inst
	for _, in := range head {
		addresses := in.op == opMemoryModel && in.args[0] == addressesOf64
		drops := func(n needed) bool {
			return in.op == opCapability && in.args[0] == uint32(n.capability) || in.op == opExtension && text(in.args) == n.extension ||
				addresses && n.capability == PhysicalStorageBuffer
		}
		switch unneeded := slices.ContainsFunc(unneeded, drops); {
		case !unneeded:
			kept = append(kept, in)
		case addresses:
			kept = append(kept, inst{opMemoryModel, []uint32{0, in.args[1]}})
		}
	}
	return kept
}

// live are the ids that functions name, or that what they name needs.
func (m *Module) live(head, functions []inst) ids {
	var live ids
	live.set(m.workgroup)
	for _, in := range functions {
		live.add(in.operands())
	}
	for _, in := range head {
		id, defines := in.defines()
		switch {
		case in.op == opExecutionModeID || in.op == opDecorateID:
			live.add(in.operands())
		case defines && m.decorations[[2]uint32{id, decorationSpecID}] != nil:
			live.set(id)
		}
	}
	for more := true; more; { // a pointer's type may be named before it comes
		more = false
		for _, in := range slices.Backward(head) {
			if id, ok := in.defines(); ok && live.has(id) && live.add(in.operands()) {
				more = true
			}
		}
	}
	return live
}

// operands are the words of an instruction that may be ids of what comes before functions, in up to
// two parts.
func (in inst) operands() (first, rest []uint32) {
	a := in.args
	to := func(n int) []uint32 { return a[:min(n, len(a))] }
	from := func(n int) []uint32 { return a[min(n, len(a)):] }
	memory := func(n int) (first, rest []uint32) { // n ids, and then there may be literals, which are bits and an alignment, and scopes
		const aligned = 2
		skip := n + 1
		if n < len(a) && a[n]&aligned != 0 {
			skip++
		}
		return to(n), from(skip)
	}
	switch in.op {
	case opTypeInt, opTypeFloat, opTypeForwardPointer, opLine:
		return nil, nil
	case opConstant, opSpecConstant, opSelectionMerge, opBranchConditional, opSwitch:
		return to(1), nil
	case opTypeVector, opTypeMatrix:
		return a[1:2], nil
	case opTypePointer:
		return a[2:3], nil
	case opLoopMerge:
		return to(2), nil
	case opCompositeExtract:
		return to(3), nil
	case opCompositeInsert, opVectorShuffle:
		return to(4), nil
	case opVariable, opSpecConstantOp, opFunction:
		return to(1), from(3)
	case opExtInst:
		return to(3), from(4)
	case opLoad:
		return memory(3)
	case opStore:
		return memory(2)
	case opCooperativeMatrixLoad:
		return memory(5)
	case opCooperativeMatrixStore:
		return memory(4)
	}
	return a, nil
}

// needed is a capability that a module needs while it has an instruction.
type needed struct {
	capability Capability
	extension  string          // that comes with it
	by         func(inst) bool // of functions' instructions it asks for the opcode alone
}

// needs are the capabilities that sweep can do without; what is not among them stays.
var needs = []needed{
	{Int64, "", integers(64)}, {Int16, "", integers(16)}, {Int8, "", integers(8)},
	{Float16, "", floats(16, false)},
	{BFloat16Type, "SPV_KHR_bfloat16", floats(16, true)}, {BFloat16CoopMatrix, "", floats(16, true)},
	{Float8, "SPV_EXT_float8", floats(8, true)}, {Float8CoopMatrix, "", floats(8, true)},
	{MixedDot, "SPV_VALVE_mixed_float_dot_product", ops(opFDot2MixAcc32, opFDot2MixAcc32)},
	{PhysicalStorageBuffer, "SPV_KHR_physical_storage_buffer", addresses},
	{GroupNonUniform, "", subgroups},
	{GroupNonUniformArithmetic, "", ops(349, 364)}, {GroupNonUniformShuffle, "", ops(345, 346)},
}

// subgroups are operations of these, and variables that know of them.
func subgroups(in inst) bool {
	return ops(333, 366)(in) || in.op == opDecorate && in.args[1] == decorationBuiltIn && len(in.args) > 2 &&
		slices.Contains([]uint32{36, 38, 40, 41}, in.args[2])
}

// addresses are the types of pointers to memory by address.
func addresses(in inst) bool {
	return in.op == opTypePointer && in.args[1] == classPhysicalStorageBuffer
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
