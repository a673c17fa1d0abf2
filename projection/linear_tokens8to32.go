package projection

import (
	"errors"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// tokens8to32 is proj_linear_tokens8to32: matrices whose operands come from memory to registers, 16
// or 32 rows and 8, 16 or 32 tokens a workgroup. It covers few tokens of every layer, and more of
// layers with few rows.
type tokens8to32 struct {
	*linearLayer
	beyond    *tokens32to64 // takes over; nil: tiles do
	divisions []division8to32
}

// division8to32 is how the shader divides its work; the names are those of the shader.
type division8to32 struct {
	m, n, k  int // shape of a matrix product
	subgroup int // invocations of a subgroup
	tiles    int // of m rows, of a workgroup
	parts    int // subgroups of a tile
	tokens   int
	ahead    int
	lanes    int
	kernel   *opkit.Later
}

func (d division8to32) constants() []uint32 {
	return opkit.Constants(d.teams()*d.subgroup, d.subgroup, d.m, d.n, d.k, d.tokens, d.ahead, d.lanes, d.tiles)
}

// teams returns the number of subgroups of a workgroup.
func (d division8to32) teams() int { return d.tiles * d.parts }

// sharedBytes is the size of the sums that meet, and of what a norm has beside them: the
// sums of squares, of as many numbers, and who came last.
func (d division8to32) sharedBytes(norm bool) int {
	quads, squares := max(d.tokens, d.n)*(d.m/4+1), 1
	if norm {
		quads, squares = max(quads, 32), d.teams()
	}
	return (d.teams()*quads+squares)*16 + 4
}

// fits tells whether the device has the memory and the invocations.
func (l *linearLayer) fits8to32(d division8to32) bool {
	return d.teams()*d.subgroup <= int(l.caps.MaxWorkgroupInvocations) && d.sharedBytes(l.cfg.Norm != 0) <= int(l.caps.SharedMemory)
}

// fit makes divisions for 8, 16 and 32 tokens, as far as the device and the profile go.
func (k *tokens8to32) fit(l *linearLayer, next kernelKind) (bool, error) {
	k.linearLayer = l
	k.beyond, _ = next.(*tokens32to64)
	p := &l.tune.Tokens8to32
	if !l.runs("proj_linear_tokens8to32") {
		return false, nil
	}
	divide := l.divide8to32
	if l.cfg.Invariant {
		divide = l.ordered8to32
	}
	for tokens := p.LeastPass; k.covers(tokens/2 + 1); tokens *= 2 {
		d, err := divide(tokens)
		if errors.Is(err, vk.ErrMissingFeature) {
			break
		} else if err != nil {
			return false, err
		}
		if tokens > p.LeastPass && d.ahead*d.lanes*l.format.quad > p.MostStepMany {
			break
		}
		k.divisions = append(k.divisions, d)
		if l.enough(tokens) {
			break
		}
	}
	return len(k.divisions) > 0, nil
}

// divide8to32 divides a layer for the tokens of a workgroup, at most the columns of two
// products. More subgroups share K while rows are too few to fill the device and each has a step of
// its own or two. Layers that are alike have as many, if they have a step for each and the last
// workgroups of many tokens fill half the device. Where these are twice the subgroups worth having,
// half of them go to a second tile, which shares what is read of x: for 16 tokens wo_a takes 8 %
// less. With fewer subgroups a second tile costs up to a fifth. A step is Ahead chunks, or one
// where that leaves less undone.
//
// Errors: vk.ErrMissingFeature when no shape of matrix product suits; those of a laneFinder.
func (l *linearLayer) divide8to32(tokens int) (division8to32, error) {
	p, cut := &l.tune.Tokens8to32, &l.tune.Parts
	return fitMatrix(l, func(s vk.CoopMatShape, lanes int) (d division8to32, ok bool) {
		d = division8to32{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(l.caps.MinSubgroupSize),
			tiles: 1, parts: p.LeastParts, tokens: tokens, ahead: l.tune.Ahead, lanes: lanes}
		chunk := lanes * l.format.quad
		if tokens > 2*d.n || !l.fits8to32(d) || !l.format.spans(chunk) {
			return d, false
		}
		tiles, chunks := opkit.CeilDiv(l.cfg.N, d.m)*l.cfg.Groups, opkit.CeilDiv(l.cfg.K, chunk)
		busy, alike := p.Busy, p.AlikeParts
		if tokens > p.LeastPass {
			alike = cut.Most
			if fill := l.cfg.Workgroups; tiles > fill {
				busy = p.BusyMany
				if last := (tiles-1)%fill + 1; last*tuning.EnoughFill < fill {
					alike = 0
				}
			}
		}
		for more := d; d.parts < cut.Most && tiles*d.parts < l.cfg.Workgroups*busy && chunks >= cut.LeastSteps*d.parts; d = more {
			if more.parts *= 2; !l.fits8to32(more) {
				break
			}
		}
		if same := d; l.format.alike == alikeAlways && alike > 0 && chunks >= 2*alike {
			if same.parts = alike; l.fits8to32(same) {
				d = same
			}
		}
		if !l.cfg.Invariant && tiles*d.parts >= 2*p.Busy*l.cfg.Workgroups {
			d.tiles, d.parts = 2, d.parts/2
		}
		step := d.ahead * chunk
		less := opkit.CeilDiv(chunks, d.parts) < d.ahead*opkit.CeilDiv(chunks, d.ahead*d.parts)
		if less || !l.format.spans(step) || step > tuning.MostUnrolled {
			d.ahead = 1
		}
		return d, true
	})
}

// ordered8to32 is divide8to32 for an invariant layer.
func (l *linearLayer) ordered8to32(tokens int) (division8to32, error) {
	d, err := l.order()
	if d.tokens = tokens; err == nil && (tokens > 2*d.n || !l.fits8to32(d)) {
		return d, vk.ErrMissingFeature
	}
	return d, err
}

func (k *tokens8to32) reach() int {
	p := &k.tune.Tokens8to32
	if k.covers(p.Most) {
		return p.Most
	}
	return p.LeastPass
}

// covers is true for one pass of the fewest tokens, and beyond it where all workgroups together
// read so little of x that this takes less time than the second launch of proj_linear_tokens32to64.
// That is half as much where several passes read weights of two bytes again. Up to Most tokens it
// is also true where they read at most CacheRate times the weights' bytes: a cache brings those
// while memory brings the weights, but not the 3.6 times of NVFP4. Of an invariant layer, which
// cuts no K, it is true where that kernel would leave much of the device idle.
func (k *tokens8to32) covers(T int) bool {
	p := &k.tune.Tokens8to32
	switch {
	case k.beyond == nil:
		return k.cfg.Invariant || T <= p.Most
	case k.cfg.Invariant:
		return T <= p.Most || k.beyond.idle(T)
	case T <= p.LeastPass:
		return true
	}
	x, reads := k.rowTiles(k.beyond.divisions[0].m)*k.cfg.Groups*opkit.RoundUp(T, p.Most)*k.cfg.K*2, p.Reads
	if T > 2*p.Most && k.cfg.Weights.bytes(1, k.cfg.K) > k.cfg.K {
		reads /= 2
	}
	return T <= k.tune.Tokens32to64.Most() && x <= reads ||
		T <= p.Most && x <= tuning.CacheRate*k.cfg.Weights.bytes(k.rows(), k.cfg.K)
}

func (k *tokens8to32) build(int) {
	for i, d := range k.divisions {
		spec := k.spec("proj_linear_tokens8to32", append(d.constants(), k.cfg.normConstants()...)...)
		spec.Subgroup, spec.Push = uint32(d.subgroup), projLinearNormPush{}
		spec.Divisible = k.cfg.Invariant // launches of any number of tokens
		k.divisions[i].kernel = k.later(spec)
	}
}

// plan takes workgroups of no more tokens than there are, as long as they are not too few for the
// device. Those of 32 leave room for one workgroup on a multiprocessor, and are only for all tokens
// at once.
func (k *tokens8to32) plan(T, _ int) linearPlan {
	p := &k.tune.Tokens8to32
	d := k.divisions[0]
	tiles := k.rowTiles(d.m)
	for _, more := range k.divisions[1:] {
		once := more.tokens <= p.Most || T <= more.tokens
		if T > d.tokens && once && tiles*k.cfg.Groups*opkit.CeilDiv(T, more.tokens) >= k.cfg.Workgroups/p.LeastFill {
			d = more
		}
	}
	return linearPlan{kernel: d.kernel, norms: true, splits: 1,
		grid: [3]uint32{uint32(opkit.CeilDiv(tiles, d.tiles)), uint32(opkit.CeilDiv(T, d.tokens)), uint32(k.cfg.Groups)}}
}
