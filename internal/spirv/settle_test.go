package spirv

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ids of either below.
const (
	eitherHalf     = 42 // OpTypeFloat 16
	eitherShared   = 44 // used with HALVES
	eitherOther    = 45 // used without
	eitherPointer  = 47 // to memory by address
	eitherLocal    = 75 // a variable of its function, used with HALVES
	eitherConstant = 32
)

// chosen makes a choice of constant 1 of a module.
func chosen(code []byte) []byte {
	number := module(op(opDecorate, eitherConstant, decorationSpecID, 1))[20:]
	at := bytes.Index(code, number)
	binary.LittleEndian.PutUint32(code[at+12:], Choices)
	return code
}

// either is a kernel that with the choice HALVES (32) adds 16-bit numbers, passes them on inside a
// subgroup and reads memory at the push constant addr. Without it names another variable and
// first_word.
func either() []byte {
	return chosen(example(
		op(opCapability, uint32(Float16)), op(opCapability, uint32(GroupNonUniform)),
		op(opCapability, uint32(GroupNonUniformShuffle)), op(opCapability, uint32(MixedDot)),
		op(opCapability, uint32(PhysicalStorageBuffer)), named(opExtension, "SPV_KHR_physical_storage_buffer"),
		named(opExtension, "SPV_VALVE_mixed_float_dot_product"), op(opMemoryModel, addressesOf64, 1),
		op(opEntryPoint, slices.Concat([]uint32{0, 1}, str("more"), []uint32{eitherShared, eitherOther})...),
		named(opName, "HALVES", eitherConstant), named(opName, "half_s", eitherShared), op(opDecorate, eitherShared, 0),
		named(opName, "at", eitherLocal),
		op(opTypeFloat, eitherHalf, 16),
		op(opTypePointer, 43, classWorkgroup, eitherHalf), op(opVariable, 43, eitherShared, classWorkgroup),
		op(opTypePointer, 46, classWorkgroup, 5), op(opVariable, 46, eitherOther, classWorkgroup),
		op(19, 7), op(33, 8, 7), op(opConstant, 2, 50, 0), op(opConstant, 2, 51, 1), op(opTypePointer, 52, classPushConstant, 2),
		op(opTypePointer, eitherPointer, classPhysicalStorageBuffer, 2), op(opTypePointer, 48, 7, 3),
		op(opFunction, 7, 1, 0, 8),
		op(opLabel, 60), op(opVariable, 48, eitherLocal, 7), op(opSelectionMerge, 63, 0), op(opBranchConditional, eitherConstant, 61, 62),
		op(opLabel, 61), op(opLoad, eitherHalf, 70, eitherShared, 2, eitherOther), // aligned, by no id
		op(345, eitherHalf, 71, 50, 70, 50),
		op(opAccessChain, 52, 72, 12, 51), op(opFDot2MixAcc32, 5, 73, 70, 70, 71),
		op(opStore, eitherLocal, 72), op(120, eitherPointer, 76, 72), op(opBranch, 63),
		op(opLabel, 62), op(opStore, eitherOther, 50), op(opAccessChain, 52, 74, 12, 50), op(opBranch, 63),
		op(opLabel, 63), op(opReturn), op(opFunctionEnd),
	))
}

// What a settled choice leaves out goes with all that only it needed: a device need not have it.
func TestSettle(t *testing.T) {
	for value, want := range []struct {
		capabilities []Capability
		extensions   []string
		model        uint32
		push         int
		variables    []uint32
	}{
		{[]Capability{Shader}, []string{"SPV_X"}, 0, 1, []uint32{eitherOther}},
		{[]Capability{Shader, Int64, Float16, GroupNonUniform, GroupNonUniformShuffle, MixedDot, PhysicalStorageBuffer},
			[]string{"SPV_X", "SPV_KHR_physical_storage_buffer", "SPV_VALVE_mixed_float_dot_product"}, addressesOf64, 2,
			[]uint32{eitherShared}},
	} {
		code, err := Settle(either(), map[string]uint32{"HALVES": uint32(value)})
		require.NoError(t, err)
		m, err := Parse(code)
		require.NoError(t, err)
		assert.Equal(t, want.capabilities, m.Capabilities)
		assert.Equal(t, want.extensions, m.Extensions)
		assert.Empty(t, m.Bindings, "nothing reads pool")
		assert.Len(t, m.Push, want.push)
		assert.Equal(t, []Constant{{ID: 0, Name: "PAGE", Default: 64}}, m.Constants, "the other constant stays")
		head, functions, ok := split(code)
		require.True(t, ok)
		var shared []uint32
		for _, in := range head {
			switch {
			case in.op == opVariable && in.args[2] == classWorkgroup:
				shared = append(shared, in.args[1])
			case in.op == opEntryPoint && in.args[0] == 0:
				assert.Equal(t, want.variables, in.args[4:], "variables of the entry point")
			case in.op == opMemoryModel:
				assert.Equal(t, []uint32{want.model, 1}, in.args)
			case value == 0 && (in.op == opName || in.op == opDecorate):
				assert.NotContains(t, []uint32{eitherShared, eitherLocal}, in.args[0], "of what is gone: %+v", in)
			}
		}
		assert.Equal(t, want.variables, shared)
		require.Len(t, functions, 1)
		labels := slices.DeleteFunc(functions[0].code, func(in inst) bool { return in.op != opLabel })
		assert.Len(t, labels, 1, "blocks that follow each other are one")
		whole(t, either(), code, "settled")
		again, err := Settle(code, nil)
		require.NoError(t, err)
		assert.Equal(t, code, again, "nothing is left to choose")
	}
}

