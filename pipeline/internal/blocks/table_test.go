package blocks

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/vk"
)

func newTable(t *testing.T, p *Pool, page int) *Table {
	t.Helper()
	x, err := NewTable(p, page)
	require.NoError(t, err)
	return x
}

func grow(t *testing.T, x *Table, n int) []PageCopy {
	t.Helper()
	copies, err := x.Append(n)
	require.NoError(t, err)
	return copies
}

func TestTable(t *testing.T) {
	p := newPool(t, 10)
	_, err := p.Alloc(3)
	require.NoError(t, err) // so that page ids and entries differ
	x := newTable(t, p, 4)
	grow(t, x, 6)
	require.Equal(t, []int32{3, 4}, x.blocks, "pages")
	for pos, want := range map[int]int64{0: 12, 3: 15, 4: 16, 5: 17} {
		got, err := x.slotOf(pos)
		assert.NoError(t, err, "SlotOf(%d) = %d", pos, got)
		assert.Equal(t, want, got, "SlotOf(%d) = %d", pos, got)
	}
	_, err = x.slotOf(6)
	assert.ErrorIs(t, err, ErrTableTooShort, "SlotOf(6)")
	_, err = x.slotOf(-1)
	assert.ErrorIs(t, err, vk.ErrArgument, "SlotOf(-1)")
	_, err = x.Append(100)
	assert.ErrorIs(t, err, cache.ErrPoolFull, "Append(100)")
	assert.Equal(t, 6, x.Len(), "Append(100)")
	assert.Equal(t, 5, p.Free(), "Append(100)")
	assert.ErrorIs(t, x.Truncate(7), vk.ErrArgument, "Truncate(7)")
	require.NoError(t, x.Truncate(4), "Truncate(4), pages %v", x.blocks)
	assert.Equal(t, 1, len(x.blocks), "Truncate(4), pages %v", x.blocks)
	assert.Equal(t, 6, p.Free(), "Truncate(4), pages %v", x.blocks)
	grow(t, x, 8)
	require.NoError(t, x.Recycle(11), "Recycle(11), pages %v", x.blocks)
	require.Equal(t, []int32{-1, -1}, x.blocks[:2], "Recycle(11), pages %v", x.blocks)
	assert.GreaterOrEqual(t, x.blocks[2], int32(0), "Recycle(11), pages %v", x.blocks)
	_, err = x.slotOf(7)
	assert.ErrorIs(t, err, ErrRecycled, "SlotOf(7) after Recycle")
	require.NoError(t, x.Truncate(0), "Close")
	assert.Equal(t, 7, p.Free(), "Close")
	assert.Equal(t, 0, x.Len(), "Close")
	for _, page := range []int{0, -1, math.MaxInt32 + 1} {
		_, err := NewTable(p, page)
		assert.ErrorIs(t, err, vk.ErrArgument, "NewTable(%d)", page)
	}
	_, err = NewTable(nil, 4)
	assert.ErrorIs(t, err, vk.ErrArgument, "NewTable(nil)")
}

func TestTableForkCopiesOnWrite(t *testing.T) {
	p := newPool(t, 6)
	a := newTable(t, p, 4)
	grow(t, a, 6)
	b, err := a.Fork()
	require.NoError(t, err, "Fork")
	require.Equal(t, 4, p.Free(), "Fork")
	copies := grow(t, b, 1)
	require.Equal(t, []PageCopy{{From: 1, To: 2}}, copies, "first write of the fork copies")
	assert.Nil(t, grow(t, a, 1), "the original holds its page alone, yet copies")
	sa, _ := a.slotOf(6)
	sb, _ := b.slotOf(6)
	assert.NotEqual(t, sb, sa, "both write slot")
	full, err := a.Fork()
	require.NoError(t, err)
	require.NoError(t, full.Truncate(4))
	assert.Nil(t, grow(t, full, 1), "a write to a page of its own copies")
	require.NoError(t, errors.Join(a.Truncate(0), b.Truncate(0), full.Truncate(0)), "close")
	assert.Equal(t, 6, p.Free(), "close")
}

