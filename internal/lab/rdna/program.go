package rdna

import (
	"fmt"
	"slices"
)

// flow says how an instruction goes on.
type flow uint8

const (
	onward   flow = iota
	branches      // or goes on
	jumps
	waits // at a barrier
	ends
)

// inst is an instruction, ready to run.
type inst struct {
	run   func(w *wave)
	words int
	flow  flow
	op    string
	text  string
}

// program is the code of a kernel for one size of waves.
type program struct {
	number uint64
	lanes  int
	image  []uint32 // what was read of memory
	insts  []inst   // by word

	launches uint64 // counted
}

// mostCode bounds the words of a program; ours have up to 30,000.
const mostCode = 1 << 18

// program returns the code at an address, read when it is first seen. The same code at another
// address is the same program.
func (m *Machine) program(address uint64, lanes int) (*program, error) {
	first := m.memory.words(address, 4)
	if first == nil {
		return nil, fmt.Errorf("rdna: code at %#x, outside all memory", address)
	}
	key := wide(first[0], first[1]) ^ wide(first[3], first[2]) ^ uint64(lanes)
	for _, p := range m.programs[key] {
		if p.lanes == lanes && slices.Equal(p.image, m.memory.words(address, len(p.image))) {
			return p, nil
		}
	}
	s := m.memory.find(address & addressBits)
	room := int(min((s.size-(address&addressBits-s.address))/4, mostCode))
	number := uint64(1)
	for _, list := range m.programs {
		number += uint64(len(list))
	}
	tool, err := m.tool(lanes)
	if err != nil {
		return nil, err
	}
	p := &program{number: number, lanes: lanes}
	p.read(m, tool, m.memory.words(address, room))
	m.programs[key] = append(m.programs[key], p)
	return p, nil
}

func (m *Machine) tool(lanes int) (*llvm, error) {
	if t := m.tools[lanes]; t != nil {
		return t, nil
	}
	t, err := newLLVM(m.cpu, lanes)
	if err == nil {
		m.tools[lanes] = t
	}
	return t, err
}

// read decodes whatever can be reached from the first instruction.
func (p *program) read(m *Machine, tool *llvm, code []uint32) {
	todo := []int{0}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for at < len(p.insts) && p.insts[at].run == nil || at >= len(p.insts) {
			x, to := p.decode(m, tool, code, at)
			for end := at + x.words; len(p.insts) < end; {
				p.insts = append(p.insts, inst{})
			}
			p.insts[at] = x
			if x.flow == branches {
				todo = append(todo, to)
			}
			if x.flow == ends {
				break
			}
			if at += x.words; x.flow == jumps {
				at = to
			}
		}
	}
	p.image = slices.Clone(code[:len(p.insts)])
}

// decode reads the instruction at a word, and where it branches to.
func (p *program) decode(m *Machine, tool *llvm, code []uint32, at int) (x inst, to int) {
	if at < 0 || at >= len(code) {
		return unknown("", fmt.Errorf("a branch out of the program")), 0
	}
	text, words := tool.instruction(code[at:min(at+5, len(code))])
	if words == 0 {
		return unknown(fmt.Sprintf("%#x", code[at]), fmt.Errorf("no instruction")), 0
	}
	x = compile(m.gfx, p.lanes, text, code[at])
	x.words = words
	if to = at + words + int(int16(code[at])); x.flow == branches || x.flow == jumps {
		if to < 0 || to >= len(code) {
			return unknown(text, fmt.Errorf("a branch out of the program")), 0
		}
		x.run = branch(x.run, to)
	}
	return x, to
}

// unknown is an instruction that cannot be executed: where it is, the launch ends with a fault.
func unknown(text string, err error) inst {
	return inst{text: text, words: 1, flow: ends, op: "unknown", run: func(w *wave) { panic(err) }}
}

// branch runs what decides, and goes to a word if that says so by setting taken.
func branch(decide func(w *wave), to int) func(w *wave) {
	return func(w *wave) {
		w.taken = true
		decide(w)
		if w.taken {
			w.pc = to
		}
	}
}

// Executed returns how often each instruction was executed by a wave, without encodings.
func (m *Machine) Executed() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[string]uint64{}
	for _, w := range m.workers {
		for p, counts := range w.counts {
			for i, c := range counts {
				if c > 0 {
					n[p.insts[i].op] += c
				}
			}
		}
	}
	return n
}
