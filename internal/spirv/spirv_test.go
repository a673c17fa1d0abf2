package spirv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// module assembles words into a module.
func module(insts ...[]uint32) []byte {
	words := []uint32{magic, 0x00010500, 0, 100, 0}
	for _, in := range insts {
		words = append(words, in...)
	}
	var out []byte
	for _, w := range words {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out
}

func op(code uint32, args ...uint32) []uint32 {
	return append([]uint32{uint32(len(args)+1)<<16 | code}, args...)
}

func str(s string) []uint32 {
	b := append([]byte(s), make([]byte, 4-len(s)%4)...)
	var w []uint32
	for i := 0; i < len(b); i += 4 {
		w = append(w, binary.LittleEndian.Uint32(b[i:]))
	}
	return w
}

func named(code uint32, s string, args ...uint32) []uint32 {
	return op(code, append(args, str(s)...)...)
}

// example has a push-constant block (10), a buffer (20), two specialisation
// constants, and a shared array whose length is the first of them times three.
func example(more ...[]uint32) []byte {
	return module(append([][]uint32{
		op(opCapability, uint32(Shader)), op(opCapability, uint32(Int64)), named(opExtension, "SPV_X"),
		named(opEntryPoint, "main", modelGLCompute, 1),
		op(opExecutionMode, 1, modeLocalSize, 8, 4, 2),
		named(opMemberName, "first_word", 10, 0), named(opMemberName, "addr", 10, 1), named(opName, "pool", 21), named(opName, "PAGE", 31),
		op(opMemberDecorate, 10, 0, decorationOffset, 0), op(opMemberDecorate, 10, 1, decorationOffset, 8),
		op(opDecorate, 21, decorationBinding, 3), op(opDecorate, 21, decorationNonWritable),
		op(opDecorate, 31, decorationSpecID, 0), op(opDecorate, 32, decorationSpecID, 1),
		op(opTypeInt, 2, 32, 0), op(opTypeInt, 3, 64, 0), op(opTypeInt, 4, 32, 1), op(opTypeFloat, 5, 32), op(opTypeBool, 6),
		op(opTypeStruct, 10, 2, 3), op(opTypePointer, 11, classPushConstant, 10), op(opVariable, 11, 12, classPushConstant),
		op(opTypeRuntimeArray, 19, 2), op(opTypeStruct, 20, 19), op(opTypePointer, 22, classStorageBuffer, 20), op(opVariable, 22, 21, classStorageBuffer),
		op(opSpecConstant, 2, 31, 64), op(opSpecConstantTrue, 6, 32), op(opConstant, 2, 33, 3),
		op(opSpecConstantOp, 2, 34, opIMul, 31, 33), op(opTypeVector, 35, 5, 4), op(opTypeArray, 36, 35, 34),
		op(opTypePointer, 37, classWorkgroup, 36), op(opVariable, 37, 38, classWorkgroup),
	}, more...)...)
}

func TestParse(t *testing.T) {
	m, err := Parse(example())
	require.NoError(t, err)
	got := fmt.Sprint(m.Version, m.EntryPoint, m.Capabilities, m.Extensions, m.Push, m.Bindings, m.Constants)
	want := "[1 5]main[Capability(1) Capability(11)] [SPV_X] [{first_word 0 4} {addr 8 8}] [{0 3 pool true false}] [{0 PAGE 64} {1  1}]"
	assert.Equal(t, want, got)
	s, err := m.LocalSize()
	assert.NoError(t, err)
	assert.Equal(t, [3]uint32{8, 4, 2}, s)
	for _, c := range []struct {
		constants []uint32
		want      int
	}{{nil, 64 * 3 * 16}, {[]uint32{2}, 2 * 3 * 16}} {
		n, err := m.SharedBytes(c.constants...)
		assert.NoError(t, err, "shared memory with %v", c.constants)
		assert.Equal(t, c.want, n, "shared memory with %v", c.constants)
	}
	assert.Contains(t, m.Capabilities, Shader)
	assert.NotContains(t, m.Capabilities, Float16)
}

func TestLocalSizeOfConstants(t *testing.T) {
	for name, mode := range map[string][][]uint32{
		"by id":    {op(opExecutionModeID, 1, modeLocalSizeID, 31, 33, 33)},
		"built-in": {op(opDecorate, 40, decorationBuiltIn, builtInWorkgroupSize), op(opSpecConstantComposite, 2, 40, 31, 33, 33)},
	} {
		m, err := Parse(example(mode...))
		require.NoError(t, err)
		s, err := m.LocalSize()
		assert.NoError(t, err, name)
		assert.Equal(t, [3]uint32{64, 3, 3}, s, name)
		s, err = m.LocalSize(7)
		assert.NoError(t, err, "%s with 7", name)
		assert.Equal(t, [3]uint32{7, 3, 3}, s, "%s with 7", name)
	}
}

// TestEval runs every operation that array lengths may be made of.
func TestEval(t *testing.T) {
	for _, c := range []struct {
		op   uint32
		args []uint32 // ids: 31 = 64, 32 = true, 33 = 3, 41 = -5 signed
		want int64
	}{
		{opIAdd, []uint32{31, 33}, 67}, {opISub, []uint32{31, 33}, 61}, {opISub, []uint32{33, 31}, 1<<32 - 61}, {opIMul, []uint32{31, 33}, 192},
		{opUDiv, []uint32{31, 33}, 21}, {opSDiv, []uint32{31, 33}, 21}, {opUMod, []uint32{31, 33}, 1}, {opSRem, []uint32{31, 33}, 1}, {opSMod, []uint32{31, 33}, 1},
		{opSelect, []uint32{32, 31, 33}, 64}, {opLogicalOr, []uint32{32, 32}, 1}, {opLogicalAnd, []uint32{32, 32}, 1}, {opLogicalNot, []uint32{32}, 0},
		{opIEqual, []uint32{31, 33}, 0}, {opINotEqual, []uint32{31, 33}, 1}, {opUGreaterThan, []uint32{31, 33}, 1}, {opSGreaterThan, []uint32{33, 41}, 1},
		{opUGreaterThanEqual, []uint32{33, 33}, 1}, {opULessThan, []uint32{31, 33}, 0}, {opSLessThan, []uint32{41, 33}, 1}, {opULessThanEqual, []uint32{33, 33}, 1},
		{opShiftLeftLogical, []uint32{31, 33}, 512}, {opShiftRightLogical, []uint32{31, 33}, 8}, {opShiftRightArithmetic, []uint32{31, 33}, 8},
		{opBitwiseOr, []uint32{31, 33}, 67}, {opBitwiseXor, []uint32{31, 31}, 0}, {opBitwiseAnd, []uint32{31, 33}, 0}, {opUConvert, []uint32{31}, 64},
	} {
		m, err := Parse(example(op(opConstant, 4, 41, 1<<32-5), op(opSpecConstantOp, append([]uint32{2, 50, c.op}, c.args...)...)))
		require.NoError(t, err)
		v, err := m.eval(50, nil)
		assert.NoError(t, err, "operation %d", c.op)
		assert.Equal(t, c.want, v, "operation %d", c.op)
	}
	for name, in := range map[string][]uint32{
		"unknown operation": op(opSpecConstantOp, 2, 50, 9999, 31),
		"no such constant":  op(opSpecConstantOp, 2, 50, opIAdd, 31, 99),
		"itself":            op(opSpecConstantOp, 2, 50, opIAdd, 31, 50),
		"four operands":     op(opSpecConstantOp, 2, 50, opIAdd, 31, 31, 31, 31),
		"extract":           op(opSpecConstantOp, 2, 50, opCompositeExtract, 31, 0),
	} {
		m, err := Parse(example(in))
		require.NoError(t, err)
		v, err := m.eval(50, nil)
		assert.Error(t, err, "%s: %d", name, v)
	}
}

func TestParseErrors(t *testing.T) {
	for name, code := range map[string][]byte{
		"empty":          nil,
		"odd length":     make([]byte, 23),
		"magic":          make([]byte, 40),
		"runs past":      module([]uint32{99 << 16}),
		"no length":      module([]uint32{0}),
		"too few":        module(op(opDecorate, 1)),
		"no entry point": module(op(opCapability, 1)),
		"cut":            example()[:len(example())-4],
	} {
		m, err := Parse(code)
		assert.False(t, err == nil || !strings.HasPrefix(err.Error(), "spirv: "), "%s: %v %v", name, m, err)
	}
}

func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		capabilities []Capability
		want         string
	}{
		{[]Capability{Shader}, "[]"},
		{[]Capability{Shader, Int64, PhysicalStorageBuffer}, "[bufferDeviceAddress shaderInt64]"},
		{[]Capability{Shader, GroupNonUniform}, "[computeFullSubgroups subgroupSizeControl]"},
		{[]Capability{Shader, Float16, CooperativeMatrix}, "[cooperativeMatrix coopmat.f16.f32 shaderFloat16]"},
		{[]Capability{Shader, CooperativeMatrix, BFloat16CoopMatrix},
			"[cooperativeMatrix coopmat.bf16.f32 shaderBFloat16CooperativeMatrix]"},
		{[]Capability{Shader, CooperativeMatrix, Float8CoopMatrix},
			"[cooperativeMatrix coopmat.e4m3.f32 shaderFloat8CooperativeMatrix]"},
	} {
		var list [][]uint32
		for _, capability := range c.capabilities {
			list = append(list, op(opCapability, uint32(capability)))
		}
		code := module(append(list, named(opExtension, "SPV_X"))...)
		got, err := Features(code)
		assert.NoError(t, err)
		assert.Equal(t, c.want, fmt.Sprint(got), "%v", c.capabilities)
	}
	_, err := Features(module(op(opCapability, 77)))
	assert.ErrorContains(t, err, "Capability(77)")
	for _, code := range [][]byte{nil, make([]byte, 23), module()} {
		got, err := Features(code)
		assert.NoError(t, err)
		assert.Empty(t, got)
	}
}

