package spirv

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