// Room and Need know of pages that a fork holds, also after the table went on and back.
func TestTableRoom(t *testing.T) {
	p := newPool(t, 6)
	a := newTable(t, p, 4)
	check := func(when string, room, need int) {
		t.Helper()
		require.Equal(t, room, a.Room(), "%s: room %d and need %d", when, a.Room(), a.Need(1))
		assert.Equal(t, need, a.Need(1), "%s: room %d and need %d", when, a.Room(), a.Need(1))
	}
	check("empty", 0, 1)
	grow(t, a, 3)
	check("3 of a page of 4", 1, 0)
	b, err := a.Fork()
	require.NoError(t, err)
	check("forked", 0, 1)
	grow(t, a, 1)
	check("full", 0, 1)
	grow(t, a, 1)
	check("a page of its own", 3, 0)
	c, err := a.Fork()
	require.NoError(t, err)
	grow(t, a, 5)
	check("beyond its fork", 2, 0)
	require.NoError(t, a.Truncate(5))
	check("back in that page", 3, 0)
	require.NoError(t, a.Truncate(3))
	check("back in a page that a fork holds", 0, 1)
	require.NoError(t, errors.Join(b.Truncate(0), c.Truncate(0)))
	check("without forks", 1, 0)
}

// Of forks that go on at the same time each but the last gets a page of its own, and the
// page that they shared always has a holder.
func TestTableForksConcurrent(t *testing.T) {
	for range 500 {
		p := newPool(t, 4)
		var tables [3]*Table
		tables[0] = newTable(t, p, 4)
		grow(t, tables[0], 1)
		for i := range tables[1:] {
			f, err := tables[0].Fork()
			require.NoError(t, err)
			tables[i+1] = f
		}
		var copies [len(tables)][]PageCopy
		var start, wg sync.WaitGroup
		start.Add(1)
		for i, x := range tables {
			wg.Go(func() {
				start.Wait()
				copies[i], _ = x.Append(1)
			})
		}
		start.Done()
		wg.Wait()
		n := len(slices.Concat(copies[:]...))
		require.Equal(t, 2, n, "%d copies from a page with %d holders", n, p.Refs(0))
		require.Equal(t, 1, p.Refs(0), "%d copies from a page with %d holders", n, p.Refs(0))
		require.Equal(t, 1, p.Free(), "%d copies from a page with %d holders", n, p.Refs(0))
	}
}

// A table is not cut inside a page that is gone: what follows had no place.
func TestTableTruncateRecycled(t *testing.T) {
	p := newPool(t, 4)
	x := newTable(t, p, 4)
	grow(t, x, 12)
	require.NoError(t, x.Recycle(8))
	assert.ErrorIs(t, x.Truncate(6), ErrRecycled, "Truncate(6)")
	assert.Equal(t, 12, x.Len(), "Truncate(6)")
	assert.Equal(t, 3, p.Free(), "Truncate(6)")
	for _, n := range []int{9, 8, 4} {
		require.NoError(t, x.Truncate(n))
		grow(t, x, 1)
		_, err := x.slotOf(n)
		assert.NoError(t, err, "position %d after Truncate", n)
	}
}

// Tables against a model of what each position holds: forks, rewrites and copies
// must never show one table's values in another.
func TestTableModel(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		page := 1 + rng.IntN(5)
		p := newPool(t, 12)
		memory := make([]int, 12*page)
		type pair struct {
			table *Table
			want  []int
		}
		tables := []*pair{{table: newTable(t, p, page)}}
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
					s, err := x.table.slotOf(len(x.want))
					require.NoError(t, err)
					memory[s] = next
					x.want = append(x.want, next)
				}
			case 2:
				n := rng.IntN(len(x.want) + 1)
				require.NoError(t, x.table.Truncate(n))
				x.want = x.want[:n:n]
			case 3:
				if len(tables) == 4 {
					continue
				}
				fork, err := x.table.Fork()
				require.NoError(t, err)
				tables = append(tables, &pair{fork, slices.Clone(x.want)})
			}
			for i, x := range tables {
				for pos, want := range x.want {
					s, err := x.table.slotOf(pos)
					require.NoError(t, err, "seed %d, step %d: table %d position %d", seed, next, i, pos)
					require.Equal(t, want, memory[s], "seed %d, step %d: table %d position %d", seed, next, i, pos)
				}
			}
		}
		for _, x := range tables {
			require.NoError(t, x.table.Truncate(0))
		}
		require.Equal(t, 12, p.Free(), "seed %d: of 12 pages free at the end", seed)
	}
}

