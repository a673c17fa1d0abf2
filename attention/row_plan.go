package attention

import (
	"cmp"
	"math"
	"sort"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// defaultWorkspace is the most memory for gathered rows at a time, in bytes.
const defaultWorkspace = 256 << 20

// RowConfig describes the rows that tokens of a layer attend, and the room for them.
type RowConfig struct {
	Window int  // rows of the sliding window, at least 1
	Ratio  int  // tokens of an entry; 0: there are none
	Width  int  // most entries of a token; 0 without entries
	Picks  bool // tokens attend entries that an indexer picked, not all

	Entries int // rows of the workspace for entries: from 0 on
	Windows int // and for windows: after those
}

// Rows is the number of rows of the workspace, of 1024 bytes each.
func (c RowConfig) Rows() int { return c.Entries + c.Windows }

// Divide gives windows and entries room in a workspace of at most `bytes` bytes: as much as they
// can use in steps of up to `tokens` tokens of up to `requests` requests of up to maxLen tokens.
// One token's rows always have room.
func (c RowConfig) Divide(bytes uint64, tokens, requests, maxLen int) RowConfig {
	most := int(min(bytes/(cache.D*2), 1<<30))
	requests = min(requests, tokens)
	windows := min(tokens+requests*(c.Window-1), requests*maxLen)
	if c.Ratio > 0 {
		c.Entries = max(c.Width, min(requests*(maxLen/c.Ratio), most-max(c.Window, min(windows, most/4))))
	}
	c.Windows = max(c.Window, min(windows, most-c.Entries))
	return c
}

// LeastRows is the fewest rows of a workspace: those that one token attends.
func (c RowConfig) LeastRows() int { return c.Window + c.Width }

// ListBytes is the size of the lists of gathered rows of `tokens` tokens.
func (c RowConfig) ListBytes(tokens int) uint64 {
	return uint64(tokens) * uint64(c.gatheredWidth()) * 4
}

// WorkspaceBytes returns the bytes that an attention over gathered rows can use of the `offered`
// bytes of a workspace (0: DefaultWorkspace): at most the largest buffer. A build without device
// addresses reaches only what a descriptor holds.
func WorkspaceBytes(dev *vk.Device, variant string, offered uint64) uint64 {
	a := dev.Adapter()
	offered = min(cmp.Or(offered, defaultWorkspace), cmp.Or(a.Caps.MaxBuffer, math.MaxUint64))
	if variant == opkit.Base || len(a.Caps.Missing(shaders.Requires(opkit.Stem("attn_prefill", opkit.DA)))) > 0 {
		return min(offered, a.Caps.MaxStorageBufferRange)
	}
	return offered
}

// Gathers reports whether the device's profile gathers rows for steps of `tokens` tokens of up to
// `requests` requests, which takes shared memory for two tiles of rows. The contents of a step do
// not matter: a request's results depend on the sizes of steps, not on the other requests in them.
func Gathers(dev *vk.Device, tokens, requests int) bool {
	tune := tuning.Of(dev)
	return gathers(&tune.Attention, tokens, requests) && !inPages(tune, dev.Adapter())
}

// inPages reports whether a device has room for matrices only where rows are attended in their
// pages: attn_decode_cm holds one tile of rows, attn_prefill_cm two.
func inPages(tune *tuning.Profile, a *vk.Adapter) bool {
	decode, _, err1 := chooseBuild(tune, a, nil, "attn_decode", "", 0, MaxHeads)
	prefill, _, err2 := chooseBuild(tune, a, nil, "attn_prefill", "", 0, MaxHeads)
	return err1 == nil && err2 == nil && elements[decode] != "" && elements[prefill] == ""
}

func gathers(n *tuning.Attention, tokens, requests int) bool {
	return n.GatherTokens > 0 && tokens >= n.GatherTokens && tokens >= n.GatherShare*requests
}

// RowPlan says how a step's tokens attend gathered rows, piece by piece. A piece is tokens whose
// rows fit the workspace together: entries from row 0 on, windows from row RowConfig.Entries on. A
// request's entries are gathered whole where that takes fewer rows than those that its tokens
// picked; else each token's picks are. What does not fit goes to the next piece.
//
// Begin begins a plan, Add appends a request, End ends it. PlanTensors are its lists on a device.
type RowPlan struct {
	Places [][4]int32 // by token: piece, row of entry 0, row of position 0, how
	Heads  [][4]int32 // by piece: first run and number of runs, of entries and of windows
	Runs   [][4]int32 // row, request or token, first position or entry, 1 for a token's list

	Gathered int // rows, of all pieces

	c                RowConfig
	entries, windows [][4]int32 // runs of the piece in progress
	usedE, usedW     int
}

// How a token's entries lie in the workspace, as attn_placed_indices.comp has it.
const (
	placePadding = iota // there are none, and no window
	placeWhole          // all of the request
	placeListed         // the token's own, in the order of its list
)

// RunsOf returns the most runs of a plan for `tokens` tokens.
func RunsOf(tokens int) int { return 4 * tokens }

// Begin empties the plan.
func (p *RowPlan) Begin(c RowConfig) {
	*p = RowPlan{Places: p.Places[:0], Heads: p.Heads[:0], Runs: p.Runs[:0], c: c, entries: p.entries[:0], windows: p.windows[:0]}
}

// Pieces is the number of pieces so far.
func (p *RowPlan) Pieces() int { return len(p.Heads) }

// Add appends n tokens of a request that has length tokens with them; table is its row in the
// block tables.
func (p *RowPlan) Add(table, n, length int) {
	for done := 0; done < n; {
		at := length - n + done
		m, how := p.fit(at, n-done)
		if m == 0 {
			p.flush()
			continue
		}
		p.place(table, at, m, how)
		done += m
	}
}

// End ends the plan, for a step of `tokens` tokens, padding included.
func (p *RowPlan) End(tokens int) {
	p.flush()
	for len(p.Places) < tokens {
		p.Places = append(p.Places, [4]int32{0, 0, 0, placePadding})
	}
}

// Pad adds empty pieces to a plan that ended.
func (p *RowPlan) Pad(pieces int) {
	end := int32(len(p.Runs) - 1)
	for len(p.Heads) < pieces {
		p.Heads = append(p.Heads, [4]int32{end, 0, end, 0})
	}
}

// seen is the number of entries that the token before a position sees.
func (c RowConfig) seen(end int) int {
	if c.Ratio == 0 {
		return 0
	}
	return end / c.Ratio
}

// first is the first position of the window of a token.
func (c RowConfig) first(at int) int { return max(0, at-c.Window+1) }

// fit returns how many of the next `left` tokens of a request go into the piece in progress, and
// how; 0 asks for a new piece. An empty piece takes at least one.
func (p *RowPlan) fit(at, left int) (m, how int) {
	c, empty := p.c, p.usedE+p.usedW == 0
	most := func(entries func(m int) int) int {
		return sort.Search(left, func(i int) bool {
			m := i + 1
			return p.usedE+entries(m) > c.Entries || p.usedW+at+m-c.first(at) > c.Windows
		})
	}
	whole := func(m int) int { return c.seen(at + m) }
	listed := func(m int) int { return m * min(c.Width, c.seen(at+m)) }
	if whole(left) <= listed(left) {
		switch m = most(whole); {
		case m == left:
			return m, placeWhole
		case !empty:
			return 0, 0 // the next piece gathers the entries once
		case m > 0 && whole(m) <= listed(m):
			return m, placeWhole
		}
	}
	return most(listed), placeListed
}

// place puts m tokens from a position on into the piece in progress.
func (p *RowPlan) place(table, at, m, how int) {
	c, piece, first := p.c, int32(len(p.Heads)), p.c.first(at)
	p.windows = append(p.windows, [4]int32{int32(c.Entries + p.usedW), int32(table), int32(first), 0})
	window := int32(c.Entries + p.usedW - first)
	p.usedW += at + m - first
	entries := int32(p.usedE)
	if n := c.seen(at + m); how == placeWhole && n > 0 {
		p.entries = append(p.entries, [4]int32{entries, int32(table), 0, 0})
		p.usedE += n
	}
	for i := range m {
		n := min(c.Width, c.seen(at+i+1))
		if how == placeListed && n > 0 {
			entries = int32(p.usedE)
			p.entries = append(p.entries, [4]int32{entries, int32(len(p.Places)), 0, 1})
			p.usedE += n
		}
		p.Places = append(p.Places, [4]int32{piece, entries, window, int32(how)})
	}
}

// flush ends the piece in progress.
func (p *RowPlan) flush() {
	head := [4]int32{int32(len(p.Runs)), int32(len(p.entries))}
	p.Runs = append(append(p.Runs, p.entries...), [4]int32{int32(p.usedE)})
	head[2], head[3] = int32(len(p.Runs)), int32(len(p.windows))
	p.Runs = append(append(p.Runs, p.windows...), [4]int32{int32(p.c.Entries + p.usedW)})
	p.Heads = append(p.Heads, head)
	p.Gathered += p.usedE + p.usedW
	p.entries, p.windows, p.usedE, p.usedW = p.entries[:0], p.windows[:0], 0, 0
}

// gatheredWidth is the width of the lists of gathered rows.
func (c RowConfig) gatheredWidth() int { return opkit.RoundUp(c.Window+c.Width, 16) }
