// Package rdna executes what RADV submits to a GPU of AMD's that is not there: its command packets,
// and the machine code that its compiler made, of RDNA2, 3, 3.5 and 4, as far as vkmla's kernels
// need them. The driver above is real; nothing is derived from SPIR-V again.
//
// The program runs with testdata/interpose.c and Mesa's stand-in for Linux's amdgpu preloaded, as
// scripts/with-mesa emulate does. Instructions are read with the libLLVM that the driver itself
// links, once: each becomes a function of a wave. What is not known is a Fault and never guessed.
//
// It sees what a driver hides: accesses outside buffers and outside all memory, races in shared
// memory, registers and shared memory that were never written (all ones, NaN as floats), and
// kernels that depend on the order of waves. It does not know: the order of sums within matrices
// and dot products, last bits of exp, log and reciprocals, hazards between instructions, and time.
package rdna

import (
	"fmt"
	"sync"
	"time"
	"unsafe"
)

// cpus are LLVM's names of the GPUs.
var cpus = map[string]string{"navi21": "gfx1030", "navi31": "gfx1100", "strix_halo": "gfx1151", "gfx1201": "gfx1201"}

// Order is in which order waves and workgroups run.
type Order uint8

// Orders. Shuffled ones depend on Machine.Seed.
const (
	Forward Order = iota
	Backward
	Shuffled
)

// Machine is the GPU of this process.
type Machine struct {
	Order Order
	Seed  uint64
	Count bool // what Counted returns
	// Name returns the name of the kernel that begins with some words of code, "" if none does;
	// nil: programs have their number only.
	Name func(code []uint32) string

	cpu    string
	gfx    int // 10, 11, 12
	memory memory
	queue  queue

	mu       sync.Mutex // of submissions and memory
	programs map[uint64][]*program
	tools    map[int]*llvm // by lanes
	workers  []*worker
	took     time.Duration

	faultsMu sync.Mutex
	faults   []Fault
	seen     map[Fault]bool
}

var machine = &Machine{}

// Attach makes the machine of this process a GPU: navi21, navi31, strix_halo or gfx1201. The
// program must have been started by scripts/with-mesa emulate, and have opened no device yet.
func Attach(gpu string) (*Machine, error) {
	m := machine
	m.mu.Lock()
	defer m.mu.Unlock()
	cpu, ok := cpus[gpu]
	switch {
	case !ok:
		return nil, fmt.Errorf("rdna: attach: GPU %q, want navi21, navi31, strix_halo or gfx1201", gpu)
	case !attach():
		return nil, fmt.Errorf("rdna: attach: interpose.c is not preloaded: scripts/with-mesa emulate %s PROGRAM", gpu)
	}
	m.setGPU(cpu)
	return m, nil
}

func (m *Machine) setGPU(cpu string) {
	m.cpu = cpu
	_, _ = fmt.Sscanf(cpu[3:5], "%d", &m.gfx)
	m.programs, m.tools, m.seen = map[uint64][]*program{}, map[int]*llvm{}, map[Fault]bool{}
	m.queue = queue{m: m, regs: map[uint32]uint32{}}
}

// Fault is something that must not happen.
type Fault struct {
	What    string
	Address uint64 // in memory, shared memory, or of the packet
	Code    uint64 // the program's number, 0 outside of any
	Kernel  string // its name, if Machine.Name knows it
	At      int    // of the instruction, bytes from the program's first
	Text    string // the instruction
	Other   string // for a race, the other one

	Dispatch uint64    // counted from 1
	Group    [3]uint32 // workgroup
	Wave     int       // of the workgroup
}

func (f Fault) Error() string {
	s := fmt.Sprintf("rdna: %s: %#x", f.What, f.Address)
	if f.Text != "" {
		s += fmt.Sprintf(", by %q at byte %#x of program %d", f.Text, f.At, f.Code)
		if f.Kernel != "" {
			s += ", " + f.Kernel
		}
		s += fmt.Sprintf(", in dispatch %d, workgroup %d, wave %d", f.Dispatch, f.Group, f.Wave)
	}
	if f.Other != "" {
		s += ", the other by " + f.Other
	}
	return s
}

// mostFaults bounds those that are kept: one instruction can have a fault for every lane.
const mostFaults = 100

func (m *Machine) fault(f Fault) {
	m.faultsMu.Lock()
	defer m.faultsMu.Unlock()
	key := f
	if f.Text != "" {
		key.Address, key.Dispatch, key.Group, key.Wave = 0, 0, [3]uint32{}, 0
	}
	if !m.seen[key] && len(m.faults) < mostFaults {
		m.seen[key] = true
		m.faults = append(m.faults, f)
	}
}

// Faults returns the faults since the last call, each instruction's once.
func (m *Machine) Faults() []Fault {
	m.faultsMu.Lock()
	list := m.faults
	m.faults = nil
	clear(m.seen)
	m.faultsMu.Unlock()
	for i := range list {
		list[i].Kernel = m.kernel(list[i].Code)
	}
	return list
}

// kernel returns the name of a program's kernel.
func (m *Machine) kernel(number uint64) string {
	if m.Name == nil || number == 0 {
		return ""
	}
	m.mu.Lock()
	var code []uint32
	for _, list := range m.programs {
		for _, p := range list {
			if p.number == number {
				code = p.image
			}
		}
	}
	m.mu.Unlock()
	return m.Name(code)
}

func (m *Machine) mapped(address, size uint64, host unsafe.Pointer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memory.put(span{address, size, host})
}

// submit executes n words of commands.
func (m *Machine) submit(address uint64, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	start := time.Now()
	m.queue.run(address, n)
	m.took += time.Since(start)
}

// Took returns the time that commands were executed for.
func (m *Machine) Took() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.took
}
