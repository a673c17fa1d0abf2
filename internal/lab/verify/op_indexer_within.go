package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// The selection among the entries of candidate blocks: indexer_select of what these are.
func init() {
	for name, format := range map[string]cache.IndexKeyFormat{
		"indexer_within_fp8": cache.IndexKeyFP8, "indexer_within_mxfp4": cache.IndexKeyMXFP4,
	} {
		Register(selectOp(name, format, randomWithin, withinSizes))
	}
}

// randomWithin makes cases with fewer candidates than entries, and contexts that they hold all of.
func randomWithin(seed uint64, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, s := range []struct {
		logitsShape
		k, rows int
	}{
		{logitsShape{tokens: 1, heads: 32, requests: 1, lens: 3, page: 64, blocks: 1}, 1, 0},
		{logitsShape{tokens: 3, heads: 32, requests: 3, lens: 900, page: 64, blocks: 6}, 32, 0},
		{logitsShape{tokens: 5, heads: 8, requests: 2, lens: 333, page: 16, blocks: 3, group: 4}, 61, 0},
		{logitsShape{tokens: 69, heads: 8, requests: 4, lens: 400, page: 64, blocks: 17, group: 8}, 17, 64},
		{logitsShape{tokens: 2, heads: 32, requests: 2, lens: 8001, page: 64, blocks: 700}, 512, 0},
		{logitsShape{tokens: 2, heads: 1, requests: 1, lens: 700, page: 64, blocks: 2048}, 512, 0},
		{logitsShape{tokens: 3, heads: 32, requests: 3, lens: 300, page: 64, blocks: 61, block: 1}, 17, 0},
		{logitsShape{tokens: 17, heads: 8, requests: 3, lens: 321, page: 3, blocks: 33, block: 2}, 61, 0},
		{logitsShape{tokens: 5, heads: 64, requests: 2, lens: 333, page: 16, blocks: 17, block: 4}, 32, 0},
		{logitsShape{tokens: 3, heads: 8, requests: 1, lens: 700, page: 64, blocks: 6, block: 16}, 61, 0},
		{logitsShape{tokens: 69, heads: 8, requests: 4, lens: 500, page: 64, blocks: 3, block: 32, group: 8}, 17, 64},
		{logitsShape{tokens: 2, heads: 32, requests: 2, lens: 901, page: 16, blocks: 5, block: 64}, 61, 0},
	} {
		c := randomLogitsCase(rand.New(rand.NewPCG(seed, uint64(i))), s.logitsShape, format)
		c.Name = fmt.Sprintf("t%d_h%d_n%d_page%d_blocks%d_k%d", s.tokens, s.heads, s.lens, s.page, s.blocks, s.k)
		c.Params["k"], c.Params["rows"] = s.k, s.rows
		cases = append(cases, c)
	}
	return cases
}

// candidateBlocks counts the blocks in which a token of DeepSeek-V4.1 looks for its picks.
const candidateBlocks = 2048

// withinSizes returns the sizes of the scores with an entry for each token, and 2048 candidate
// blocks.
func withinSizes(o SizeOptions, format cache.IndexKeyFormat) (all []Size) {
	for _, s := range scorings(o, format) {
		name := s.name()
		s.entries *= 4
		k, blocks := 512, min(candidateBlocks, (s.entries+candidateBlock-1)/candidateBlock)
		x, columns := s, blocks*candidateBlock
		x.entries = columns
		size := x.size(s.tokens*(4*k+4*blocks), 0)
		size.Name = fmt.Sprintf("%s/k=%d", name, k)
		size.Make = func(rng *rand.Rand) Case { return s.withinBlocks(rng, blocks, k) }
		all = append(all, size)
	}
	return all
}

// withinBlocks returns a scoring case with random candidate blocks, the newest among them.
func (s scoring) withinBlocks(rng *rand.Rand, width, k int) Case {
	c := s.random(rng)
	t, b := s.tokens, (s.entries+candidateBlock-1)/candidateBlock
	blocks, columns := make([]int32, t*width), make([]int32, t)
	for i := range t {
		row := blocks[i*width:][:width]
		for j := range width - 1 { // one of every share of the blocks
			low, high := j*(b-1)/(width-1), (j+1)*(b-1)/(width-1)
			row[j] = int32(low + rng.IntN(high-low))
		}
		row[width-1] = int32(b - 1)
		columns[i] = int32(width*candidateBlock - (b*candidateBlock - s.entries))
	}
	c.In["blocks"], c.In["context_lens"] = vectors.FromI32(blocks, t, width), vectors.FromI32(columns, t)
	c.Params["k"], c.Params["columns"], c.Params["group"] = k, width*candidateBlock, 1
	return c
}
