package opkit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/opkit"
)

// Every number of parts that ChainJoin's groups join by the turns of its own form is added in the
// same order.
func TestChainJoin(t *testing.T) {
	// order lists, for each group that has any, the turns of parts that it takes.
	order := func(parts, ahead, groups int) [][][]int {
		all := make([][][]int, 0, groups)
		for g := range groups {
			var turns [][]int
			for base := g * ahead; base < parts; base += groups * ahead {
				var turn []int
				for i := base; i < min(base+ahead, parts); i++ {
					turn = append(turn, i)
				}
				turns = append(turns, turn)
			}
			if turns != nil {
				all = append(all, turns)
			}
		}
		return all
	}
	chain := opkit.ChainJoin
	for parts := 1; parts <= chain.Parts; parts++ {
		j := opkit.JoinOf(parts)
		assert.LessOrEqual(t, j.Ahead, chain.Ahead, parts)
		assert.Equal(t, order(parts, j.Ahead, j.Groups), order(parts, j.Ahead, chain.Groups), parts)
	}
	assert.Greater(t, opkit.JoinOf(chain.Parts+1).Parts, chain.Parts)
}
