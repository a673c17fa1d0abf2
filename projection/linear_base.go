package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

const (
	// plainFew is the most tokens for which builds without matrices take proj_linear_tokens1to8 in a
	// layer of many rows; plainFewSmall is the same of fewer rows than plainMany, where
	// proj_linear_tokens8to16 has to cut K and needs a second launch, and of layers with a norm,
	// which only that kernel has.
	plainFew      = 4
	plainFewSmall = 16
	plainMany     = 4096
	// plainSeveral is the most tokens of proj_linear_tokens8to16 in a layer of many rows,
	// plainSeveralSmall in others.
	plainSeveral      = 48
	plainSeveralSmall = 64

	severalLeast = 8 // tokens of a pass of proj_linear_tokens8to16, least and most
	severalMost  = 16
	severalRows  = 4
	severalLanes = 8
)

// severalKernel is proj_linear_tokens8to16 built for so many tokens a pass.
type severalKernel struct {
	tokens, rows, lanes int // TOKENS, ROWS, LANES
	k                   *vk.Kernel
}

// severalConstants are those of proj_linear_tokens8to16.comp after the formats. With most tokens the
// two halves of a quad of FP8 weights take no loop, which gains 8 %; elsewhere it gains nothing.
func severalConstants(f WeightFormat, tokens int) []uint32 {
	unroll := 1
	if f.fp8() && tokens == severalMost {
		unroll = 2
	}
	return opkit.Words(tokens, severalRows, severalLanes, unroll)
}

// plainTile is how proj_linear divides its work; the letters are those of the shader.
type plainTile struct {
	tokens, rows, quads int     // BM, BN, QUADS
	rate                float64 // at which it multiplies on a full device, relative to the first
}

// plainTiles are the tiles that there are, largest first. What every device has, 128
// invocations and 16 KiB of shared memory, is enough for all but the first.
var plainTiles = []plainTile{{128, 128, 2, 1}, {64, 128, 2, 0.92}, {64, 64, 1, 0.8}}

const plainStep = 16 // numbers of a step of proj_linear

func (p plainTile) threads() int     { return p.tokens / 8 * p.rows / (4 * p.quads) }
func (p plainTile) sharedBytes() int { return 4 * plainStep * (p.tokens + p.rows) }

// fits tells whether a device has the invocations and the shared memory.
func (p plainTile) fits(caps *vk.Caps) bool {
	return p.threads() <= int(caps.MaxWorkgroupInvocations) && p.sharedBytes() <= int(caps.SharedMemory)
}

// constants are those of proj_linear.comp after the formats.
func (p plainTile) constants(short bool) []uint32 {
	unroll := 8
	if short {
		unroll = 1
	}
	return opkit.Words(p.tokens, p.rows, p.quads, p.threads(), unroll)
}

// plainKernel is proj_linear built for a tile.
type plainKernel struct {
	plainTile
	k *vk.Kernel
}

// plainLimits are the most tokens of proj_linear_tokens1to8 and of proj_linear_tokens8to16 where there are
// no matrices. Where kernels are to be short, the larger passes of the former are left out.
func (o *Linear) plainLimits() (few, several int) {
	few, several = plainFew, plainSeveral
	if !o.short && o.cfg.N*o.cfg.Groups < plainMany {
		few, several = plainFewSmall, plainSeveralSmall
	}
	if o.mayNorm() {
		few = plainFewSmall
	}
	return few, several
}

// buildPlain makes the kernels of the builds without matrices.
func (o *Linear) buildPlain(spec opkit.Spec, formats []uint32) error {
	few, several := o.plainLimits()
	if err := o.buildFew(spec, formats, min(few, fewPass)); err != nil {
		return err
	}
	if most := o.cfg.MaxTokens; most == 0 || most > few {
		if err := o.buildSeveral(spec, formats); err != nil {
			return err
		}
		if most == 0 || most > several {
			if err := o.buildPlainTiles(spec, formats); err != nil {
				return err
			}
		}
	}
	return o.buildSum()
}

