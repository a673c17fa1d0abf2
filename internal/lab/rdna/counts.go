package rdna

import (
	"math/bits"
	"strings"
	"unsafe"
)

// Counts adds up what the waves of a program executed.
type Counts struct {
	Program        uint64            // as Fault.Code
	Kernel         string            // as Fault.Kernel
	Lanes          int               // of a wave
	Launches       uint64            // 0: not counted
	Groups, Waves  uint64            //
	Instructions   map[string]uint64 // of waves, by Class
	VectorClocks   uint64            // of vector units, see vectorClocks
	SharedClocks   uint64            // of shared memory, a compute unit's 32 banks of 4 bytes
	SharedLeast    uint64            // what these would be if no two lanes met in a bank
	SharedAccesses uint64
	Bytes          uint64 // that lanes loaded or stored in memory
	Lines          uint64 // cache lines of 128 bytes that their instructions touched, each anew
}

// Classes of instructions.
const (
	ClassMatrix = "matrix"         // v_wmma
	ClassDot    = "dot"            // dot products of halves
	ClassSlow   = "transcendental" // exp, log, reciprocals, roots
	ClassVector = "vector"         // all others of lanes, a pair counted once
	ClassScalar = "scalar"
	ClassShared = "shared"
	ClassMemory = "memory"
	ClassLoads  = "scalar loads"
	ClassFlow   = "flow" // branches, barriers, waiting
)

// Classes lists them.
var Classes = []string{ClassMatrix, ClassDot, ClassVector, ClassSlow, ClassScalar, ClassLoads, ClassShared, ClassMemory, ClassFlow}

// Class returns the class of an instruction.
func Class(op string) string {
	space, rest, _ := strings.Cut(op, "_")
	name, _, _ := strings.Cut(strings.TrimPrefix(rest, "s_"), "_")
	switch {
	case plainOps[op] || strings.Contains(op, "branch"):
		return ClassFlow
	case strings.HasPrefix(op, "v_wmma"):
		return ClassMatrix
	case strings.HasPrefix(op, "v_dot2"):
		return ClassDot
	case space == "v" && strings.Contains(" exp log rcp rsq sqrt ", " "+name+" "):
		return ClassSlow
	case space == "v":
		return ClassVector
	case space == "ds":
		return ClassShared
	case space == "global" || space == "buffer":
		return ClassMemory
	case strings.Contains(op, "_load_"):
		return ClassLoads
	}
	return ClassScalar
}

// vectorClocks returns the clocks that a vector unit of 32 lanes issues an instruction for, by
// AMD's peak rates: four times as many for transcendental functions, and 256, with RDNA4 512 (of
// E4M3 1024) operations of a matrix a clock.
func vectorClocks(op string, lanes, gfx int) uint64 {
	switch class := Class(op); {
	case class == ClassMatrix && gfx < 12:
		return 32
	case class == ClassMatrix && strings.HasSuffix(op, "fp8_fp8"):
		return 8
	case class == ClassMatrix:
		return 16
	case class == ClassSlow:
		return uint64(4 * lanes / 32)
	case class == ClassVector || class == ClassDot:
		return uint64(lanes / 32)
	}
	return 0
}

// Counted returns what was counted since the last call, by program; Machine.Count must be set.
func (m *Machine) Counted() []Counts {
	list := m.counted()
	for i := range list {
		list[i].Kernel = m.kernel(list[i].Program)
	}
	return list
}

func (m *Machine) counted() (list []Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, programs := range m.programs {
		for _, p := range programs {
			sum := Counts{Program: p.number, Lanes: p.lanes, Launches: p.launches, Instructions: map[string]uint64{}}
			p.launches = 0
			for _, k := range m.workers {
				if t := k.tallies[p]; t != nil {
					sum.add(t, p, m.gfx)
				}
				delete(k.tallies, p)
			}
			if sum.Launches > 0 {
				list = append(list, sum)
			}
		}
	}
	return list
}

func (c *Counts) add(t *tally, p *program, gfx int) {
	for i, n := range t.runs {
		if n > 0 {
			c.Instructions[Class(p.insts[i].op)] += n
			c.VectorClocks += n * vectorClocks(p.insts[i].op, p.lanes, gfx)
		}
	}
	c.Groups += t.groups
	c.Waves += t.waves
	c.SharedClocks += t.clocks
	c.SharedLeast += t.least
	c.SharedAccesses += t.accesses
	c.Bytes += t.bytes
	c.Lines += t.lines
}

// tally holds a worker's counts of a program.
type tally struct {
	runs            []uint64 // by word
	groups, waves   uint64
	clocks, least   uint64
	accesses, bytes uint64
	lines           uint64
}

// banked counts an access of shared memory: as many lanes at a time as have 128 bytes together;
// lanes that read one word are served at once, those that change it are not.
func (t *tally) banked(base unsafe.Pointer, p *[64]unsafe.Pointer, e uint64, size, bytes int, kind uint8) {
	const banks = 32
	together := banks * 4 / max(bytes, 4)
	t.accesses++
	for first := 0; first < size; first += together {
		var met [banks][]uint32
		most := 0
		for m := e >> first & (1<<together - 1); m != 0; m &= m - 1 {
			i := first + bits.TrailingZeros64(m)
			if p[i] == nil {
				continue
			}
			at := uint32(uintptr(p[i]) - uintptr(base))
			for w := at / 4; w <= (at+uint32(bytes)-1)/4; w++ {
				bank := &met[w%banks]
				if kind == changes || !has(*bank, w) {
					*bank = append(*bank, w)
					most = max(most, len(*bank))
				}
			}
		}
		t.clocks += uint64(most)
		t.least += uint64(min(most, 1))
	}
}

// moved counts an access of memory.
func (t *tally) moved(p *[64]unsafe.Pointer, e uint64, bytes int) {
	const line = 128
	var met []uint32
	for ; e != 0; e &= e - 1 {
		i := bits.TrailingZeros64(e) & 63
		if p[i] == nil {
			continue
		}
		t.bytes += uint64(bytes)
		from, to := uint32(uintptr(p[i])/line), uint32((uintptr(p[i])+uintptr(bytes)-1)/line)
		for l := from; l <= to; l++ {
			if !has(met, l) {
				met = append(met, l)
			}
		}
	}
	t.lines += uint64(len(met))
}

// has looks from the end: neighbours have what was added last.
func has(list []uint32, x uint32) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == x {
			return true
		}
	}
	return false
}
