package pipelines

import (
	"regexp"
	"strconv"
	"strings"
)

// Counts are a kernel's instructions by class, as a driver's listing has them.
type Counts struct {
	Matrix  int `json:"matrix"`  // products of matrices
	Dot     int `json:"dot"`     // dot products
	Vector  int `json:"vector"`  // others of the vector units; a pair that is issued at once counts once
	LDS     int `json:"lds"`     // loads and stores of shared memory
	Gather  int `json:"gather"`  // of these, loads of a single half
	Memory  int `json:"memory"`  // loads and stores of memory
	Scalar  int `json:"scalar"`  // scalar ones and branches
	Wait    int `json:"wait"`    // waits for loads, stores and results
	Barrier int `json:"barrier"` // barriers, a signal and its wait counting once
}

// add counts an instruction of AMD's instruction sets.
func (c *Counts) add(name string) {
	has := func(prefixes ...string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("v_wmma", "v_swmmac", "v_mfma"):
		c.Matrix++
	case has("v_dot", "v_dual_dot"):
		c.Dot++
	case has("v_"):
		c.Vector++
	case has("ds_"):
		c.LDS++
		if has("ds_load_u16", "ds_read_u16") {
			c.Gather++
		}
	case has("global_", "buffer_", "flat_", "scratch_"):
		c.Memory++
	case has("s_barrier_signal", "s_barrier_leave"):
	case has("s_barrier"):
		c.Barrier++
	case has("s_wait", "s_delay_alu", "s_nop", "s_clause"):
		c.Wait++
	case has("s_"):
		c.Scalar++
	}
}

// Listing holds a kernel's instructions: all of it, and the loop that it spends its time in.
type Listing struct {
	All  Counts `json:"all"`
	Loop Counts `json:"loop"` // of one turn; zero without a loop
}

var (
	blockLine  = regexp.MustCompile(`^BB(\d+):`)
	codeLine   = regexp.MustCompile(`^\s+([a-z]\w+)([^;]*)`)
	branchName = regexp.MustCompile(`^s_c?branch`)
	target     = regexp.MustCompile(`BB(\d+)`)
)

// block is a run of instructions with one way in.
type block struct {
	label  int
	counts Counts
	to     []int // labels that its branches name
}

// ReadListing reads RADV's listing of a kernel. The loop is the one with most products of
// matrices; else, of those without a loop inside, the one with most instructions. Of equal ones it
// is the shortest. A loop's turn takes all of its blocks, those that a branch skips too.
func ReadListing(text string) Listing {
	var blocks []block
	for line := range strings.Lines(text) {
		if m := blockLine.FindStringSubmatch(line); m != nil {
			blocks = append(blocks, block{label: number(m[1])})
		} else if m := codeLine.FindStringSubmatch(line); m != nil && len(blocks) > 0 {
			b := &blocks[len(blocks)-1]
			b.counts.add(m[1])
			if branchName.MatchString(m[1]) {
				if t := target.FindStringSubmatch(m[2]); t != nil {
					b.to = append(b.to, number(t[1]))
				}
			}
		}
	}
	return listingOf(blocks)
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// listingOf sums up blocks and finds the loop.
func listingOf(blocks []block) Listing {
	at := map[int]int{} // by label
	for i, b := range blocks {
		at[b.label] = i
	}
	var l Listing
	sums := []Counts{{}} // of the blocks before each
	for _, b := range blocks {
		l.All = l.All.plus(b.counts, 1)
		sums = append(sums, l.All)
	}
	type span struct{ from, to int }
	var loops []span
	for i, b := range blocks {
		for _, label := range b.to {
			if from, ok := at[label]; ok && from <= i {
				loops = append(loops, span{from, i})
			}
		}
	}
	found := false
	for i, s := range loops {
		turn := sums[s.to+1].plus(sums[s.from], -1)
		inner := true
		for j, o := range loops {
			inner = inner && (i == j || o == s || o.from < s.from || o.to > s.to)
		}
		if !found && (turn.Matrix > 0 || inner) || found && turn.better(l.Loop, inner) {
			found, l.Loop = true, turn
		}
	}
	return l
}

// better tells whether a loop is rather the one that counts than another.
func (c Counts) better(than Counts, inner bool) bool {
	switch {
	case c.Matrix != than.Matrix:
		return c.Matrix > than.Matrix
	case c.Matrix > 0:
		return c.total() < than.total()
	}
	return inner && c.total() > than.total()
}

func (c Counts) total() int {
	return c.Matrix + c.Dot + c.Vector + c.LDS + c.Memory + c.Scalar + c.Wait + c.Barrier
}

// plus adds times another's counts.
func (c Counts) plus(o Counts, times int) Counts {
	return Counts{c.Matrix + times*o.Matrix, c.Dot + times*o.Dot, c.Vector + times*o.Vector, c.LDS + times*o.LDS,
		c.Gather + times*o.Gather, c.Memory + times*o.Memory, c.Scalar + times*o.Scalar, c.Wait + times*o.Wait,
		c.Barrier + times*o.Barrier}
}
