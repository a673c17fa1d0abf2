package gpu

import (
	"math/bits"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// matrices divides the work of a workgroup of product_cm and up_cm, 128 rows of weights and some
// tokens, among products of cooperative matrices.
type matrices struct {
	m, n, k  int // of one product
	subgroup int // invocations
	teams    int // subgroups that share out the rows; the others share out the tokens

	least, most int // tokens of a workgroup
}

// fitMatrices returns a division that a device can take; nil: it has no matrices.
func fitMatrices(caps *vk.Caps) *matrices {
	if caps.Missing([]string{"shaderFloat16", "vulkanMemoryModel", "subgroupSizeControl"}) != nil {
		return nil
	}
	d, err := opkit.FitMatrix(caps, "f16", func(s vk.CoopMatShape) (matrices, bool) {
		d := matrices{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize)}
		for _, n := range []int{d.m, d.n, d.k, d.subgroup} {
			if n < 8 || n > 64 || bits.OnesCount(uint(n)) != 1 {
				return d, false
			}
		}
		d.teams = min(matrixRows/d.subgroup, matrixRows/2/d.m)
		d.least = max(16, matrixRows/d.subgroup/d.teams*d.n)
		for d.most = max(32, d.least); d.most > d.least && d.shared() > int(caps.SharedMemory); {
			d.most /= 2
		}
		return d, d.shared() <= int(caps.SharedMemory)
	})
	if err != nil {
		return nil
	}
	return &d
}

// shared returns the bytes of shared memory that a workgroup takes, at most.
func (d *matrices) shared() int {
	const grid = 2048
	out := matrixRows / d.subgroup * d.n * (matrixRows/d.teams/4 + 1)
	return 16*max(out, (matrixRows+d.most)*9) + 4*d.most + grid
}

// tokensOf returns the tokens of a workgroup, where n on average want the same weights.
func (d *matrices) tokensOf(n int) int {
	tokens := d.least
	for tokens < d.most && 4*tokens < 5*n {
		tokens *= 2
	}
	return tokens
}

func (d *matrices) constants(m *matrix, halves uint32, tokens int) []uint32 {
	return opkit.Constants(int(m.format), int(halves), d.subgroup, tokens, d.teams, int(flag(m.k%128 == 0)), d.m, d.n, d.k)
}

// multiplies tells whether matrices take weights: chunks of 16 columns or more, in whole pieces.
func (d *matrices) multiplies(list ...*matrix) bool {
	for _, m := range list {
		if d == nil || columns[m.format] < 16 || m.n%8 != 0 {
			return false
		}
	}
	return true
}
