package projection

import (
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// fewKernel is proj_linear_tokens1to8 built for so many tokens a pass.
type fewKernel struct {
	tokens, rows, lanes int // TOKENS, ROWS, LANES
	k                   *vk.Kernel
}

// matrixKernel is proj_linear_cm or proj_linear_whole built for a tiling.
type matrixKernel struct {
	linearTiling
	k    *vk.Kernel
	pair *matrixKernel // of the same tiles, for whole ones; may be absent
}

// of is the kernel of these tiles for t tokens: tiles of pairs have no room for tokens
// that are not there.
func (m matrixKernel) of(t int) matrixKernel {
	if m.pair != nil && t >= m.bm {
		return *m.pair
	}
	return m
}

// linearPlan is how a number of tokens is computed.
type linearPlan struct {
	kernel     *vk.Kernel
	grid       [3]uint32
	splits     int  // parts of K, summed by a second launch where there are several
	splitSteps int  // of each
	step       int  // numbers of K in one
	whole      int  // rows that a launch before has in one part, with as many steps as there are; the grid has the others
	rows       int  // of a tile, where there are such
	norms      bool // kernel is one of those that may norm what they give, proj_linear_tokens1to8 and proj_linear_tokens8to32
}

const (
	// fewMatrix is the most tokens of proj_linear_tokens1to8 beside matrices. By count, an FP8 weight takes 3.5
	// instructions to decode and one for each token, and an H100 has time for 10 while
	// its memory brings the next.
	fewMatrix = 4
	// fewThin is the same beside proj_linear_tokens8to32, which takes as long for one token as
	// for eight: on an H100, where weights are FP8, longer than this for one and two
	// tokens, less for four.
	fewThin = 2
	// fewNarrow is the same where the tiles of matrices leave most of the device idle.
	fewNarrow = 8

	// fewAlike are the fewest rows of layers that are divided alike, fewSmall the most of
	// those of bf16 with two rows. See docs/design/linear.md.
	fewAlike = 1024
	fewSmall = 2048

	fewThreads    = 128 // invocations of a workgroup of proj_linear_tokens1to8
	fewPass       = 8   // most tokens of a pass
	fewPassMatrix = 4   // the same beside matrices
)

// fewest is the most tokens that proj_linear_tokens1to8 is for.
func (o *Linear) fewest() int {
	if !o.matrices() {
		few, _ := o.plainLimits()
		return few
	}
	if len(o.thin) > 0 {
		return fewThin
	}
	if opkit.CeilDiv(o.cfg.N, narrowRows)*o.cfg.Groups < o.cfg.Workgroups/2 {
		return fewNarrow
	}
	return fewMatrix
}

// fewDivision shares rows among invocations: ROWS of them to LANES, which read 16
// bytes of each at a time.
//
// Layers of a model are to have the same numbers, because layers with the same ones are
// one kernel, whose code a step finds in a cache when another layer ran it shortly before;
// elsewhere it comes from memory, which takes longer than the best numbers save. So those
// of FP8, and of bf16 with long rows, depend on K alone: as many lanes as leave each two
// rounds. Small bf16 layers, such as the compressors', have two rows, as smaller ones do;
// larger ones are divided so for one token only.
//
// Otherwise four rows halve what is read of x per weight, eight lanes read 128 bytes of a
// row at once; with fewer rows than fill the device, more lanes share them, and then fewer
// rows. One token of NVFP4, whose loads do not wait for each other, wants half the lanes
// for four rows.
func fewDivision(cfg LinearConfig, tokens int) (rows, lanes int) {
	all := cfg.N * cfg.Groups
	long := cfg.Weights == WeightBF16 && (tokens == 1 || all <= fewSmall) && cfg.K >= 2*fewThreads*cfg.Weights.perQuad()
	if (cfg.Weights.fp8() || long) && tokens <= fewPassMatrix && all >= fewAlike {
		for lanes = fewThreads; lanes > 8 && 2*lanes*cfg.Weights.perQuad() > cfg.K; lanes /= 2 {
		}
		if long && all <= fewSmall {
			return 2, lanes
		}
		return 4, lanes
	}
	const threads = 384 // of these, per workgroup that fills the device
	most := 8
	for most < fewThreads && most*cfg.Weights.perQuad() < cfg.K {
		most *= 2
	}
	for rows = 4; ; rows = 2 {
		for lanes = 8; lanes < most && cfg.N*cfg.Groups/rows*lanes < cfg.Workgroups*threads; lanes *= 2 {
		}
		if rows == 2 {
			return rows, lanes
		}
		if cfg.N*cfg.Groups/rows*lanes >= cfg.Workgroups*threads/2 && rows*tokens <= 16 {
			if cfg.Weights == WeightNVFP4 && tokens == 1 {
				lanes = max(8, lanes/2)
			}
			return rows, lanes
		}
	}
}

// leastForTiles are the fewest tokens that the tiles of matrices can be for.
func (o *Linear) leastForTiles() int {
	switch {
	case len(o.mid) > 0:
		return min(midWhole, o.midMost()) + 1
	case len(o.thin) > 0:
		return thinTokens + 1
	}
	return o.fewest() + 1
}

// buildFew makes proj_linear_tokens1to8 for 1, 2, 4, .. pass tokens a pass.
func (o *Linear) buildFew(spec opkit.Spec, formats []uint32, pass int) error {
	spec.Stem, o.few = "proj_linear_tokens1to8", map[int]fewKernel{}
	if o.mayNorm() {
		spec.Stem, spec.PushSize = "proj_linear_tokens1to8_norm", int(unsafe.Sizeof(projLinearNormPush{}))
	}
	if o.matrices() {
		spec.Variant = VariantCM
	}
	for tokens := 1; tokens <= pass; tokens *= 2 {
		rows, lanes := fewDivision(o.cfg, tokens)
		spec.Constants = append(append([]uint32(nil), formats...), opkit.Words(tokens, rows, lanes)...)
		if o.mayNorm() {
			spec.Constants = append(spec.Constants, o.cfg.normConstants()...)
		}
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		o.few[tokens] = fewKernel{tokens, rows, lanes, k}
		if o.cfg.MaxTokens > 0 && tokens >= o.cfg.MaxTokens {
			break
		}
	}
	return nil
}

// plan picks the kernel for t tokens, with so many f32 of scratch memory.
func (o *Linear) plan(t, scratch int) linearPlan {
	p := linearPlan{splits: 1}
	cfg := o.cfg
	if few := o.fewest(); t > few && len(o.thin) > 0 && o.thinBeats(t) {
		return o.planThin(t)
	} else if t <= few {
		pass := 1
		for _, more := o.few[pass*2]; pass < t && more; _, more = o.few[pass*2] {
			pass *= 2
		}
		f := o.few[pass]
		p.kernel, p.norms = f.k, o.mayNorm()
		p.grid = [3]uint32{uint32(opkit.CeilDiv(cfg.N, fewThreads/f.lanes*f.rows)), uint32(opkit.CeilDiv(t, pass)), uint32(cfg.Groups)}
		return p
	}
	if !o.matrices() {
		return o.planPlain(t, scratch)
	}
	if d, splits, ok := o.midFor(t, scratch); ok {
		p.kernel, p.step = d.k, d.round()
		p.cut(cfg.K, splits)
		p.grid = [3]uint32{uint32(opkit.CeilDiv(t, d.tokens)), uint32(o.midTiles(d.linearMid) / cfg.Groups), uint32(cfg.Groups * p.splits)}
		return p
	}
	m := o.tilingFor(t, scratch).of(t)
	p.kernel, p.step = m.k, m.span()
	p.cut(cfg.K, o.split(m, t, scratch))
	p.grid = [3]uint32{uint32(opkit.CeilDiv(t, m.bm)), uint32(o.rowTiles(m.bn)), uint32(cfg.Groups * p.splits)}
	if whole, parts := o.tail(m.linearTiling, t, scratch); parts > 1 {
		p.cut(cfg.K, parts)
		p.whole, p.rows = whole, m.bn
		p.grid[1], p.grid[2] = p.grid[1]-uint32(whole/m.bn), uint32(p.splits)
	}
	return p
}

// cut divides k numbers into about so many parts of whole steps, none of them empty.
func (p *linearPlan) cut(k, splits int) {
	steps := opkit.CeilDiv(k, p.step)
	p.splitSteps = opkit.CeilDiv(steps, splits)
	p.splits = opkit.CeilDiv(steps, p.splitSteps)
}

// rowTiles is how many tiles of so many rows a group has. They begin at multiples of
// their size among the rows of all groups, which a group need not.
func (o *Linear) rowTiles(rows int) int {
	n := opkit.CeilDiv(o.cfg.N, rows)
	if o.cfg.Groups > 1 && o.cfg.N%rows != 0 {
		n++
	}
	return n
}

// workgroups is how many tiles t tokens make.
func (o *Linear) workgroups(m linearTiling, t int) int {
	return opkit.CeilDiv(t, m.bm) * o.rowTiles(m.bn) * o.cfg.Groups
}

// tilingFor picks the largest tiles that t tokens fill by more than half and of which
// there are enough for half of the device, with K cut into parts; if there are none,
// the smallest tiles that hold all tokens, or 64 of them: smaller ones would decode the
// weights more often. (128 tiles of 128 x 128 in two parts each, on an H100 with room
// for 264, take 0.55 of the time of 512 tiles of 64 x 64.)
func (o *Linear) tilingFor(t, scratch int) matrixKernel {
	last := o.matrix[len(o.matrix)-1]
	for i := len(o.matrix) - 1; i >= 0 && last.bm < min(t, 64); i-- {
		last = o.matrix[i]
	}
	for _, m := range o.matrix {
		parts := o.split(m, t, scratch)
		if m.bm > last.bm && m.bm < 2*t && o.workgroups(m.linearTiling, t)*parts >= m.fill(o.cfg.Workgroups)/2 {
			return m
		}
	}
	return last
}

// split is into how many parts K is cut: as many as fill the device, where the tiles
// fill less than half of it. A part is to have at least four steps, and writing and
// reading the f32 parts is not to outweigh reading the weights.
//
// By pairs of steps, so many tokens are bound by their products, and what parts cost
// is weighed as that of the last tiles.
func (o *Linear) split(m matrixKernel, t, scratch int) int {
	tiles, fill, k := o.workgroups(m.linearTiling, t), m.fill(o.cfg.Workgroups), o.cfg.K
	if !m.of(t).pairs || tiles*2 > fill {
		return o.splitFor(tiles, fill, opkit.CeilDiv(k, m.bk), t, scratch)
	}
	least, parts := k, 1
	for p := 2; p <= maxSplits && p*tiles <= fill && 4*p*m.bk <= k && p*t*o.cfg.N*o.cfg.Groups <= scratch; p++ {
		if cost := partsCost(tiles, fill, k, p); cost < least {
			least, parts = cost, p
		}
	}
	return parts
}

// splitFor is split for so many tiles where fill workgroups fill the device.
func (o *Linear) splitFor(tiles, fill, steps, t, scratch int) int {
	if tiles*2 > fill {
		return 1
	}
	rows := o.cfg.N * o.cfg.Groups
	return max(1, min(fill/tiles, steps/4, maxSplits, o.cfg.Weights.Bytes(1, o.cfg.K)/(4*t), scratch/(t*rows)))
}

// maxSplits bounds the parts that one invocation adds up.
const maxSplits = 16

func (o *Linear) checkGrid(op string, p linearPlan) error {
	for i, limit := range o.dev.Caps().MaxWorkgroupCount {
		if p.grid[i] > limit {
			return pkg.Wrong(op, "Out", p.grid, "at most %v workgroups on this device", o.dev.Caps().MaxWorkgroupCount)
		}
	}
	return nil
}