// A pool shrinks to the last page that is held, and no further; pages that were free there
// are not handed out.
func TestPoolShrink(t *testing.T) {
	p := newPool(t, 8)
	x := newTable(t, p, 4)
	grow(t, x, 20)
	require.NoError(t, x.Recycle(8))
	assert.Equal(t, 5, p.Least())
	assert.Equal(t, 0, newPool(t, 3).Least())
	for _, n := range []int{-1, 4, 9} {
		assert.ErrorIs(t, p.Shrink(n), vk.ErrArgument, "%d pages", n)
		assert.Equal(t, 8, p.Capacity(), "%d pages", n)
	}
	err := p.Shrink(6)
	require.NoError(t, err, "%v %v", p.Capacity(), p.Free())
	assert.True(t, p.Capacity() == 6 && p.Free() == 3 && p.Refs(4) == 1 && p.Refs(6) == 0, "%v %v", p.Capacity(), p.Free())
	got, err := p.Alloc(3)
	slices.Sort(got)
	assert.NoError(t, err)
	assert.Equal(t, []int32{0, 1, 5}, got)
	err = p.Grow(7)
	require.NoError(t, err)
	require.Equal(t, 1, p.Free())
	assert.Equal(t, 6, p.Least())
}

// A pool grows by free pages, those that were handed out stay; a table says what it will
// need, and takes up where another left off.
func TestTableGrowResume(t *testing.T) {
	p := newPool(t, 3)
	x := newTable(t, p, 4)
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 4: 1, 9: 3, math.MaxInt: 1 << 61} {
		got := x.Need(n)
		assert.Equal(t, want, got, "%d positions need %d pages", n, got)
	}
	grow(t, x, 10)
	_, err := x.Append(3)
	assert.ErrorIs(t, err, cache.ErrPoolFull)
	for _, n := range []int{2, 1 << 40} {
		assert.ErrorIs(t, p.Grow(n), vk.ErrArgument, "%d pages", n)
	}
	require.NoError(t, p.Grow(6))
	require.Equal(t, 6, p.Capacity())
	assert.Equal(t, 3, p.Free())
	f, err := x.Fork()
	require.NoError(t, err)
	require.Equal(t, 1, f.Need(1))
	assert.Equal(t, 2, f.Need(3))
	grow(t, x, 3)
	assert.Equal(t, []int32{0, 1, 3, 4}, x.blocks)
	require.Equal(t, 4, x.Entries())
	assert.Equal(t, int32(3), x.Entry(2))
	y := newTable(t, p, 4)
	for _, bad := range [][2]int{{-1, 0}, {9, 4}, {9, 3}, {9, -1}, {1 << 50, 1 << 48}, {math.MaxInt, 0}} {
		assert.ErrorIs(t, y.Resume(bad[0], bad[1]), vk.ErrArgument, "%v", bad)
	}
	assert.ErrorIs(t, y.Resume(9, 1), cache.ErrPoolFull)
	assert.Equal(t, 0, y.Len())
	require.NoError(t, y.Resume(9, 2))
	require.Equal(t, 9, y.Len())
	assert.Equal(t, []int32{-1, -1, 5}, y.blocks)
	assert.ErrorIs(t, y.Resume(0, 0), vk.ErrArgument)
}

// slotOf returns the slot of position pos in the pool: blocks[pos/page]*page + pos%page.
// It fails with ErrTableTooShort beyond Len() and with ErrRecycled.
func (t *Table) slotOf(pos int) (int64, error) {
	switch {
	case pos < 0:
		return 0, pkg.Wrong("slot", "pos", pos, "0 or more")
	case pos >= t.length:
		return 0, fmt.Errorf("blocks: slot: position %d of %d: %w", pos, t.length, ErrTableTooShort)
	case t.blocks[pos/t.page] < 0:
		return 0, fmt.Errorf("blocks: slot: position %d: %w", pos, ErrRecycled)
	}
	return int64(t.blocks[pos/t.page])*int64(t.page) + int64(pos%t.page), nil
}