// choice is a module that branches on constant 1, a truth value (32), and then on something that is
// no constant (60). Both functions that it may call have a name and a decoration.
func choice() []byte {
	const relaxed = 0
	return example(
		named(opName, "taken", 40), named(opName, "other", 45), op(opDecorate, 41, relaxed), op(opDecorate, 46, relaxed),
		op(19, 7), op(33, 8, 7), // void, and a function of it
		op(opConstant, 2, 50, 5), op(opConstant, 2, 51, 6),
		op(opFunction, 7, 1, 0, 8),
		op(opLabel, 52), op(opSelectionMerge, 55, 0), op(opBranchConditional, 32, 53, 54),
		op(opLabel, 53), op(opFunctionCall, 7, 56, 40), op(opBranch, 55),
		op(opLabel, 54), op(opFunctionCall, 7, 57, 45), op(opBranch, 55),
		op(opLabel, 55), op(opPhi, 2, 58, 50, 53, 51, 54),
		op(opULessThan, 6, 60, 58, 50), op(opSelectionMerge, 62, 0), op(opBranchConditional, 60, 61, 62),
		op(opLabel, 61), op(opBranch, 62), op(opLabel, 62), op(253), op(opFunctionEnd),
		op(opFunction, 7, 40, 0, 8), op(opLabel, 41), op(253), op(opFunctionEnd),
		op(opFunction, 7, 45, 0, 8), op(opLabel, 46), op(253), op(opFunctionEnd),
	)
}

