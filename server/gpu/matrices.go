package gpu

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// matrices divides the work of a workgroup of product_cm and up_cm, 128 rows of weights and some
// tokens, among products of cooperative matrices.
type matrices struct {
	m, n, k  int // of one product
	subgroup int // invocations
	teams    int // subgroups that share out the rows; the others share out the tokens

	least, most int // tokens of a workgroup
}

// fitMatrices returns a division that a device can take; nil: it has no matrices.
func fitMatrices(caps *vk.Caps) *matrices {
	if caps.Missing([]string{"shaderFloat16", "vulkanMemoryModel", "subgroupSizeControl"}) != nil {
		return nil
	}
	d, err := opkit.FitMatrix(caps, "f16", func(s vk.CoopMatShape) (matrices, bool) {
		d := matrices{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize)}
		for _, n := range []int{d.m, d.n, d.k, d.subgroup} {
			if n < 8 || n > 64 || bits.OnesCount(uint(n)) != 1 {
				return d, false
			}
		}
		d.teams = min(matrixRows/d.subgroup, matrixRows/2/d.m)
		d.least = max(16, matrixRows/d.subgroup/d.teams*d.n)
		for d.most = max(32, d.least); d.most > d.least && d.shared() > int(caps.SharedMemory); {
			d.most /= 2
		}
		return d, d.shared() <= int(caps.SharedMemory)
	})
	if err != nil {
		return nil
	}
	return &d
}

// shared returns the bytes of shared memory that a workgroup takes, at most.
func (d *matrices) shared() int {
	const grid = 2048
	out := matrixRows / d.subgroup * d.n * (matrixRows/d.teams/4 + 1)
	return 16*max(out, (matrixRows+d.most)*9) + 4*d.most + grid
}

// tokensOf returns the tokens of a workgroup, where n on average want the same weights.
func (d *matrices) tokensOf(n int) int {
	tokens := d.least
	for tokens < d.most && 4*tokens < 5*n {
		tokens *= 2
	}
	return tokens
}

func (d *matrices) constants(m *matrix, halves uint32, tokens int) []uint32 {
	return opkit.Constants(int(m.format), int(halves), d.subgroup, tokens, d.teams, int(flag(m.k%128 == 0)), d.m, d.n, d.k)
}

// largest is a bound of the magnitudes of a matrix's numbers, found while it is uploaded.
type largest struct{ bits atomic.Uint32 }

func (l *largest) see(v float32) {
	for old := l.bits.Load(); math.Float32bits(v) > old && !l.bits.CompareAndSwap(old, math.Float32bits(v)); {
		old = l.bits.Load()
	}
}

func (l *largest) value() float64 { return float64(math.Float32frombits(l.bits.Load())) }

// largestMXFP4 is the largest of the numbers that scales allow.
func largestMXFP4(scales []byte) float32 {
	var most byte
	for _, s := range scales {
		most = max(most, s)
	}
	return 6 * numfmt.UE8M0Scale(most)
}

// largest returns a bound of the magnitudes that a kernel with matrices makes of blocks as they are
// stored, of some bytes each.
func (b *blockLayout) largest(blocks []byte, bytes int) float32 {
	if b.format == mxfp4 {
		var scale byte
		for i := 0; i < len(blocks); i += bytes {
			scale = max(scale, blocks[i])
		}
		return largestMXFP4([]byte{scale})
	}
	half := func(at int) float32 {
		var most uint16
		for i := at; i < len(blocks); i += bytes {
			most = max(most, binary.LittleEndian.Uint16(blocks[i:])&0x7FFF)
		}
		return numfmt.F16Decode(most)
	}
	most := b.most * half(b.d)
	if b.minimum > 0 {
		most = max(most, b.minimum*half(b.d+2))
	}
	return most
}

// What f16 holds so that products are as exact as those of bf16.
const (
	mostWeight, leastWeight = 511, 1. / (1 << 12) // the largest of a matrix, lifted by lib/matrices.glsl
	mostInput, leastInput   = 1 << 15, 1. / (1 << 8)
	leastGated              = 1. / (1 << 9) // of what gate and up make of an input
)

// multiplies tells whether matrices take weights: chunks of 16 columns or more, in whole pieces,
// with numbers that f16 holds.
func multiplies(list ...*matrix) bool {
	for _, m := range list {
		if columns[m.format] < 16 || m.n%8 != 0 || !(m.largest.value() >= leastWeight && m.largest.value() <= mostWeight) {
			return false
		}
	}
	return true
}

// fit decides of a layer's experts whether matrices multiply them: all that kernels hold as f16,
// weights, inputs, and what SwiGLU makes of these, has to lie in its range.
func (l *layer) fit(c *weights.Config) {
	// A norm's output is at most its weight times sqrt(D); what gate and up leave has the limit and
	// the router's weight.
	input, gated := float64(l.largestNorm), float64(c.Limit*max(c.Limit, 1)*max(c.Factor, 1))
	if input < leastInput || input*math.Sqrt(float64(c.Hidden)) > mostInput || gated < leastGated || gated > mostInput ||
		!c.Normalise && c.Scoring == "sqrtsoftplus" {
		return
	}
	all := func(w1, w3, w2 *matrix) bool {
		return multiplies(w1, w3, w2) && input*min(w1.largest.value(), w3.largest.value()) >= leastGated
	}
	l.routedFit, l.sharedFit = all(&l.w1, &l.w3, &l.w2), all(&l.shared1, &l.shared3, &l.shared2)
}
