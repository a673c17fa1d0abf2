package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	for name, formats := range map[string][]projection.ActivationFormat{
		"per_token_group_fp8_quant": {projection.ActivationFP8, projection.ActivationFP8Packed, projection.ActivationMXFP8},
		"scaled_fp4_quant":          {projection.ActivationNVFP4},
	} {
		axes := map[string]string{"x": "P", "codes": ".P", "scales": "..P"}
		if name == "scaled_fp4_quant" {
			axes["scales"] = ".P"
		}
		Register(Op{
			Name: name, Class: ClassExact, Variants: opkit.Builds("proj_quantise"),
			Of:     Of{"projection.Quantise", "proj_quantise", "hidden.quantise, q_lora.quantise, o.quantise, o_lora.quantise"},
			Random: with(randomQuantise, formats), Ref: refBy(fields, refQuantise), Bind: bindBy(fields, bindQuantise),
			Compare: exactly("codes", "scales"),
			Timing:  Timing{Suite: "memory", Sizes: with(quantiseSizes, formats), Axes: axes},
		})
	}
}

// quantiseKinds fill 128 numbers of an activation: those of rowKinds, blocks around the least
// scale, and for NVFP4 numbers halfway between two codes under a scale.
var quantiseKinds = func() []func(rng *rand.Rand, x []float32) {
	var fill []func(*rand.Rand, []float32)
	for _, k := range rowKinds {
		fill = append(fill, k.fill)
	}
	return append(fill,
		each(func(r *rand.Rand, _ int) float64 { return sign(r) * (0.5e-10 + 1e-10*r.Float64()) }),
		each(func(r *rand.Rand, i int) float64 { return math.Ldexp(sign(r)*(1+r.Float64()), i/16*17-90) }),
		each(func(r *rand.Rand, i int) float64 {
			if i%16 == 3 {
				return 6 * float64(i/16+8)
			}
			return sign(r) * float64(i/16+8) * []float64{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}[r.IntN(7)]
		}),
		each(func(r *rand.Rand, i int) float64 { // every code of a block's scale, from too small to too large
			return sign(r) * math.Ldexp(1+r.Float64(), i/16-12) * r.Float64()
		}))
}()

func randomQuantise(seed uint64, formats []projection.ActivationFormat) []Case {
	var cases []Case
	for f, format := range formats {
		for i, tokens := range sizes {
			rng := rand.New(rand.NewPCG(seed, uint64(f*len(sizes)+i)))
			groups := []int{1, 2, 1, 3, 1, 2}[i]
			k := map[projection.ActivationFormat][]int{
				projection.ActivationFP8:       {128, 384, 2176, 640, 1536, 256},
				projection.ActivationFP8Packed: {512, 1024, 2560, 512, 1536, 512},
				projection.ActivationMXFP8:     {128, 640, 2304, 384, 1536, 256},
				projection.ActivationNVFP4:     {64, 192, 2112, 320, 1536, 128},
			}[format][i]
			scale := []float32{1, 0x1p-64, float32(0.001 * (1 + rng.Float64())), float32(rng.Float64()), 0x1p64, 0.1}[i]
			cases = append(cases, randomQuantiseCase(rng, format, tokens, groups, k, scale))
		}
	}
	return cases
}

func randomQuantiseCase(rng *rand.Rand, format projection.ActivationFormat, tokens, groups, k int, scale float32) Case {
	x, block := make([]uint16, tokens*groups*k), make([]float32, projection.BlockDim)
	for i := range x {
		if i%len(block) == 0 {
			quantiseKinds[i/len(block)%len(quantiseKinds)](rng, block)
		}
		x[i] = numfmt.BF16Encode(block[i%len(block)])
	}
	for range len(x)/1000 + 1 { // any bits at all, whole blocks of them and single ones
		at, n := rng.IntN(len(x)), []int{1, 16, 128}[rng.IntN(3)]
		for i := range x[at:min(at+n, len(x))] {
			x[at+i] = uint16(rng.Uint32())
		}
		x[rng.IntN(len(x))] = []uint16{0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x8000}[rng.IntN(5)]
	}
	c := Case{Name: fmt.Sprintf("%v_t%d_g%d_k%d", format, tokens, groups, k),
		Params: map[string]any{"format": int(format), "groups": groups}, In: Arrays{"x": vectors.FromU16(x, tokens, groups, k)}}
	if format == projection.ActivationNVFP4 {
		c.In["input_scale"] = vectors.FromF32([]float32{scale}, 1)
	}
	return c
}

