package pipelines

import (
	"strings"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// Shared memory of AMD's compute units: banks of four bytes, of which each serves one address a
// clock, and all lanes that read it. A load of 8 bytes takes lanes 16 at a time, so that each bank
// is met once; one of 4 or 2 bytes takes 32, one of 16 takes 8. Source: the instruction set
// references of RDNA2 to RDNA4, "LDS".
const (
	banks     = 32
	bankBytes = 4
)

// bankClocks is how many clocks a load of shared memory takes: bytes of each lane's address. It is
// also how many it would take if no two lanes met in a bank.
func bankClocks(addresses []int, bytes int) (clocks, least int) {
	together := min(len(addresses), banks*bankBytes/max(bytes, bankBytes))
	for first := 0; first < len(addresses); first += together {
		words := map[int]bool{}
		met := [banks]int{}
		for _, a := range addresses[first:min(first+together, len(addresses))] {
			for w := a / bankBytes; w <= (a+bytes-1)/bankBytes; w++ {
				if !words[w] {
					words[w] = true
					met[w%banks]++
				}
			}
		}
		most := 0
		for _, n := range met {
			most = max(most, n)
		}
		clocks, least = clocks+most, least+1
	}
	return clocks, least
}

// fragment is how RADV loads a matrix of 16 x 16 halves whose rows lie pitch bytes apart: lane l
// has row l%16, and 8 bytes of it an instruction; on gfx12 lanes from 16 on have the other half.
// With exchanged halves rows are those of shaders/lib/cm_rows.glsl.
func fragment(pitch int, exchanged bool) (clocks, least int) {
	for at := 0; at < 32; at += 8 {
		addresses := make([]int, 32)
		for l := range addresses {
			if addresses[l] = l%16*pitch + at; exchanged && l%16 >= 8 {
				addresses[l] = l%16*pitch + at ^ 8
			}
		}
		c, n := bankClocks(addresses, 8)
		clocks, least = clocks+c, least+n
	}
	return clocks, least
}

// fragmentPitch is the bytes from row to row of what a kernel loads fragments from, by its
// shader: KV_PITCH, PITCH, ROW_PITCH times 16. It is 0 for kernels that load none.
func (c *Chosen) fragmentPitch() int {
	switch {
	case strings.HasPrefix(c.Kernel, "attn_decode_cm"), strings.HasPrefix(c.Kernel, "attn_prefill_cm"):
		return 65 * 16
	case strings.HasPrefix(c.Kernel, "proj_linear_cm"), strings.HasPrefix(c.Kernel, "proj_linear_whole_cm"):
		return (int(c.Constants[9])/8 + 1) * 16
	case c.codes():
		return 9 * 16
	case strings.HasPrefix(c.Kernel, "idx_logits_cm"):
		return 17 * 16
	}
	return 0
}

// codes tells whether a kernel multiplies matrices of E4M3.
func (c *Chosen) codes() bool { return c.Kernel == "idx_logits_codes_cm" }

// rows is ROWS of shaders/lib/cm_rows.glsl, of kernels that have it.
func (c *Chosen) rows() uint32 {
	k, err := shaders.Get(c.Kernel)
	if err != nil || c.fragmentPitch() == 0 {
		return 0
	}
	m, err := spirv.Parse(k.SPIRV)
	if err != nil {
		return 0
	}
	for at, x := range m.Constants { // without gaps: internal/spirv tests it
		if x.Name == "ROWS" && at < len(c.Constants) {
			return c.Constants[at]
		}
	}
	return 0
}

// Conflicts is how often as long a kernel's loads of fragments take as they would without
// conflicts of banks, on AMD's GPUs; 0: it loads none.
func (c *Chosen) Conflicts() float64 {
	pitch := c.fragmentPitch()
	if pitch == 0 {
		return 0
	}
	clocks, least := fragment(pitch, c.rows() != 0)
	return float64(clocks) / float64(least)
}
