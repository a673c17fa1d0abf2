package attention_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// asked is a request of a step.
type asked struct{ table, n, length int }

func planOf(c attention.RowConfig, tokens int, list []asked) *attention.RowPlan {
	var p attention.RowPlan
	p.Begin(c)
	for _, x := range list {
		p.Add(x.table, x.n, x.length)
	}
	p.End(tokens)
	return &p
}

// Of random steps in random room: every token is in one piece, the rows of a piece fit, runs ascend
// without gaps, and each token finds its window and its entries in runs of its own request.
func TestRowPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for range 400 {
		c := attention.RowConfig{Window: 1 + rng.IntN(20)}
		if rng.IntN(4) > 0 {
			c.Ratio, c.Picks = 1+rng.IntN(5), rng.IntN(2) == 0
			c.Width = 400/c.Ratio + 1
			if c.Picks {
				c.Width = 1 + rng.IntN(30)
			}
		}
		var list []asked
		tokens := 0
		for i := range 1 + rng.IntN(6) {
			n := 1 + rng.IntN(50)
			list = append(list, asked{i * 2, n, n + rng.IntN(300)})
			tokens += n
		}
		room := c.LeastRows() + rng.IntN(500)
		c = c.Divide(uint64(room)*1024, tokens, len(list), 350)
		require.LessOrEqual(t, c.Rows(), room)
		p := planOf(c, tokens+3, list)
		require.Len(t, p.Places, tokens+3)
		require.LessOrEqual(t, len(p.Runs), attention.RunsOf(tokens))
		require.LessOrEqual(t, p.Pieces(), tokens)
		gathered := 0
		for _, h := range p.Heads {
			for set, room := range [][2]int{{0, c.Entries}, {c.Entries, c.Rows()}} {
				at := int32(room[0])
				for _, run := range p.Runs[h[2*set] : h[2*set]+h[2*set+1]+1] {
					assert.GreaterOrEqual(t, run[0], at)
					at = run[0]
				}
				assert.Equal(t, int32(room[0]), p.Runs[h[2*set]][0], "the first run of a set begins with its room")
				assert.LessOrEqual(t, int(at), room[1])
				gathered += int(at) - room[0]
			}
		}
		assert.Equal(t, gathered, p.Gathered)
		checkPlaces(t, c, p, list)
	}
}

// find returns the run of a set of a piece that has a row.
func find(p *attention.RowPlan, piece int32, set int, row int32) (run [4]int32, ok bool) {
	h := p.Heads[piece]
	list := p.Runs[h[2*set] : h[2*set]+h[2*set+1]+1]
	for i := range list[:len(list)-1] {
		if list[i][0] <= row && row < list[i+1][0] {
			return list[i], true
		}
	}
	return run, false
}

func checkPlaces(t *testing.T, c attention.RowConfig, p *attention.RowPlan, list []asked) {
	token := 0
	for _, x := range list {
		for pos := x.length - x.n; pos < x.length; pos++ {
			place := p.Places[token]
			for _, q := range []int{max(0, pos-c.Window+1), pos} { // the ends of the window
				run, ok := find(p, place[0], 1, place[2]+int32(q))
				require.True(t, ok, "token %d: no run has position %d", token, q)
				require.Equal(t, []int32{int32(x.table), int32(q), 0}, []int32{run[1], run[2] + place[2] + int32(q) - run[0], run[3]})
			}
			n := 0
			if c.Ratio > 0 {
				n = (pos + 1) / c.Ratio
			}
			if place[3] == 2 {
				n = min(n, c.Width)
			}
			if n > 0 {
				for _, e := range []int{0, n - 1} {
					run, ok := find(p, place[0], 0, place[1]+int32(e))
					require.True(t, ok, "token %d: no run has entry %d", token, e)
					want := []int32{int32(x.table), int32(e), 0}
					if place[3] == 2 {
						want = []int32{int32(token), int32(e), 1}
					}
					require.Equal(t, want, []int32{run[1], run[2] + place[1] + int32(e) - run[0], run[3]})
				}
			}
			token++
		}
	}
	for _, place := range p.Places[token:] {
		require.Equal(t, [4]int32{}, place, "padding")
	}
}

// What is gathered, and in how many pieces, for steps whose answer is known.
func TestRowPlanPieces(t *testing.T) {
	const mib = 1 << 20
	c4a := attention.RowConfig{Window: 128, Ratio: 4, Width: 512, Picks: true}
	for _, x := range []struct {
		name             string
		bytes            uint64
		list             []asked
		pieces, gathered int
	}{
		{"one chunk of a long prompt", 256 * mib, []asked{{0, 4096, 32768}}, 1, 8192 + 4096 + 127},
		{"a million tokens", 256 * mib, []asked{{0, 4096, 1000000}}, 1, 250000 + 4096 + 127},
		{"one token takes its picks", 256 * mib, []asked{{0, 1, 32768}}, 1, 512 + 128},
		{"a chunk beside decode steps", 256 * mib, []asked{{0, 4000, 4000}, {1, 1, 32768}, {2, 1, 100}}, 1,
			1000 + 4000 + 512 + 128 + 25 + 100},
		{"two long prompts", 256 * mib, []asked{{0, 2048, 800000}, {1, 2048, 800000}}, 2, 2 * (200000 + 2048 + 127)},
		{"windows alone are too many", 4 * mib, []asked{{0, 4096, 4096}}, 5, 0},
		{"entries alone are too many", 4 * mib, []asked{{0, 64, 1000000}}, 10, 64*512 + 64 + 10*127},
	} {
		tokens := 0
		for _, r := range x.list {
			tokens += r.n
		}
		p := planOf(c4a.Divide(x.bytes, tokens, len(x.list), 1<<20), tokens, x.list)
		assert.Equal(t, x.pieces, p.Pieces(), "%s: pieces", x.name)
		if x.gathered > 0 {
			assert.Equal(t, x.gathered, p.Gathered, "%s: rows", x.name)
		}
	}
}
