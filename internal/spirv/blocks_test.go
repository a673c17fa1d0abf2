package spirv

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const opReturn = 253

// function1 is a module with a void function 1 of these instructions, after those of the module.
// Constants 50 to 52 are 5, 6 and a 5 of 64 bits; 32 is the truth value that Prune is given.
func function1(module [][]uint32, code ...[]uint32) []byte {
	module = append(module, op(19, 7), op(33, 8, 7), op(opConstant, 2, 50, 5), op(opConstant, 2, 51, 6),
		op(opConstant, 3, 52, 5, 0), op(opFunction, 7, 1, 0, 8))
	return example(append(append(module, code...), op(opFunctionEnd))...)
}

// whole fails if what a module names is not there: labels, parents of an OpPhi that are not those
// that lead to it, and ids that the module had before. These are to be above all literals.
func whole(t *testing.T, before, after []byte, name string) []uint16 {
	t.Helper()
	headBefore, was, ok := split(before)
	require.True(t, ok, name)
	head, functions, ok := split(after)
	require.True(t, ok, name)
	var gone ids
	var ops []uint16
	for _, f := range was {
		mark(&gone, f.code)
	}
	unmark(gone, headBefore)
	leads := map[uint32][]uint32{}
	var label uint32
	for _, f := range functions {
		unmark(gone, f.code)
		for _, in := range f.code {
			ops = append(ops, in.op)
			switch in.op {
			case opLabel:
				label = in.args[0]
			case opBranch:
				leads[in.args[0]] = append(leads[in.args[0]], label)
			case opBranchConditional:
				leads[in.args[1]], leads[in.args[2]] = append(leads[in.args[1]], label), append(leads[in.args[2]], label)
			case opSwitch:
				leads[in.args[1]] = append(leads[in.args[1]], label)
				for i := 3; i < len(in.args); i += 2 {
					leads[in.args[i]] = append(leads[in.args[i]], label)
				}
			}
		}
	}
	for _, in := range head {
		if slices.Contains(ofTargets, in.op) {
			assert.False(t, gone.has(in.args[0]), "%s: %+v", name, in)
		}
	}
	for _, f := range functions {
		for _, in := range f.code {
			if in.op == opLabel {
				label = in.args[0]
			}
			var parents []uint32
			for i, id := range in.args {
				assert.False(t, gone.has(id), "%s: %+v names %d", name, in, id)
				if in.op == opPhi && i >= 2 && i%2 == 1 {
					parents = append(parents, id)
				}
			}
			if in.op == opPhi {
				assert.ElementsMatch(t, leads[label], parents, "%s: parents in %d", name, label)
			}
		}
	}
	return ops
}

// loop leaves by a block that constant 32 decides on, and what comes after it uses a number of
// that block; or goes on by another, whose number the next turn uses.
func loop() []byte {
	return function1(nil,
		op(opLabel, 60), op(opBranch, 61),
		op(opLabel, 61), op(opPhi, 2, 70, 50, 60, 71, 65), op(opLoopMerge, 66, 65, 0), op(opBranch, 62),
		op(opLabel, 62), op(opSelectionMerge, 64, 0), op(opBranchConditional, 32, 63, 64),
		op(opLabel, 63), op(opIAdd, 2, 72, 70, 50), op(opBranch, 66),
		op(opLabel, 64), op(opIAdd, 2, 71, 70, 51), op(opBranch, 65),
		op(opLabel, 65), op(opBranch, 61),
		op(opLabel, 66), op(opIMul, 2, 73, 72, 72), op(opReturn))
}

// Blocks that only a merge names keep no instruction: what these use may be gone.
func TestPruneLoops(t *testing.T) {
	code := loop()
	leave, stay := Prune(code, []uint32{64, 1}), Prune(code, []uint32{64, 0})
	assert.Equal(t, []uint16{opFunction, opLabel, opBranch, opLabel, opPhi, opLoopMerge, opBranch, opLabel, opBranch,
		opLabel, opIAdd, opBranch, opLabel, opBranch, opLabel, opIMul, opReturn, opFunctionEnd}, whole(t, code, leave, "leave"))
	assert.Equal(t, []uint16{opFunction, opLabel, opBranch, opLabel, opPhi, opLoopMerge, opBranch, opLabel, opBranch,
		opLabel, opIAdd, opBranch, opLabel, opBranch, opLabel, opUnreachable, opFunctionEnd}, whole(t, code, stay, "stay"))
}

// A block may come before others that lead to it, if it is after those that dominate it.
func TestPruneOrder(t *testing.T) {
	code := function1(nil,
		op(opLabel, 60), op(opSelectionMerge, 63, 0), op(opBranchConditional, 32, 61, 62),
		op(opLabel, 63), op(opPhi, 2, 70, 50, 61, 51, 62), op(opReturn),
		op(opLabel, 61), op(opBranch, 63), op(opLabel, 62), op(opBranch, 63))
	for holds := range uint32(2) {
		ops := whole(t, code, Prune(code, []uint32{64, holds}), "order")
		assert.Equal(t, []uint16{opFunction, opLabel, opBranch, opLabel, opPhi, opReturn, opLabel, opBranch, opFunctionEnd}, ops)
	}
}