// Of a branch that constants decide one side stays, with what it calls; others stay whole.
func TestPrune(t *testing.T) {
	code := choice()
	for _, c := range []struct {
		holds                         uint32
		called, value, block, unnamed uint32
	}{{1, 40, 50, 53, 45}, {0, 45, 51, 54, 40}} {
		pruned := Prune(code, []uint32{64, c.holds})
		head, functions, ok := split(pruned)
		require.True(t, ok)
		require.Len(t, functions, 2)
		assert.Equal(t, c.called, functions[1].id, "the function that is called")
		for _, in := range head {
			if in.op == opName || in.op == opDecorate {
				assert.NotContains(t, []uint32{c.unnamed, c.unnamed + 1}, in.args[0], "the name of what is gone")
			}
		}
		var ops []uint16
		for _, in := range functions[0].code {
			ops = append(ops, in.op)
			if in.op == opPhi {
				assert.Equal(t, []uint32{2, 58, c.value, c.block}, in.args)
			}
		}
		assert.Equal(t, []uint16{opFunction, opLabel, opBranch, opLabel, opFunctionCall, opBranch, opLabel, opPhi, opULessThan,
			opSelectionMerge, opBranchConditional, opLabel, opBranch, opLabel, 253, opFunctionEnd}, ops)
		assert.Equal(t, 2, Depth(pruned))
		assert.Equal(t, pruned, Prune(pruned, []uint32{64, c.holds}), "a second time")
	}
	assert.Equal(t, 2, Depth(code))
}

// What is no module comes back as it is, and nothing panics.
func TestPruneMalformed(t *testing.T) {
	modules := [][]byte{choice(), loop()}
	for _, code := range modules {
		for cut := range len(code) {
			Prune(code[:cut], nil)
			Depth(code[:cut])
		}
	}
	assert.Equal(t, []byte("soup"), Prune([]byte("soup"), nil))
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 20000 {
		code := modules[i%2]
		bad := bytes.Clone(code)
		for range 1 + r.IntN(3) {
			bad[20+r.IntN(len(bad)-20)] = byte(r.IntN(256) >> r.IntN(8))
		}
		Prune(bad, []uint32{1, uint32(r.IntN(2))})
		Depth(bad)
	}
}
