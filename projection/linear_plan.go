package projection

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// fewKernel is proj_linear_few built for so many tokens a pass.
type fewKernel struct {
	tokens, rows, lanes int // TOKENS, ROWS, LANES
	k                   *vk.Kernel
}

// matrixKernel is proj_linear_cm built for a tiling.
type matrixKernel struct {
	linearTiling
	k *vk.Kernel
}

// linearPlan is how a number of tokens is computed.
type linearPlan struct {
	kernel     *vk.Kernel
	grid       [3]uint32
	splits     int // parts of K, summed by a second launch where there are several
	splitSteps int
}

const (
	// fewPlain is the most tokens for which builds without matrices read the weights
	// once for each pass of up to 8 tokens instead of once for 64 with less to do at a
	// time.
	fewPlain = 16
	// fewMatrix is the same beside matrices. By count, an FP8 weight takes 3.5
	// instructions to decode and one for each token, and an H100 has time for 10 while
	// its memory brings the next.
	fewMatrix = 4
	// fewNarrow is the same where the tiles of matrices leave most of the device idle.
	fewNarrow = 8

	fewThreads    = 128 // invocations of a workgroup of proj_linear_few
	fewPass       = 8   // most tokens of a pass
	fewPassMatrix = 4   // the same beside matrices
)

// fewest is the most tokens that proj_linear_few is for.
func (o *Linear) fewest() int {
	if !o.matrices() {
		return fewPlain
	}
	if opkit.CeilDiv(o.cfg.N, narrowRows)*o.cfg.Groups < o.cfg.Workgroups/2 {
		return fewNarrow
	}
	return fewMatrix
}

// fewDivision shares rows among invocations: ROWS of them to LANES, which read 16
// bytes of each at a time. Four rows halve what is read of x per weight, eight lanes
// read 128 bytes of a row at once; with fewer rows than fill the device, more lanes
// share them, and then fewer rows.
func fewDivision(cfg LinearConfig, tokens int) (rows, lanes int) {
	const threads = 384 // of these, per workgroup that fills the device
	most := 8
	for most < fewThreads && most*cfg.Weights.perQuad() < cfg.K {
		most *= 2
	}
	for rows = 4; ; rows = 2 {
		for lanes = 8; lanes < most && cfg.N*cfg.Groups/rows*lanes < cfg.Workgroups*threads; lanes *= 2 {
		}
		if rows == 2 || cfg.N*cfg.Groups/rows*lanes >= cfg.Workgroups*threads/2 && rows*tokens <= 16 {
			return rows, lanes
		}
	}
}

// buildFew makes proj_linear_few for 1, 2, 4 and, without matrices, 8 tokens a pass.
func (o *Linear) buildFew(spec opkit.Spec, formats []uint32) error {
	spec.Stem, o.few = "proj_linear_few", map[int]fewKernel{}
	pass := fewPass
	if o.matrices() {
		spec.Variant, pass = VariantCM, fewPassMatrix
	}
	for tokens := 1; tokens <= pass; tokens *= 2 {
		rows, lanes := fewDivision(o.cfg, tokens)
		spec.Constants = append(append([]uint32(nil), formats...), opkit.Words(tokens, rows, lanes)...)
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
	if t <= o.fewest() {
		pass := 1
		for _, more := o.few[pass*2]; pass < t && more; _, more = o.few[pass*2] {
			pass *= 2
		}
		f := o.few[pass]
		p.kernel = f.k
		p.grid = [3]uint32{uint32(opkit.CeilDiv(cfg.N, fewThreads/f.lanes*f.rows)), uint32(opkit.CeilDiv(t, pass)), uint32(cfg.Groups)}
		return p
	}
	if !o.matrices() {
		p.kernel = o.tiles
		p.grid = [3]uint32{uint32(opkit.CeilDiv(t, 64)), uint32(opkit.CeilDiv(cfg.N, 64)), uint32(cfg.Groups)}
		return p
	}
	m := o.tilingFor(t)
	p.kernel = m.k
	steps := opkit.CeilDiv(cfg.K, m.bk)
	p.splits, p.splitSteps = o.split(m.linearTiling, t, steps, scratch), steps
	if p.splits > 1 {
		p.splitSteps = opkit.CeilDiv(steps, p.splits)
		p.splits = opkit.CeilDiv(steps, p.splitSteps) // no part is empty
	}
	p.grid = [3]uint32{uint32(opkit.CeilDiv(t, m.bm)), uint32(opkit.CeilDiv(cfg.N, m.bn)), uint32(cfg.Groups * p.splits)}
	return p
}

// workgroups is how many tiles t tokens make.
func (o *Linear) workgroups(m linearTiling, t int) int {
	return opkit.CeilDiv(t, m.bm) * opkit.CeilDiv(o.cfg.N, m.bn) * o.cfg.Groups
}

// tilingFor picks the largest tiles that t tokens fill by more than half and that are
// enough for three quarters of the device; if there are none, the smallest tiles that
// hold all tokens, or 64 of them: smaller ones would decode the weights more often.
func (o *Linear) tilingFor(t int) matrixKernel {
	last := o.matrix[len(o.matrix)-1]
	for i := len(o.matrix) - 1; i >= 0 && last.bm < min(t, 64); i-- {
		last = o.matrix[i]
	}
	for _, m := range o.matrix {
		if m.bm > last.bm && m.bm < 2*t && o.workgroups(m.linearTiling, t) >= m.fill(o.cfg.Workgroups)*3/4 {
			return m
		}
	}
	return last
}

// split is into how many parts K is cut: as many as fill the device, where the tiles
// fill less than half of it. A part is to have at least four steps, and writing and
// reading the f32 parts is not to outweigh reading the weights.
func (o *Linear) split(m linearTiling, t, steps, scratch int) int {
	tiles, fill := o.workgroups(m, t), m.fill(o.cfg.Workgroups)
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
