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
	Slow    int `json:"slow"`    // clocks that Vector's take on AMD's GPUs beyond one each
	LDS     int `json:"lds"`     // loads and stores of shared memory
	Gather  int `json:"gather"`  // of these, loads of a single half
	Memory  int `json:"memory"`  // loads and stores of memory
	Scalar  int `json:"scalar"`  // scalar ones and branches
	Wait    int `json:"wait"`    // waits for loads, stores and results
	Barrier int `json:"barrier"` // barriers, a signal and its wait counting once

	// Clocks of AMD's shared memory for a subgroup of 32, if no two lanes meet in a bank: those of
	// loads of 8 bytes, as most are of RADV's, and of all others.
	FragmentClocks int `json:"fragment_clocks"`
	OtherClocks    int `json:"other_clocks"`
}

// Issued are the instructions that a SIMD unit issues to its vector units.
func (c Counts) Issued() int { return c.Matrix + c.Dot + c.Vector }

// add counts an instruction of AMD's instruction sets.
func (c *Counts) add(name string, gfx12 bool) {
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
		c.Slow += vectorClocks(name, gfx12) - 1
	case has("ds_"):
		c.LDS++
		if has("ds_load_u16", "ds_read_u16") {
			c.Gather++
		}
		if n := sharedClocks(name); has("ds_load_b64", "ds_read_b64", "ds_load_2addr", "ds_read2") && strings.HasSuffix(name, "b64") {
			c.FragmentClocks += n
		} else {
			c.OtherClocks += n
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

// Listing is what a kernel is made of: all of it, and the loop that it spends its time in.
type Listing struct {
	All    Counts   `json:"all"`
	Loop   Counts   `json:"loop"`             // of one turn; zero without a loop
	Around []Counts `json:"around,omitempty"` // of one turn of each loop around it with all inside, the inmost first

	amd, gfx12 bool
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
	gfx12 := strings.Contains(text, "s_wait_dscnt") // older ones count waits in one word
	for line := range strings.Lines(text) {
		if m := blockLine.FindStringSubmatch(line); m != nil {
			blocks = append(blocks, block{label: number(m[1])})
		} else if m := codeLine.FindStringSubmatch(line); m != nil && len(blocks) > 0 {
			b := &blocks[len(blocks)-1]
			b.counts.add(m[1], gfx12)
			if branchName.MatchString(m[1]) {
				if t := target.FindStringSubmatch(m[2]); t != nil {
					b.to = append(b.to, number(t[1]))
				}
			}
		}
	}
	l := listingOf(blocks)
	l.amd, l.gfx12 = true, gfx12
	return l
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
	best := -1
	for i, s := range loops {
		turn := sums[s.to+1].plus(sums[s.from], -1)
		inner := true
		for j, o := range loops {
			inner = inner && (i == j || o == s || o.from < s.from || o.to > s.to)
		}
		if best < 0 || turn.better(l.Loop, inner) {
			if best >= 0 || turn.Matrix > 0 || inner {
				best, l.Loop = i, turn
			}
		}
	}
	for best >= 0 {
		next := -1
		for i, o := range loops {
			if around := o.from <= loops[best].from && o.to >= loops[best].to && o != loops[best]; around &&
				(next < 0 || o.to-o.from < loops[next].to-loops[next].from) {
				next = i
			}
		}
		if best = next; best >= 0 {
			l.Around = append(l.Around, sums[loops[best].to+1].plus(sums[loops[best].from], -1))
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

func (c Counts) total() int { return c.Issued() + c.LDS + c.Memory + c.Scalar + c.Wait + c.Barrier }

// plus adds times another's counts.
func (c Counts) plus(o Counts, times int) Counts {
	return Counts{c.Matrix + times*o.Matrix, c.Dot + times*o.Dot, c.Vector + times*o.Vector, c.Slow + times*o.Slow, c.LDS + times*o.LDS,
		c.Gather + times*o.Gather, c.Memory + times*o.Memory, c.Scalar + times*o.Scalar, c.Wait + times*o.Wait,
		c.Barrier + times*o.Barrier, c.FragmentClocks + times*o.FragmentClocks, c.OtherClocks + times*o.OtherClocks}
}

// sharedClocks are those of a load or store of shared memory, by its name: 128 bytes a clock, and
// one at least.
func sharedClocks(name string) int {
	each := 4
	for width, bytes := range map[string]int{"b128": 16, "b96": 12, "b64": 8} {
		if strings.HasSuffix(name, width) {
			each = bytes
		}
	}
	if strings.Contains(name, "2addr") || strings.Contains(name, "read2") || strings.Contains(name, "write2") {
		each *= 2
	}
	return each * 32 / (banks * bankBytes)
}

var (
	quarterRate    = regexp.MustCompile(`^v_(mul_(lo|hi)_[iu]32$|mad_(co_)?[iu]64)`)
	halfRate       = regexp.MustCompile(`_[biu]64(_e(32|64))?$`)
	transcendental = regexp.MustCompile(`^v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_f`)
)

// vectorClocks are those of a SIMD unit of 32 lanes to issue a vector instruction of 32 lanes: 1,
// for 64 bits 2, for products of whole integers 4. They are the latencies of LLVM's scheduling
// models (llvm/lib/Target/AMDGPU/SISchedule.td: GFX10-, GFX11- and GFX12SpeedModel) less the 4
// clocks of a pipeline: 5 for Write32Bit, WriteFloatCvt and WriteFloatFMA, 6 for Write64Bit, 8 for
// WriteIntMul. Transcendental ones have a unit of their own there before GFX12 (HWTransVALU), so
// that issuing one takes 1 clock; in GFX12's they keep the vector unit busy, here for 4 clocks, as
// they are of quarter rate. The models know neither that a pair of VOPD is issued at once, which
// counts once here, nor how long a product of matrices takes: GPU.MatrixClocks.
func vectorClocks(name string, gfx12 bool) int {
	switch {
	case quarterRate.MatchString(name), gfx12 && transcendental.MatchString(name):
		return 4
	case halfRate.MatchString(name):
		return 2
	}
	return 1
}