// buildSeveral makes proj_linear_tokens8to16 for 8 and 16 tokens a pass, or, where kernels are to be
// short, for 8 only.
func (o *Linear) buildSeveral(spec opkit.Spec, formats []uint32) error {
	spec.Stem = "proj_linear_tokens8to16"
	for tokens := severalLeast; tokens <= severalMost; tokens *= 2 {
		spec.Constants = append(append([]uint32(nil), formats...), severalConstants(o.cfg.Weights, tokens)...)
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		o.several = append(o.several, severalKernel{tokens, severalRows, severalLanes, k})
		if o.short || o.cfg.MaxTokens > 0 && tokens >= o.cfg.MaxTokens {
			break
		}
	}
	return nil
}

// buildPlainTiles makes proj_linear for the tiles that the device has room for, or, where kernels
// are to be short, for the smallest only.
func (o *Linear) buildPlainTiles(spec opkit.Spec, formats []uint32) error {
	spec.Divisible = true
	for i, t := range plainTiles {
		if !t.fits(o.dev.Caps()) || o.short && i < len(plainTiles)-1 {
			continue
		}
		spec.Constants = append(append([]uint32(nil), formats...), t.constants(o.short)...)
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		o.plain = append(o.plain, plainKernel{t, k})
	}
	return nil
}

// planPlain picks the kernel for t tokens, more than proj_linear_tokens1to8 is for, where there are
// no matrices.
func (o *Linear) planPlain(t, scratch int) linearPlan {
	if _, several := o.plainLimits(); t <= several {
		return o.planSeveral(t, scratch)
	}
	p := linearPlan{step: plainStep}
	var best plainKernel
	least := math.Inf(1)
	for _, x := range o.plain {
		for parts := 1; parts <= maxSplits && (parts == 1 || parts*t*o.cfg.N*o.cfg.Groups <= scratch && 4*parts*plainStep <= o.cfg.K); parts++ {
			if cost := o.plainCost(x.plainTile, t, parts); cost < least {
				least, best = cost, x
				p.cut(o.cfg.K, parts)
			}
		}
	}
	p.kernel = best.k
	p.grid = [3]uint32{uint32(opkit.CeilDiv(t, best.tokens)), uint32(opkit.CeilDiv(o.cfg.N, best.rows)), uint32(o.cfg.Groups * p.splits)}
	return p
}

// planSeveral is planPlain for proj_linear_tokens8to16: in passes of as few tokens as hold all, or of
// the most. K is cut into parts where the rows leave much of the device idle.
func (o *Linear) planSeveral(t, scratch int) linearPlan {
	s := o.several[0]
	if s.tokens < t {
		s = o.several[len(o.several)-1]
	}
	p := linearPlan{kernel: s.k, step: s.lanes * o.cfg.Weights.perQuad()}
	down, passes := opkit.CeilDiv(o.cfg.N, fewThreads/s.lanes*s.rows), opkit.CeilDiv(t, s.tokens)
	p.cut(o.cfg.K, o.splitFor(down*passes*o.cfg.Groups, 2*o.cfg.Workgroups, opkit.CeilDiv(o.cfg.K, p.step), t, scratch))
	p.grid = [3]uint32{uint32(down), uint32(passes), uint32(o.cfg.Groups * p.splits)}
	return p
}

// plainCost is about how long tiles in so many parts of K take, with their sums, in multiply-adds
// that a compute unit makes meanwhile; an H100's makes 155000 in a microsecond. Tiles are dealt
// out among the units; a unit with few invocations waits more. Parts have to gain more than a
// sixteenth.
func (o *Linear) plainCost(x plainTile, t, parts int) float64 {
	const (
		full   = 512    // invocations with which a unit waits little
		launch = 470000 // the second launch
		moved  = 65     // for each number of a part that is written and read
	)
	units := max(1, o.cfg.Workgroups/2)
	tiles := opkit.CeilDiv(t, x.tokens) * opkit.CeilDiv(o.cfg.N, x.rows) * o.cfg.Groups * parts
	steps := opkit.CeilDiv(opkit.CeilDiv(o.cfg.K, plainStep), parts)
	busy := min(1, 0.26+1.28*float64(tiles*x.threads())/float64(units*full))
	cost := float64(opkit.CeilDiv(tiles, units)*x.tokens*x.rows*steps*plainStep) / (x.rate * busy)
	if parts > 1 {
		cost += launch + moved*float64(parts*t*o.cfg.N*o.cfg.Groups)/float64(units)
		cost *= 16. / 15
	}
	return cost
}
