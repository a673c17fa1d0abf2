package spirv

import (
	"bytes"
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
	eitherConstant = 32
)

// either is a kernel that with the truth value HALVES (32) adds 16-bit numbers, passes them on
// inside a subgroup and reads the push constant addr. Without it names another variable and
// first_word.
func either() []byte {
	return example(
		op(opCapability, uint32(Float16)), op(opCapability, uint32(GroupNonUniform)),
		op(opCapability, uint32(GroupNonUniformShuffle)), op(opCapability, uint32(MixedDot)),
		named(opExtension, "SPV_VALVE_mixed_float_dot_product"),
		op(opEntryPoint, slices.Concat([]uint32{0, 1}, str("more"), []uint32{eitherShared, eitherOther})...),
		named(opName, "HALVES", eitherConstant), named(opName, "half_s", eitherShared), op(opDecorate, eitherShared, 0),
		op(opTypeFloat, eitherHalf, 16),
		op(opTypePointer, 43, classWorkgroup, eitherHalf), op(opVariable, 43, eitherShared, classWorkgroup),
		op(opTypePointer, 46, classWorkgroup, 5), op(opVariable, 46, eitherOther, classWorkgroup),
		op(19, 7), op(33, 8, 7), op(opConstant, 2, 50, 0), op(opConstant, 2, 51, 1), op(opTypePointer, 52, classPushConstant, 2),
		op(opFunction, 7, 1, 0, 8),
		op(opLabel, 60), op(opSelectionMerge, 63, 0), op(opBranchConditional, eitherConstant, 61, 62),
		op(opLabel, 61), op(opLoad, eitherHalf, 70, eitherShared, 2, eitherOther), // aligned, by no id
		op(345, eitherHalf, 71, 50, 70, 50),
		op(opAccessChain, 52, 72, 12, 51), op(opFDot2MixAcc32, 5, 73, 70, 70, 71), op(opBranch, 63),
		op(opLabel, 62), op(opStore, eitherOther, 50), op(opAccessChain, 52, 74, 12, 50), op(opBranch, 63),
		op(opLabel, 63), op(opReturn), op(opFunctionEnd),
	)
}

// What a settled constant leaves out goes with all that only it needed: a device need not have it.
func TestSettle(t *testing.T) {
	for value, want := range []struct {
		capabilities []Capability
		extensions   []string
		push         int
		variables    []uint32
	}{
		{[]Capability{Shader}, []string{"SPV_X"}, 1, []uint32{eitherOther}},
		{[]Capability{Shader, Float16, GroupNonUniform, GroupNonUniformShuffle, MixedDot},
			[]string{"SPV_X", "SPV_VALVE_mixed_float_dot_product"}, 2, []uint32{eitherShared}},
	} {
		code, err := Settle(either(), map[string]uint32{"HALVES": uint32(value)})
		require.NoError(t, err)
		m, err := Parse(code)
		require.NoError(t, err)
		capabilities := m.Capabilities
		if value == 1 { // addr has 64 bits
			want.capabilities = append(want.capabilities[:1:1], append([]Capability{Int64}, want.capabilities[1:]...)...)
		}
		assert.Equal(t, want.capabilities, capabilities)
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
			case value == 0 && (in.op == opName || in.op == opDecorate):
				assert.NotEqual(t, uint32(eitherShared), in.args[0], "of what is gone: %+v", in)
			}
		}
		assert.Equal(t, want.variables, shared)
		assert.Len(t, functions, 1)
		whole(t, either(), code, "settled")
		assert.Equal(t, code, Prune(code, nil), "nothing is left to decide")
	}
}

// A constant that is not settled decides nothing, and one that is not there is an error.
func TestSettleOthers(t *testing.T) {
	code, err := Settle(choice(), map[string]uint32{"PAGE": 16})
	require.NoError(t, err)
	_, functions, ok := split(code)
	require.True(t, ok)
	assert.Len(t, functions, 3)
	_, err = Settle(choice(), map[string]uint32{"taken": 1})
	assert.ErrorContains(t, err, "taken")
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
