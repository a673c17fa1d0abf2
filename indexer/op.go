package indexer

import "github.com/vkmla/vkmla/internal/opkit"

// Blocks is the number of MXFP4 scales of a query head or a key, one for 32 numbers.
const Blocks = 4

// MaxHeads is the largest number of indexer heads.
const MaxHeads = 128

// MaxBlock is the most consecutive entries of a candidate block. Any power of two up to it
// will do; DeepSeek-V4.1-Flash has 8.
const MaxBlock = 64

// checkBlock demands a number of entries that a candidate block may have.
func checkBlock(op, arg string, n int) error {
	if n < 1 || n > MaxBlock || n&(n-1) != 0 {
		return pkg.Wrong(op, arg, n, "a power of two, 1 to %d", MaxBlock)
	}
	return nil
}

// blockUnit returns the number that the columns of scores must be a multiple of, for blocks of n
// entries. Kernels load scores by fours.
func blockUnit(n int) int { return max(n, 4) }

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("indexer")

// built names the build that an operation was made of.
type built = opkit.Built
