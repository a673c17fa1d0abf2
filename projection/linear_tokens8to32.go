package projection

import (
	"slices"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// linearThin is how proj_linear_tokens8to32 divides its work; the names are those of the
// shader.
type linearThin struct {
	m, n, k  int // shape of a matrix product
	subgroup int // invocations of a subgroup
	parts    int // subgroups of a workgroup
	tokens   int
	ahead    int
	lanes    int
}

const (
	// thinTokens are the tokens up to which proj_linear_tokens8to32 is the fastest with
	// matrices for every layer.
	thinTokens = 16
	// thinMost are the most tokens of a workgroup of it.
	thinMost = 32
	// thinLeast are the fewest.
	thinLeast = 8
	// thinAlike are the subgroups of a workgroup of FP8 layers for up to thinLeast tokens.
	thinAlike = 8
	// thinReads are the bytes of x, counted for each tile of 16 rows, up to which that
	// is so: an H100's second-level cache brings them in 15 us.
	thinReads = 80 << 20
)

func (d linearThin) constants() []uint32 {
	return opkit.Words(d.parts*d.subgroup, d.subgroup, d.m, d.n, d.k, d.tokens, d.ahead, d.lanes)
}

// sharedBytes is the size of the sums that meet, and of what a norm has beside them: the
// sums of squares, of as many numbers, and who came last.
func (d linearThin) sharedBytes(norm bool) int {
	quads, squares := max(d.tokens, d.n)*(d.m/4+1), 1
	if norm {
		quads, squares = max(quads, 32), d.parts
	}
	return (d.parts*quads+squares)*16 + 4
}

// fits tells whether a device has the memory and the invocations.
func (d linearThin) fits(caps *vk.Caps, norm bool) bool {
	return d.parts*d.subgroup <= int(caps.MaxWorkgroupInvocations) && d.sharedBytes(norm) <= int(caps.SharedMemory)
}

// laneFinder is layoutLanes of what a device has for a variant; 0, too, where it tells
// nothing.
type laneFinder func(m, n, k, subgroup int) int

// thinner finds the division of a layer for up to so many tokens.
type thinner func(caps *vk.Caps, element string, cfg LinearConfig, tokens int, lanes laneFinder) (linearThin, error)

// thinDivision takes four subgroups a workgroup, and more where the rows are too few
// to fill the device, up to sixteen, as long as each has a step of its own or two. On
// an H100 that has work for 16 subgroups on every multiprocessor, of which each waits
// for 2 or 4 KiB; for 12 where there are more than 8 tokens and rows for more than two
// workgroups, which read x from the second-level cache all the time as it is. FP8 layers
// take eight for up to 8 tokens where each of them has two chunks: those of a step are one
// kernel so, whose code then need not come from memory for each of them (see
// docs/design/linear.md). A step is two chunks, or one where that leaves less undone. Tokens
// are the columns of two products at most.
//
// Errors: vk.ErrMissingFeature when no shape of matrix product suits.
func thinDivision(caps *vk.Caps, element string, cfg LinearConfig, tokens int, lanes laneFinder) (linearThin, error) {
	return opkit.FitMatrix(caps, element, func(s vk.CoopMatShape) (linearThin, bool) {
		d := linearThin{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize), parts: 4, tokens: tokens, ahead: 2}
		for _, v := range []int{d.m, d.n, d.k} {
			if v != 8 && v != 16 {
				return d, false
			}
		}
		norm := cfg.Norm != 0
		if d.lanes = lanes(d.m, d.n, d.k, d.subgroup); d.lanes == 0 || d.tokens > 2*d.n || !d.fits(caps, norm) {
			return d, false
		}
		tiles, chunks := opkit.CeilDiv(cfg.N, d.m)*cfg.Groups, opkit.CeilDiv(cfg.K, d.lanes*cfg.Weights.perQuad())
		busy := 8
		if tokens > thinLeast && tiles > cfg.Workgroups {
			busy = 6
		}
		for more := d; d.parts < 16 && tiles*d.parts < cfg.Workgroups*busy && chunks >= 4*d.parts; d = more {
			if more.parts *= 2; !more.fits(caps, norm) {
				break
			}
		}
		if alike := d; cfg.Weights.fp8() && tokens <= thinLeast && chunks >= 2*thinAlike {
			if alike.parts = thinAlike; alike.fits(caps, norm) {
				d = alike
			}
		}
		block := ScaleBlock / (d.lanes * 16)          // chunks of FP8 weights
		long := 2*d.lanes*cfg.Weights.perQuad() > 256 // more than compilers like to unroll
		if opkit.CeilDiv(chunks, d.parts) < 2*opkit.CeilDiv(chunks, 2*d.parts) || cfg.Weights.fp8() && block < 2 || long {
			d.ahead = 1
		}
		return d, !cfg.Weights.fp8() || block > 0
	})
}

