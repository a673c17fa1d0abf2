package cache

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

func newTable(t *testing.T, p *BlockPool, page int) *Table {
	t.Helper()
	x, err := NewTable(p, page)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func grow(t *testing.T, x *Table, n int) []PageCopy {
	t.Helper()
	copies, err := x.Append(n)
	if err != nil {
		t.Fatal(err)
	}
	return copies
}

func TestTable(t *testing.T) {
	p := newPool(t, 10)
	if _, err := p.Alloc(3); err != nil { // so that page ids and entries differ
		t.Fatal(err)
	}
	x := newTable(t, p, 4)
	grow(t, x, 6)
	if got, want := x.Blocks(), []int32{3, 4}; !slices.Equal(got, want) {
		t.Fatalf("pages %v, want %v", got, want)
	}
	for pos, want := range map[int]int64{0: 12, 3: 15, 4: 16, 5: 17} {
		if got, err := x.SlotOf(pos); err != nil || got != want {
			t.Errorf("SlotOf(%d) = %d, %v, want %d", pos, got, err, want)
		}
	}
	if _, err := x.SlotOf(6); !errors.Is(err, ErrTableTooShort) {
		t.Errorf("SlotOf(6): %v", err)
	}
	if _, err := x.SlotOf(-1); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("SlotOf(-1): %v", err)
	}
	row := []int32{7, 7, 7}
	if err := x.Row(row[:1]); !errors.Is(err, ErrTableTooShort) || row[0] != 7 {
		t.Errorf("Row of one entry: %v, %v", err, row)
	}
	if err := x.Row(row); err != nil || !slices.Equal(row, []int32{3, 4, -1}) {
		t.Errorf("Row: %v, %v", err, row)
	}
	if _, err := x.Append(100); !errors.Is(err, ErrPoolFull) || x.Len() != 6 || p.Free() != 5 {
		t.Errorf("Append(100): %v, length %d, %d free", err, x.Len(), p.Free())
	}
	if err := x.Truncate(7); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("Truncate(7): %v", err)
	}
	if err := x.Truncate(4); err != nil || len(x.Blocks()) != 1 || p.Free() != 6 {
		t.Errorf("Truncate(4): %v, pages %v", err, x.Blocks())
	}
	grow(t, x, 8)
	if err := x.Recycle(11); err != nil || !slices.Equal(x.Blocks()[:2], []int32{-1, -1}) || x.Blocks()[2] < 0 {
		t.Errorf("Recycle(11): %v, pages %v", err, x.Blocks())
	}
	if _, err := x.SlotOf(7); !errors.Is(err, ErrRecycled) {
		t.Errorf("SlotOf(7) after Recycle: %v", err)
	}
	if err := x.Close(); err != nil || p.Free() != 7 || x.Len() != 0 {
		t.Errorf("Close: %v, %d free", err, p.Free())
	}
	for _, page := range []int{0, -1, maxPage + 1} {
		if _, err := NewTable(p, page); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("NewTable(%d): %v", page, err)
		}
	}
	if _, err := NewTable(nil, 4); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("NewTable(nil): %v", err)
	}
}

func TestTableForkCopiesOnWrite(t *testing.T) {
	p := newPool(t, 6)
	a := newTable(t, p, 4)
	grow(t, a, 6)
	b, err := a.Fork()
	if err != nil || p.Free() != 4 {
		t.Fatalf("Fork: %v, %d free", err, p.Free())
	}
	copies := grow(t, b, 1)
	if want := []PageCopy{{From: 1, To: 2}}; !slices.Equal(copies, want) {
		t.Fatalf("first write of the fork copies %v, want %v", copies, want)
	}
	if copies := grow(t, a, 1); copies != nil {
		t.Errorf("the original holds its page alone, yet copies %v", copies)
	}
	sa, _ := a.SlotOf(6)
	sb, _ := b.SlotOf(6)
	if sa == sb {
		t.Errorf("both write slot %d", sa)
	}
	full, err := a.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Truncate(4); err != nil {
		t.Fatal(err)
	}
	if copies := grow(t, full, 1); copies != nil {
		t.Errorf("a write to a page of its own copies %v", copies)
	}
	if err := errors.Join(a.Close(), b.Close(), full.Close()); err != nil || p.Free() != 6 {
		t.Errorf("close: %v, %d free", err, p.Free())
	}
}

// Room and Need know of pages that a fork holds, also after the table went on and back.
func TestTableRoom(t *testing.T) {
	p := newPool(t, 6)
	a := newTable(t, p, 4)
	check := func(when string, room, need int) {
		t.Helper()
		if a.Room() != room || a.Need(1) != need {
			t.Errorf("%s: room %d and need %d, want %d and %d", when, a.Room(), a.Need(1), room, need)
		}
	}
	check("empty", 0, 1)
	grow(t, a, 3)
	check("3 of a page of 4", 1, 0)
	b, err := a.Fork()
	if err != nil {
		t.Fatal(err)
	}
	check("forked", 0, 1)
	grow(t, a, 1)
	check("full", 0, 1)
	grow(t, a, 1)
	check("a page of its own", 3, 0)
	c, err := a.Fork()
	if err != nil {
		t.Fatal(err)
	}
	grow(t, a, 5)
	check("beyond its fork", 2, 0)
	if err := a.Truncate(5); err != nil {
		t.Fatal(err)
	}
	check("back in that page", 3, 0)
	if err := a.Truncate(3); err != nil {
		t.Fatal(err)
	}
	check("back in a page that a fork holds", 0, 1)
	if err := errors.Join(b.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
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
		if n := len(slices.Concat(copies[:]...)); n != 2 || p.Refs(0) != 1 || p.Free() != 1 {
			t.Fatalf("%d copies from a page with %d holders, %d pages free", n, p.Refs(0), p.Free())
		}
	}
}

