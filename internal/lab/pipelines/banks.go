package pipelines

import (
	"cmp"
	"slices"
)

// Shared memory of AMD's compute units: banks of four bytes, of which each serves one address a
// clock, and all lanes that read it. A load of 8 bytes takes lanes 16 at a time, so that each bank
// is met once; one of 4 or 2 bytes takes 32, one of 16 takes 8. Source: the instruction set
// references of RDNA2 to RDNA4, "LDS".
const (
	banks     = 32
	bankBytes = 4
)

// use is what an instruction does with shared memory.
type use int

const (
	store use = iota
	load      // 16 bytes as two loads of 8, as RADV has it
	count     // an atomic sum: lanes with one address follow each other, too
)

// bankClocks is how many clocks a use of shared memory takes: bytes of each lane's address. It is
// also how many it would take if no two lanes met in a bank. A lane with a negative address has no
// part.
func bankClocks(u use, addresses []int, bytes int) (clocks, least int) {
	together := min(len(addresses), banks*bankBytes/max(bytes, bankBytes))
	for first := 0; first < len(addresses); first += together {
		var met [banks][]int
		most := 0
		for _, a := range addresses[first:min(first+together, len(addresses))] {
			for w := a / bankBytes; a >= 0 && w <= (a+bytes-1)/bankBytes; w++ {
				if bank := &met[w%banks]; u == count || !slices.Contains(*bank, w) {
					*bank = append(*bank, w)
					most = max(most, len(*bank))
				}
			}
		}
		clocks, least = clocks+most, least+min(most, 1)
	}
	return clocks, least
}

// pattern is how a workgroup's invocations use an array of shared memory. What moves all lanes of a
// subgroup alike is left out of its addresses.
type pattern struct {
	name  string // the array, and what happens
	use   use
	bytes int
	times int                  // of an invocation in a turn of the kernel's loop
	share float64              // of the turns that have it
	at    func(tid, i int) int // bytes, for the i-th time
}

// Access is what a pattern costs on AMD's GPUs.
type Access struct {
	Name      string  `json:"name"`
	Clocks    float64 `json:"clocks"`    // of shared memory, for a workgroup in a turn of the kernel's loop
	Conflicts float64 `json:"conflicts"` // clocks for each that it would take if no two lanes met in a bank

	least float64
	eight bool // loads of 8 bytes
}

func (p *pattern) access(threads int) Access {
	clocks, least, bytes, pieces := 0, 0, p.bytes, 1
	if p.use == load && bytes == 16 {
		bytes, pieces = 8, 2
	}
	addresses := make([]int, min(threads, 32))
	for first := 0; first < threads; first += len(addresses) {
		for i := range p.times * pieces {
			for l := range addresses {
				if addresses[l] = p.at(first+l, i/pieces); addresses[l] >= 0 {
					addresses[l] += i % pieces * bytes
				}
			}
			c, n := bankClocks(p.use, addresses, bytes)
			clocks, least = clocks+c, least+n
		}
	}
	return Access{p.name, float64(clocks) * p.share, float64(clocks) / float64(max(least, 1)), float64(least) * p.share,
		p.use == load && bytes == 8}
}

// accesses are the uses of shared memory that matter for a kernel, the worst first; nil for kernels
// of which patterns knows none.
func (c *Chosen) accesses() (list []Access) {
	n := c.numbers()
	for _, p := range patterns(c.Kernel, n) {
		list = append(list, p.access(n["THREADS"]))
	}
	slices.SortStableFunc(list, func(a, b Access) int { return cmp.Compare(b.Conflicts, a.Conflicts) })
	return list
}

// Conflicts is how often as long uses of shared memory take as they would without conflicts of
// banks: loads of 8 bytes, all others, and all; 0: there are none.
func Conflicts(list []Access) (eight, other, all float64) {
	var clocks, least [2]float64
	for _, a := range list {
		i := 1
		if a.eight {
			i = 0
		}
		clocks[i] += a.Clocks
		least[i] += a.least
	}
	per := func(clocks, least float64) float64 { return clocks / max(least, 1e-9) }
	return per(clocks[0], least[0]), per(clocks[1], least[1]), per(clocks[0]+clocks[1], least[0]+least[1])
}