// A choice without a merge of its own may leave the branch that it is in. That one stays a branch.
func TestPruneStructure(t *testing.T) {
	inner := func(end ...[]uint32) []byte {
		code := [][]uint32{op(opLabel, 60), op(opSelectionMerge, 63, 0), op(opBranchConditional, 32, 61, 63),
			op(opLabel, 61), op(opULessThan, 6, 70, 31, 50)}
		return function1(nil, append(append(code, end...), op(opLabel, 62), op(opBranch, 63), op(opLabel, 63), op(opReturn))...)
	}
	code := inner(op(opBranchConditional, 70, 62, 63))
	assert.Equal(t, code, Prune(code, []uint32{64, 1}))
	code = inner(op(opSelectionMerge, 62, 0), op(opBranchConditional, 70, 64, 62), op(opLabel, 64), op(opBranch, 62))
	ops := whole(t, code, Prune(code, []uint32{64, 1}), "with a merge")
	assert.Equal(t, 1, len(slices.DeleteFunc(ops, func(op uint16) bool { return op != opSelectionMerge })))
}

// Literals of an OpSwitch are no labels, however wide they are; where its width is unknown, nothing
// is done.
func TestPruneSwitch(t *testing.T) {
	for name, c := range map[string]struct {
		selector uint32
		cases    []uint32
		dropped  bool
	}{
		"32 bits": {50, []uint32{66, 62}, true}, "64 bits": {52, []uint32{66, 66, 62, 67, 0, 64}, true},
		"no type": {99, []uint32{66, 62}, false}, "odd": {50, []uint32{66, 62, 5}, false},
	} {
		code := function1(nil,
			op(opLabel, 60), op(opSelectionMerge, 64, 0), op(opSwitch, append([]uint32{c.selector, 64}, c.cases...)...),
			op(opLabel, 62), op(opSelectionMerge, 67, 0), op(opBranchConditional, 32, 67, 66),
			op(opLabel, 66), op(opBranch, 67), op(opLabel, 67), op(opBranch, 64), op(opLabel, 64), op(opReturn))
		pruned := Prune(code, []uint32{64, 1})
		_, functions, ok := split(pruned)
		require.True(t, ok)
		labels := slices.DeleteFunc(functions[0].code, func(in inst) bool { return in.op != opLabel })
		if c.dropped {
			assert.Len(t, labels, 4, name)
		} else {
			assert.Equal(t, code, pruned, name)
		}
	}
}

// Decorations and names go with what they are of and with nothing else: a line of the source in
// what is dropped may have a type's number. What may name functions in other ways keeps all.
func TestPruneWhatNamesFunctions(t *testing.T) {
	const opModuleProcessed = 330
	body := func(more ...[]uint32) [][]uint32 {
		code := [][]uint32{op(opLabel, 60), op(opSelectionMerge, 62, 0), op(opBranchConditional, 32, 61, 62),
			op(opLabel, 61), op(opLine, 9, 20, 7), op(opFunctionCall, 7, 70, 80), op(opBranch, 62), op(opLabel, 62)}
		return append(append(append(code, more...), op(opReturn), op(opFunctionEnd)),
			op(opFunction, 7, 80, 0, 8), op(opLabel, 81), op(opReturn))
	}
	drop := []uint32{64, 0}
	code := function1([][]uint32{named(opString, "file", 9), named(opModuleProcessed, "PPP"), op(opDecorate, 20, 2), op(opDecorate, 81, 0),
		named(opDecorateString, "x", 81, 5635), op(opDecorateID, 81, 5001, 33)}, body()...)
	pruned := Prune(code, drop)
	whole(t, code, pruned, "lines")
	m, err := Parse(pruned)
	require.NoError(t, err)
	assert.Contains(t, m.decorations, [2]uint32{20, 2}, "a decoration of a type that a line of the source has the number of")
	assert.Len(t, code, len(pruned)+4*(3+4+4+12+5+9), "three decorations, a block, the choice, and a function")

	for name, as := range map[string][]byte{
		"debug information of the module": function1([][]uint32{op(opExtInst, 7, 90, 91, 20, 80)}, body()...),
		"debug information of a function": function1(nil, body(op(opExtInst, 7, 90, 91, 29, 70))...),
		"a group of decorations":          function1([][]uint32{op(opDecorationGroup, 90), op(74, 90, 32)}, body()...),
		"between functions":               function1(nil, append(body(), op(opFunctionEnd), op(opNoLine), op(opFunction, 7, 82, 0, 8))...),
		"a function twice":                function1(nil, append(body(), op(opFunctionEnd), op(opFunction, 7, 80, 0, 8))...),
	} {
		assert.Equal(t, as, Prune(as, drop), name)
	}
	const perElement = 5369
	code = function1(nil, body(op(perElement, 5, 90, 33, 80))...)
	_, functions, ok := split(Prune(code, drop))
	assert.True(t, ok && len(functions) == 2, "a function that another instruction calls")
	code = function1([][]uint32{named(opEntryPoint, "other", modelGLCompute, 80)}, body()...)
	_, functions, ok = split(Prune(code, drop))
	assert.True(t, ok && len(functions) == 2, "a second entry point")
}