// A table is not cut inside a page that is gone: what follows had no place.
func TestTableTruncateRecycled(t *testing.T) {
	p := newPool(t, 4)
	x := newTable(t, p, 4)
	grow(t, x, 12)
	if err := x.Recycle(8); err != nil {
		t.Fatal(err)
	}
	if err := x.Truncate(6); !errors.Is(err, ErrRecycled) || x.Len() != 12 || p.Free() != 3 {
		t.Errorf("Truncate(6): %v, length %d, %d free", err, x.Len(), p.Free())
	}
	for _, n := range []int{9, 8, 4} {
		if err := x.Truncate(n); err != nil {
			t.Fatal(err)
		}
		grow(t, x, 1)
		if _, err := x.SlotOf(n); err != nil {
			t.Errorf("position %d after Truncate: %v", n, err)
		}
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
				if errors.Is(err, ErrPoolFull) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				for _, c := range copies {
					copy(memory[int(c.To)*page:][:page], memory[int(c.From)*page:][:page])
				}
				for range n {
					s, err := x.table.SlotOf(len(x.want))
					if err != nil {
						t.Fatal(err)
					}
					memory[s] = next
					x.want = append(x.want, next)
				}
			case 2:
				n := rng.IntN(len(x.want) + 1)
				if err := x.table.Truncate(n); err != nil {
					t.Fatal(err)
				}
				x.want = x.want[:n:n]
			case 3:
				if len(tables) == 4 {
					continue
				}
				fork, err := x.table.Fork()
				if err != nil {
					t.Fatal(err)
				}
				tables = append(tables, &pair{fork, slices.Clone(x.want)})
			}
			for i, x := range tables {
				for pos, want := range x.want {
					if s, err := x.table.SlotOf(pos); err != nil || memory[s] != want {
						t.Fatalf("seed %d, step %d: table %d position %d: %d, %v, want %d", seed, next, i, pos, memory[s], err, want)
					}
				}
			}
		}
		for _, x := range tables {
			if err := x.table.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if p.Free() != 12 {
			t.Fatalf("seed %d: %d of 12 pages free at the end", seed, p.Free())
		}
	}
}

// A pool shrinks to the last page that is held, and no further; pages that were free there
// are not handed out.
func TestPoolShrink(t *testing.T) {
	p := newPool(t, 8)
	x := newTable(t, p, 4)
	grow(t, x, 20)
	if err := x.Recycle(8); err != nil {
		t.Fatal(err)
	}
	if p.Least() != 5 || newPool(t, 3).Least() != 0 {
		t.Error(p.Least())
	}
	for _, n := range []int{-1, 4, 9} {
		if err := p.Shrink(n); !errors.Is(err, vk.ErrArgument) || p.Capacity() != 8 {
			t.Errorf("%d pages: %v", n, err)
		}
	}
	if err := p.Shrink(6); err != nil || p.Capacity() != 6 || p.Free() != 3 || p.Refs(4) != 1 || p.Refs(6) != 0 {
		t.Error(err, p.Capacity(), p.Free())
	}
	got, err := p.Alloc(3)
	if slices.Sort(got); err != nil || !slices.Equal(got, []int32{0, 1, 5}) {
		t.Error(got, err)
	}
	if err := p.Grow(7); err != nil || p.Free() != 1 || p.Least() != 6 {
		t.Error(err, p.Free(), p.Least())
	}
}

// A pool grows by free pages, those that were handed out stay; a table says what it will
// need, and takes up where another left off.
func TestTableGrowResume(t *testing.T) {
	p := newPool(t, 3)
	x := newTable(t, p, 4)
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 4: 1, 9: 3, math.MaxInt: 1 << 61} {
		if got := x.Need(n); got != want {
			t.Errorf("%d positions need %d pages, want %d", n, got, want)
		}
	}
	grow(t, x, 10)
	if _, err := x.Append(3); !errors.Is(err, ErrPoolFull) {
		t.Error(err)
	}
	for _, n := range []int{2, 1 << 40} {
		if err := p.Grow(n); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%d pages: %v", n, err)
		}
	}
	if p.Grow(6) != nil || p.Capacity() != 6 || p.Free() != 3 {
		t.Error(p.Capacity(), p.Free())
	}
	f, err := x.Fork()
	if err != nil || f.Need(1) != 1 || f.Need(3) != 2 {
		t.Error(err, f.Need(1), f.Need(3))
	}
	grow(t, x, 3)
	if got, want := x.Blocks(), []int32{0, 1, 3, 4}; !slices.Equal(got, want) || x.Entries() != 4 || x.Entry(2) != 3 {
		t.Errorf("pages %v, want %v", got, want)
	}
	y := newTable(t, p, 4)
	for _, bad := range [][2]int{{-1, 0}, {9, 4}, {9, 3}, {9, -1}, {1 << 50, 1 << 48}, {math.MaxInt, 0}} {
		if err := y.Resume(bad[0], bad[1]); !errors.Is(err, vk.ErrArgument) {
			t.Error(bad, err)
		}
	}
	if err := y.Resume(9, 1); !errors.Is(err, ErrPoolFull) || y.Len() != 0 {
		t.Error(err)
	}
	if err := y.Resume(9, 2); err != nil || y.Len() != 9 || !slices.Equal(y.Blocks(), []int32{-1, -1, 5}) {
		t.Error(err, y.Blocks())
	}
	if err := y.Resume(0, 0); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
}
