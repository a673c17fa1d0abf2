package indexer_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// golden is an excerpt of what DeepSeek-V4.1's official indexers chose, for some tokens: scores,
// picks and candidate blocks of layers of ratio 2 (1, 3) and 1 (4), and of layers that look for
// their picks in the candidates of layer 4 (6, 8).
type golden struct {
	*vectors.Archive
	t         *testing.T
	positions []int32
}

// openGolden opens an excerpt, or a whole recording, which has all positions and does not say so.
func openGolden(t *testing.T, path string) golden {
	a, err := vectors.OpenArchive(path)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	g := golden{Archive: a, t: t}
	if slices.Contains(a.Names(), "positions") {
		g.positions = g.array("positions").I32()
		return g
	}
	for i := range g.array("L1.picks").Dim(0) {
		g.positions = append(g.positions, int32(i))
	}
	return g
}

func (g golden) array(name string) vectors.Array {
	x, err := g.Array(name)
	require.NoError(g.t, err)
	return x
}

// lens returns the number of entries of `ratio` tokens that each token sees.
func (g golden) lens(ratio int) []int32 {
	lens := make([]int32, len(g.positions))
	indexer.VisibleRef(g.positions, nil, ratio, 0, lens)
	return lens
}

// scores are those of a layer, with columns that hold what would be chosen up to a multiple of 8.
func (g golden) scores(layer string) (x []float32, n int) {
	a := g.array(layer + ".logits")
	n = (a.Dim(1) + 7) / 8 * 8
	for t := range a.Dim(0) {
		x = append(x, a.F32()[t*a.Dim(1):][:a.Dim(1)]...)
		for len(x) < (t+1)*n {
			x = append(x, 1e30)
		}
	}
	return x, n
}

// goldenBlocks is the number of candidate blocks of the recorded model.
const goldenBlocks = 6

// blocks are the candidate blocks of layer 4, which are the recorded ones.
func (g golden) blocks() (blocks, columns []int32) {
	recorded := g.array("L4.blocks")
	t, of := recorded.Dim(0), recorded.Dim(1)
	x, n := g.scores("L4")
	blocks, columns = indexer.CandidatesRef(x, n, g.lens(1), goldenBlocks, testBlock)
	for i := range t {
		got := make([]byte, of)
		for _, b := range blocks[i*goldenBlocks:][:goldenBlocks] {
			if b >= 0 {
				got[b] = 1
			}
		}
		assert.Equal(g.t, recorded.Data[i*of:][:of], got, "candidates of position %d", g.positions[i])
	}
	return blocks, columns
}

// same holds that picks of a layer are the recorded ones. Of a tie the older entry is right, of
// which torch took another one in `ties` rows.
func (g golden) same(layer string, got []int32, ties int) {
	want, ok := g.array(layer + ".picks").Integers(vectors.I32)
	require.True(g.t, ok)
	scores := g.array(layer + ".logits")
	k, columns, other := want.Dim(1), scores.Dim(1), 0
	for i, position := range g.positions {
		a, b := want.I32()[i*k:][:k], got[i*k:][:k]
		if slices.Equal(a, b) {
			continue
		}
		other++
		of := func(picks []int32) (x []float32) {
			for _, c := range picks {
				if assert.Less(g.t, c, int32(columns), "pick of %s at %d", layer, position); c >= 0 {
					x = append(x, scores.F32()[i*columns+int(c)])
				}
			}
			return slices.Sorted(slices.Values(x))
		}
		assert.Equal(g.t, of(a), of(b), "scores of the picks of %s at %d: %d, want %d", layer, position, b, a)
	}
	assert.LessOrEqual(g.t, other, ties, "rows of %s with other picks", layer)
}

// TestGolden41 selects from recorded scores: of the excerpt, and of whole recordings where
// VKMLA_TEST_GOLDEN names them.
func TestGolden41(t *testing.T) {
	openGolden(t, filepath.Join("testdata", "golden41.npz")).selects(nil)
	dir := testkit.FurtherGolden(t)
	if dir == "" || testing.Short() {
		return
	}
	dir = filepath.Join(filepath.Dir(dir), "golden41")
	openGolden(t, filepath.Join(dir, "v41.npz")).selects(nil)
	openGolden(t, filepath.Join(dir, "v4.npz")).selects(map[string]int{"L3": 1})
}

// selects holds what the references select, to which package verify holds the device; ties are rows
// of layers that may have other picks.
func (g golden) selects(ties map[string]int) {
	for layer, ratio := range map[string]int{"L1": 2, "L3": 2, "L4": 1} {
		x, n := g.scores(layer)
		g.same(layer, indexer.TopKRef(x, n, g.lens(ratio), g.array(layer+".picks").Dim(1)), ties[layer])
	}
	const width, of = goldenBlocks, goldenBlocks * testBlock
	blocks, columns := g.blocks()
	for _, layer := range []string{"L6", "L8"} {
		k := g.array(layer + ".picks").Dim(1)
		all, n := g.scores(layer)
		x := make([]float32, len(columns)*of) // what the scores among candidates give
		for i, c := range columns {
			for j := range int(c) {
				x[i*of+j] = all[i*n+int(blocks[i*width+j/testBlock])*testBlock+j%testBlock]
			}
		}
		picks := indexer.TopKRef(x, of, columns, k)
		g.same(layer, indexer.CandidateEntriesRef(picks, k, blocks, width, testBlock), ties[layer])
	}
}