// thinKernel is proj_linear_tokens8to32 built for a division.
type thinKernel struct {
	linearThin
	k *vk.Kernel
}

// laneFinder is the one of this device and variant; the error tells what went wrong
// where it found no lanes.
func (o *Linear) laneFinder() (laneFinder, *error) {
	var failed error
	return func(m, n, k, subgroup int) int {
		words, err := pkg.MatrixLayout(o.dev, o.variant, m, n, k, subgroup)
		if err != nil {
			failed = err
		}
		return layoutLanes(m, n, k, subgroup, words)
	}, &failed
}

// buildThin makes proj_linear_tokens8to32 for workgroups of 8, 16 and 32 tokens, where the
// device can run it; elsewhere the kernels for fewer and for more tokens take its
// place. A CPU, whose compiler is slow with long kernels, makes do with 8 where a step is
// long (of NVFP4), and takes one chunk a step for more, and four subgroups: one kernel for
// layers of all sizes.
func (o *Linear) buildThin(spec opkit.Spec, formats []uint32, find thinner) error {
	spec.Stem, spec.PushSize = "proj_linear_tokens8to32", int(unsafe.Sizeof(projLinearNormPush{}))
	caps := o.dev.Caps()
	if caps.Missing(shaders.Requires(opkit.Stem(spec.Stem, o.variant))) != nil {
		return nil
	}
	lanes, failed := o.laneFinder()
	for tokens := thinLeast; tokens <= thinMost; tokens *= 2 {
		if tokens > thinTokens && !o.thinBeats(thinTokens+1) {
			break
		}
		d, err := find(caps, matrixElement[o.variant], o.cfg, tokens, lanes)
		if err != nil {
			return *failed
		}
		if cpu := o.dev.Adapter().Type == vk.TypeCPU; cpu && tokens > thinLeast {
			if d.ahead*d.lanes*o.cfg.Weights.perQuad() > ScaleBlock {
				break
			}
			d.ahead, d.parts = 1, 4
		}
		spec.Subgroup, spec.Constants = uint32(d.subgroup), slices.Concat(formats, d.constants(), o.cfg.normConstants())
		k, err := pkg.Kernel(o.dev, spec)
		if err != nil {
			return err
		}
		o.thin = append(o.thin, thinKernel{d, k})
		if o.cfg.MaxTokens > 0 && tokens >= o.cfg.MaxTokens {
			break
		}
	}
	return nil
}

// thinBeats tells whether proj_linear_tokens8to32 is for t tokens: always up to 16, and up to
// midTokens where its tiles of 16 rows read so little of x that this takes less time
// than the second launch which proj_linear_tokens32to64 needs for few rows.
func (o *Linear) thinBeats(t int) bool {
	if t <= thinTokens || len(o.mid) == 0 {
		return t <= thinTokens
	}
	return t <= midTokens && o.rowTiles(o.mid[0].m)*o.cfg.Groups*opkit.RoundUp(t, thinTokens)*o.cfg.K*2 <= thinReads
}

// planThin is the launch for t tokens: by workgroups of no more tokens than are there,
// as many as leave workgroups for a quarter of the device, and of 32 only for all
// tokens at once: those leave room for one workgroup on a multiprocessor.
func (o *Linear) planThin(t int) linearPlan {
	d, tiles := o.thin[0], o.rowTiles(o.thin[0].m)
	for _, more := range o.thin[1:] {
		once := more.tokens <= thinTokens || t <= more.tokens
		if t > d.tokens && once && tiles*o.cfg.Groups*opkit.CeilDiv(t, more.tokens) >= o.cfg.Workgroups/4 {
			d = more
		}
	}
	return linearPlan{kernel: d.k, norms: true, splits: 1, grid: [3]uint32{uint32(tiles), uint32(opkit.CeilDiv(t, d.tokens)), uint32(o.cfg.Groups)}}
}