// Truth values that no constant of 32 bits gives: of signed and unsigned numbers, of 64 bits, of
// what is given in another width. A constant may name others twice, over and over.
func TestPruneConditions(t *testing.T) {
	minus := op(opConstant, 4, 40, 1<<32-1) // -1
	chain := [][]uint32{op(opSpecConstantOp, 2, 100, opIAdd, 31, 31)}
	for id := uint32(101); id < 150; id++ {
		chain = append(chain, op(opSpecConstantOp, 2, id, opIAdd, id-1, id-1))
	}
	for name, c := range map[string]struct {
		module [][]uint32
		want   int // label of the branch that stays; 0: both
	}{
		"unsigned of signed": {[][]uint32{minus, op(opSpecConstantOp, 6, 90, opULessThan, 33, 40)}, 61},
		"signed of unsigned": {[][]uint32{op(opConstant, 2, 40, 1<<32-1), op(opSpecConstantOp, 6, 90, opSLessThan, 40, 33)}, 61},
		"equal bits":         {[][]uint32{minus, op(opConstant, 2, 41, 1<<32-1), op(opSpecConstantOp, 6, 90, opIEqual, 40, 41)}, 61},
		"upper halves": {[][]uint32{op(opConstant, 3, 40, 5, 0), op(opConstant, 3, 41, 5, 1),
			op(opSpecConstantOp, 6, 90, opIEqual, 40, 41)}, 62},
		"64 bits": {[][]uint32{op(opConstant, 3, 40, 5, 0), op(opConstant, 3, 41, 3, 1),
			op(opSpecConstantOp, 6, 90, opULessThan, 40, 41)}, 61},
		"64 bits, given": {[][]uint32{op(opDecorate, 40, decorationSpecID, 0), op(opSpecConstant, 3, 40, 5, 0), op(opConstant, 3, 41, 5, 0),
			op(opSpecConstantOp, 6, 90, opIEqual, 40, 41)}, 0},
		"16 bits, given": {[][]uint32{op(opTypeInt, 42, 16, 0), op(opDecorate, 40, decorationSpecID, 0), op(opSpecConstant, 42, 40, 64),
			op(opConstant, 42, 41, 64), op(opSpecConstantOp, 6, 90, opIEqual, 40, 41)}, 0},
		"16 bits": {[][]uint32{op(opTypeInt, 42, 16, 1), op(opConstant, 42, 41, 1<<32-1),
			op(opSpecConstantOp, 6, 90, opSLessThan, 41, 41)}, 62},
		"an arithmetic shift": {[][]uint32{op(opConstant, 2, 40, 1<<31), op(opConstant, 2, 41, 31), op(opConstant, 2, 43, 1<<32-1),
			op(opSpecConstantOp, 2, 42, opShiftRightArithmetic, 40, 41), op(opSpecConstantOp, 6, 90, opIEqual, 42, 43)}, 61},
		"a shift too far": {[][]uint32{op(opSpecConstantOp, 2, 40, opShiftLeftLogical, 33, 31),
			op(opSpecConstantOp, 6, 90, opIEqual, 40, 33)}, 0},
		"two widths":     {[][]uint32{op(opConstant, 3, 40, 3, 0), op(opSpecConstantOp, 6, 90, opIEqual, 40, 33)}, 0},
		"a default":      {[][]uint32{op(opDecorate, 90, decorationSpecID, 9), op(opSpecConstantFalse, 6, 90)}, 62},
		"any truth":      {[][]uint32{op(opDecorate, 90, decorationSpecID, 0), op(opSpecConstantFalse, 6, 90)}, 61},
		"no truth value": {[][]uint32{op(opConstant, 2, 90, 1)}, 0},
		"a null":         {[][]uint32{op(46, 6, 90)}, 0},
		"over and over":  {append(chain, op(opSpecConstantOp, 6, 90, opINotEqual, 149, 33)), 61},
	} {
		code := function1(c.module, op(opLabel, 60), op(opSelectionMerge, 63, 0), op(opBranchConditional, 90, 61, 62),
			op(opLabel, 61), op(opBranch, 63), op(opLabel, 62), op(opBranch, 63), op(opLabel, 63), op(opReturn))
		pruned := Prune(code, []uint32{64, 1})
		if c.want == 0 {
			assert.Equal(t, code, pruned, name)
			continue
		}
		_, functions, ok := split(pruned)
		require.True(t, ok, name)
		require.Len(t, functions[0].code, 8, name)
		assert.Equal(t, uint32(c.want), functions[0].code[3].args[0], name)
	}
}