// A push constant of 64 bits that nothing reads, before one that is read, is a pair of words.
func TestSettlePairs(t *testing.T) {
	code := chosen(module(
		op(opCapability, uint32(Shader)), op(opCapability, uint32(Int64)), named(opEntryPoint, "main", modelGLCompute, 1),
		op(opExecutionMode, 1, modeLocalSize, 1, 1, 1), named(opName, "ADDRESSED", eitherConstant),
		op(opMemberDecorate, 10, 0, decorationOffset, 0), op(opMemberDecorate, 10, 1, decorationOffset, 8),
		op(opDecorate, eitherConstant, decorationSpecID, 1),
		op(19, 7), op(33, 8, 7), op(opTypeInt, 3, 64, 0), op(opTypeInt, 2, 32, 0), op(opTypeBool, 6), op(opTypeStruct, 10, 3, 2),
		op(opTypePointer, 11, classPushConstant, 10), op(opVariable, 11, 12, classPushConstant), op(opSpecConstantTrue, 6, eitherConstant),
		op(opConstant, 2, 50, 0), op(opConstant, 2, 51, 1),
		op(opTypePointer, 52, classPushConstant, 2), op(opTypePointer, 53, classPushConstant, 3),
		op(opFunction, 7, 1, 0, 8),
		op(opLabel, 60), op(opSelectionMerge, 63, 0), op(opBranchConditional, eitherConstant, 61, 62),
		op(opLabel, 61), op(opAccessChain, 53, 72, 12, 50), op(opBranch, 63),
		op(opLabel, 62), op(opAccessChain, 52, 74, 12, 51), op(opBranch, 63),
		op(opLabel, 63), op(opReturn), op(opFunctionEnd),
	))
	for value, want := range []struct {
		push  []Member
		int64 bool
		bound uint32
	}{{[]Member{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}}, false, 101}, {[]Member{{Offset: 0, Size: 8}}, true, 100}} {
		settled, err := Settle(code, map[string]uint32{"ADDRESSED": uint32(value)})
		require.NoError(t, err)
		m, err := Parse(settled)
		require.NoError(t, err)
		assert.Equal(t, want.push, m.Push)
		assert.Equal(t, want.int64, m.HasCapability(Int64))
		assert.Equal(t, want.bound, binary.LittleEndian.Uint32(settled[12:]), "one more than the largest id")
	}
}

// A constant that is no choice decides nothing, and a choice without a value is 0.
func TestSettleOthers(t *testing.T) {
	code, err := Settle(choice(), map[string]uint32{"taken": 1})
	require.NoError(t, err)
	assert.Equal(t, choice(), code)
	zero, err := Settle(either(), map[string]uint32{"PAGE": 16})
	require.NoError(t, err)
	want, err := Settle(either(), map[string]uint32{"HALVES": 0})
	require.NoError(t, err)
	assert.Equal(t, want, zero)
}

// What is malformed is an error, or nothing happens to it; nothing panics.
func TestSettleMalformed(t *testing.T) {
	code := either()
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 20000 {
		bad := bytes.Clone(code[:len(code)-i%2*r.IntN(len(code)/4-6)*4])
		for range 1 + r.IntN(3) {
			bad[20+r.IntN(len(bad)-20)] = byte(r.IntN(256) >> r.IntN(8))
		}
		_, _ = Settle(bad, map[string]uint32{"HALVES": uint32(i % 2)})
	}
}
