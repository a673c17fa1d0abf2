package blocks

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
)

func grow(t *testing.T, x *Table, n int) []PageCopy {
	t.Helper()
	copies, err := x.Append(n)
	require.NoError(t, err)
	return copies
}

func TestTable(t *testing.T) {
	p := NewPool(10)
	_, err := p.take(nil, 3) // so that page ids and entries differ
	require.NoError(t, err)
	x := NewTable(p, 4)
	grow(t, x, 6)
	require.Equal(t, []int32{3, 4}, x.blocks, "pages")
	for pos, want := range map[int]int64{0: 12, 3: 15, 4: 16, 5: 17} {
		assert.EqualValues(t, want, x.slotOf(t, pos), "position %d", pos)
	}
	_, err = x.Append(100)
	assert.ErrorIs(t, err, cache.ErrPoolFull, "Append(100)")
	assert.Equal(t, 6, x.Len(), "Append(100)")
	assert.Equal(t, 5, p.Free(), "Append(100)")
	x.Truncate(4)
	assert.Equal(t, 1, len(x.blocks), "Truncate(4), pages %v", x.blocks)
	assert.Equal(t, 6, p.Free(), "Truncate(4), pages %v", x.blocks)
	grow(t, x, 8)
	x.Recycle(11)
	require.Equal(t, []int32{-1, -1}, x.blocks[:2], "Recycle(11), pages %v", x.blocks)
	assert.GreaterOrEqual(t, x.blocks[2], int32(0), "Recycle(11), pages %v", x.blocks)
	x.Truncate(0)
	assert.Equal(t, 7, p.Free(), "closed")
	assert.Equal(t, 0, x.Len(), "closed")
}

func TestTableForkCopiesOnWrite(t *testing.T) {
	p := NewPool(6)
	a := NewTable(p, 4)
	grow(t, a, 6)
	b := a.Fork()
	require.Equal(t, 4, p.Free(), "Fork")
	copies := grow(t, b, 1)
	require.Equal(t, []PageCopy{{From: 1, To: 2}}, copies, "first write of the fork copies")
	assert.Nil(t, grow(t, a, 1), "the original holds its page alone, yet copies")
	assert.NotEqual(t, a.slotOf(t, 6), b.slotOf(t, 6), "both write slot")
	full := a.Fork()
	full.Truncate(4)
	assert.Nil(t, grow(t, full, 1), "a write to a page of its own copies")
	for _, x := range []*Table{a, b, full} {
		x.Truncate(0)
	}
	assert.Equal(t, 6, p.Free(), "close")
}

// Room and Need know of pages that a fork holds, also after the table went on and back.
func TestTableRoom(t *testing.T) {
	p := NewPool(6)
	a := NewTable(p, 4)
	check := func(when string, room, need int) {
		t.Helper()
		require.Equal(t, room, a.Room(), "%s: room %d and need %d", when, a.Room(), a.Need(1))
		assert.Equal(t, need, a.Need(1), "%s: room %d and need %d", when, a.Room(), a.Need(1))
	}
	check("empty", 0, 1)
	grow(t, a, 3)
	check("3 of a page of 4", 1, 0)
	b := a.Fork()
	check("forked", 0, 1)
	grow(t, a, 1)
	check("full", 0, 1)
	grow(t, a, 1)
	check("a page of its own", 3, 0)
	c := a.Fork()
	grow(t, a, 5)
	check("beyond its fork", 2, 0)
	a.Truncate(5)
	check("back in that page", 3, 0)
	a.Truncate(3)
	check("back in a page that a fork holds", 0, 1)
	b.Truncate(0)
	c.Truncate(0)
	check("without forks", 1, 0)
}

// Tables against a model of what each position holds: forks, rewrites and copies
// must never show one table's values in another.
func TestTableModel(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		page := 1 + rng.IntN(5)
		p := NewPool(12)
		memory := make([]int, 12*page)
		type pair struct {
			table *Table
			want  []int
		}
		tables := []*pair{{table: NewTable(p, page)}}
		for next := range 300 {
			x := tables[rng.IntN(len(tables))]
			switch rng.IntN(4) {
			case 0, 1:
				n := rng.IntN(2 * page)
				copies, err := x.table.Append(n)
				if errors.Is(err, cache.ErrPoolFull) {
					continue
				}
				require.NoError(t, err)
				for _, c := range copies {
					copy(memory[int(c.To)*page:][:page], memory[int(c.From)*page:][:page])
				}
				for range n {
					memory[x.table.slotOf(t, len(x.want))] = next
					x.want = append(x.want, next)
				}
			case 2:
				n := rng.IntN(len(x.want) + 1)
				x.table.Truncate(n)
				x.want = x.want[:n:n]
			case 3:
				if len(tables) == 4 {
					continue
				}
				tables = append(tables, &pair{x.table.Fork(), slices.Clone(x.want)})
			}
			for i, x := range tables {
				for pos, want := range x.want {
					require.Equal(t, want, memory[x.table.slotOf(t, pos)], "seed %d, step %d: table %d position %d", seed, next, i, pos)
				}
			}
		}
		for _, x := range tables {
			x.table.Truncate(0)
		}
		require.Equal(t, 12, p.Free(), "seed %d: of 12 pages free at the end", seed)
	}
}

// A pool grows by free pages, those that were handed out stay; a table says what it will
// need, and takes up where another left off.
func TestTableGrowResume(t *testing.T) {
	p := NewPool(3)
	x := NewTable(p, 4)
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 4: 1, 9: 3, math.MaxInt: 1 << 61} {
		got := x.Need(n)
		assert.Equal(t, want, got, "%d positions need %d pages", n, got)
	}
	grow(t, x, 10)
	_, err := x.Append(3)
	assert.ErrorIs(t, err, cache.ErrPoolFull)
	p.Grow(6)
	require.Equal(t, 6, p.Capacity())
	assert.Equal(t, 3, p.Free())
	f := x.Fork()
	require.Equal(t, 1, f.Need(1))
	assert.Equal(t, 2, f.Need(3))
	grow(t, x, 3)
	assert.Equal(t, []int32{0, 1, 3, 4}, x.blocks)
	require.Equal(t, 4, x.Entries())
	assert.Equal(t, int32(3), x.Entry(2))
	y := NewTable(p, 4)
	assert.ErrorIs(t, y.Resume(9, 1), cache.ErrPoolFull)
	assert.Equal(t, 0, y.Len())
	require.NoError(t, y.Resume(9, 2))
	require.Equal(t, 9, y.Len())
	assert.Equal(t, []int32{-1, -1, 5}, y.blocks)
}

// slotOf returns the slot of a position that the table has: blocks[pos/page]*page + pos%page.
func (t *Table) slotOf(tb testing.TB, pos int) int {
	require.Less(tb, pos, t.length)
	require.GreaterOrEqual(tb, t.blocks[pos/t.page], int32(0), "recycled")
	return int(t.blocks[pos/t.page])*t.page + pos%t.page
}