// quantiseInput is a case of either operation.
type quantiseInput struct {
	Format projection.ActivationFormat `in:"format"`
	Groups int                         `in:"groups"`
	X      Array                       `in:"x u16 T Groups K"`
	Scale  Array                       `in:"input_scale? f32 1"`

	T, K int
}

// scale returns the scale of a whole tensor, 0 for formats that have none.
func (q quantiseInput) scale() float32 {
	if q.Scale.IsZero() {
		return 0
	}
	return q.Scale.F32()[0]
}

func refQuantise(q quantiseInput) (Arrays, error) {
	n, block, perByte := q.T*q.Groups*q.K, projection.BlockDim, 1
	switch q.Format {
	case projection.ActivationNVFP4:
		block, perByte = 16, 2
	case projection.ActivationMXFP8:
		block = smallBlock
	}
	codes, scales := make([]byte, n/perByte), make([]byte, n/block)
	if err := projection.QuantiseRef(q.Format, q.X.U16(), q.Groups, q.K, q.scale(), codes, scales); err != nil {
		return nil, err
	}
	out := Arrays{"codes": vectors.FromU8(codes, q.Groups, q.T, q.K/perByte)}
	if q.Format == projection.ActivationNVFP4 {
		out["scales"] = vectors.FromU8(scales, q.Groups, q.T, q.K/16)
		return out, nil
	}
	blocks, padded := q.K/block, projection.PaddedTokens(q.T)
	numbers, words := scaleLayouts(scales, q.T)
	out["scales"] = vectors.FromF32(numbers, q.Groups, blocks, padded)
	if q.Format != projection.ActivationFP8 {
		out["scales"] = vectors.FromI32(words, q.Groups, blocks/4, padded)
	}
	return out, nil
}

func bindQuantise(b Build, q quantiseInput) (Bound, error) {
	op, err := projection.NewQuantise(b.Dev, projection.QuantiseConfig{
		Format: q.Format, Groups: q.Groups, K: q.K, MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := projection.QuantiseArgs{X: r.In(q.X, tensor.BF16), InputScale: q.scale(),
			Codes: r.Out(tensor.U8, op.CodesShape(q.T)...), Scales: r.Out(op.ScalesType(), op.ScalesShape(q.T)...)}
		return launch(op, a, outs{"codes": a.Codes, "scales": a.Scales})
	})
}

// quantiseSizes returns the hidden states and the inputs of wo_b of decode and prefill steps.
func quantiseSizes(o SizeOptions, formats []projection.ActivationFormat) (all []Size) {
	for _, format := range formats {
		for _, t := range o.steps() {
			for _, k := range []int{4096, 8192} {
				bytes := t * k * 3 // with scales of 1/32 or 1/16 of the codes
				if format == projection.ActivationNVFP4 {
					bytes = t * k * 5 / 2
				}
				all = append(all, Size{
					Name: fmt.Sprintf("activations=%v/tokens=%d/k=%d", format, t, k), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
					MaxBytes: uint64(2 * t * k),
					Make: func(rng *rand.Rand) Case {
						c := Case{Params: map[string]any{"format": int(format), "groups": 1}, In: Arrays{"x": normalBF16(rng, 1, t, 1, k)}}
						if format == projection.ActivationNVFP4 {
							c.In["input_scale"] = vectors.FromF32([]float32{0.002}, 1)
						}
						return c
					},
				})
			}
		}
	}
	return all
}
