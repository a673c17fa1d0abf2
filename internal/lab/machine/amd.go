// Package machine checks machine code by a driver's listing of it, without hardware: where control
// goes, from the first instruction to the last. Of what is computed on the way it says nothing.
package machine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// instruction is one of AMD's, at a word of the program.
type instruction struct {
	name    string
	at, end int // words
	block   int // that it names; -1: none
	to      int // word that it may go to; -1: none
}

// idle are instructions that align others or prefetch them, and stand where nothing leads.
var idle = map[string]bool{"s_nop": true, "s_inst_prefetch": true, "s_set_inst_prefetch_distance": true}

// goesOn reports whether the next instruction may follow.
func (i *instruction) goesOn() bool { return i.name != "s_branch" && i.name != "s_endpgm" }

// program is a listing of RADV's.
type program struct {
	code   []instruction
	index  map[int]int // of code, by word
	blocks map[int]int // words of blocks, by number
	words  int
	image  []uint32 // all words
	faults []string
}

// Code returns the words of the program in RADV's listing of a kernel.
func Code(text string) []uint32 {
	p := program{index: map[int]int{}, blocks: map[int]int{}}
	p.read(text)
	return p.image
}

// AMD returns what is wrong in RADV's listing of a kernel, nothing if all is well:
//
//   - the first block is at the first word, and no block that belongs further down is there with
//     it, as one is that a branch names and the compiler left out;
//   - a branch goes, by its encoding, to the first instruction of the block that it names;
//   - every instruction is reached unless it is idle, from every one an end is, and none runs off
//     the code.
func AMD(text string) []string {
	p := program{index: map[int]int{}, blocks: map[int]int{}}
	p.read(text)
	if len(p.code) == 0 {
		return []string{"no instructions"}
	}
	p.entry()
	if p.branches() {
		p.reach()
	}
	return p.faults
}

func (p *program) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

// read reads labels, as "BB12:", instructions, each with its words in hexadecimal after the last
// semicolon, and "(then repeated N times)" after one of these.
func (p *program) read(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		var n int
		switch {
		case strings.TrimSpace(line) == "":
		case line[0] == 'B':
			if _, err := fmt.Sscanf(line, "BB%d:", &n); err != nil {
				p.fault("%q is no label", line)
			} else if at, ok := p.blocks[n]; ok {
				p.fault("BB%d begins at word %d and at word %d", n, at, p.words)
			} else {
				p.blocks[n] = p.words
			}
		case strings.Contains(line, "(then repeated ") && len(p.code) > 0:
			fmt.Sscanf(strings.TrimSpace(line), "(then repeated %d times)", &n) //nolint:errcheck // 0 then
			for range n {
				i := p.code[len(p.code)-1]
				p.add(i.name, p.image[i.at:i.end])
			}
		case line[0] == '\t' || line[0] == ' ', strings.HasPrefix(line, "(invalid"): // not disassembled
			p.line(line)
		}
	}
}

// line reads an instruction.
func (p *program) line(line string) {
	mark := strings.LastIndexByte(line, ';')
	fields := strings.Fields(line[:max(mark, 0)])
	hex := strings.Fields(line[mark+1:])
	if mark < 0 || len(fields) == 0 || len(hex) == 0 {
		p.fault("%q has no code", line)
		return
	}
	words := make([]uint32, len(hex))
	for i, x := range hex {
		word, err := strconv.ParseUint(x, 16, 32)
		if err != nil {
			p.fault("%q has no code", line)
			return
		}
		words[i] = uint32(word)
	}
	i := p.add(fields[0], words)
	switch {
	case strings.HasPrefix(i.name, "s_branch"), strings.HasPrefix(i.name, "s_cbranch"):
		i.to = i.at + 1 + int(int16(words[0])) // words from the next instruction
		if _, err := fmt.Sscanf(strings.Join(fields[1:], " "), "BB%d", &i.block); err != nil {
			p.fault("word %d: %s names no block", i.at, i.name)
		}
	case slices.ContainsFunc([]string{"s_setpc", "s_swappc", "s_call", "s_rfe", "s_subvector_loop"}, func(x string) bool {
		return strings.HasPrefix(i.name, x)
	}):
		p.fault("word %d: where %s goes is not known", i.at, i.name)
	}
}

func (p *program) add(name string, words []uint32) *instruction {
	p.index[p.words] = len(p.code)
	p.code = append(p.code, instruction{name, p.words, p.words + len(words), -1, -1})
	p.words += len(words)
	p.image = append(p.image, words...)
	return &p.code[len(p.code)-1]
}

// entry holds that block 0 begins the program. A block that was never emitted has its place there,
// too, whereas blocks 1, 2, ... may begin there if those before are empty.
func (p *program) entry() {
	if at, ok := p.blocks[0]; !ok || at != 0 {
		p.fault("the first word is not the first block's")
	}
	least := -1 // of the blocks elsewhere
	for n, at := range p.blocks {
		if at != 0 && (least < 0 || n < least) {
			least = n
		}
	}
	for _, n := range slices.Sorted(maps.Keys(p.blocks)) {
		if n > 0 && p.blocks[n] == 0 && least >= 0 && n > least {
			p.fault("BB%d has no code: it is at the first word, BB%d is not", n, least)
		}
	}
}

// branches holds that each goes where it says, and reports whether all lead to an instruction.
func (p *program) branches() bool {
	ok := true
	for i := range p.code {
		x := &p.code[i]
		if x.to >= 0 || x.block >= 0 {
			if at, there := p.blocks[x.block]; !there {
				p.fault("word %d: %s to BB%d, which is missing", x.at, x.name, x.block)
			} else if at != x.to {
				p.fault("word %d: %s to BB%d goes to word %d, the block is at word %d", x.at, x.name, x.block, x.to, at)
			}
			if _, there := p.index[x.to]; !there {
				p.fault("word %d: %s goes to word %d of %d, where no instruction begins", x.at, x.name, x.to, p.words)
				ok = false
			}
		}
	}
	if last := &p.code[len(p.code)-1]; last.goesOn() {
		p.fault("word %d: %s runs off the end", last.at, last.name)
		ok = false
	}
	return ok
}

// reach names the first instruction that is not reached, and the first from which no end is.
func (p *program) reach() {
	next, before := make([][]int, len(p.code)), make([][]int, len(p.code))
	var ends []int
	join := func(i, j int) { next[i], before[j] = append(next[i], j), append(before[j], i) }
	for i := range p.code {
		x := &p.code[i]
		if x.goesOn() {
			join(i, i+1)
		}
		if x.to >= 0 {
			join(i, p.index[x.to])
		}
		if x.name == "s_endpgm" {
			ends = append(ends, i)
		}
	}
	reached, ending := flood(next, []int{0}), flood(before, ends)
	for i := range p.code {
		if x := &p.code[i]; !reached[i] && !idle[x.name] {
			p.fault("word %d: %s is never reached", x.at, x.name)
			break
		}
	}
	for i := range p.code {
		if x := &p.code[i]; reached[i] && !ending[i] {
			p.fault("word %d: no end is reached from %s", x.at, x.name)
			break
		}
	}
}

// flood marks what ways lead to from some places.
func flood(ways [][]int, from []int) []bool {
	marked := make([]bool, len(ways))
	for len(from) > 0 {
		i := from[len(from)-1]
		from = from[:len(from)-1]
		if !marked[i] {
			marked[i] = true
			from = append(from, ways[i]...)
		}
	}
	return marked
}
