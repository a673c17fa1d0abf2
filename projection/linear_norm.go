package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// NormTokens are the most tokens of a linear layer that norms what it is given.
const NormTokens = 2

// NormRank is the most inputs of such a layer: NormTokens of them take 4*K bytes of
// shared memory.
const NormRank = 4096

// checkNorm looks at what a norm goes together with.
func (cfg LinearConfig) checkNorm(op string) error {
	if cfg.Norm == 0 {
		return nil
	}
	if _, err := epsilon(op, cfg.NormEps); err != nil {
		return err
	}
	switch {
	case cfg.Norm != tensor.BF16 && cfg.Norm != tensor.F32:
		return pkg.Wrong(op, "Norm", cfg.Norm, "bf16, f32 or none")
	case cfg.Groups != 1 || cfg.Activations != ActivationBF16:
		return pkg.Wrong(op, "Norm", cfg.Norm, "none for %d groups and activations of %v", cfg.Groups, cfg.Activations)
	}
	return opkit.First(
		pkg.Range(op, "MaxTokens", cfg.MaxTokens, 1, NormTokens),
		pkg.Range(op, "K", cfg.K, 8, NormRank))
}

// normConstants are the last ones of proj_linear_few.comp.
func (cfg LinearConfig) normConstants() []uint32 {
	norm, eps := 1, cfg.NormEps
	switch cfg.Norm {
	case 0:
		return opkit.Words(0, 1, 0, 0)
	case tensor.F32:
		norm = 2
	}
	if eps == 0 {
		eps = DefaultEps
	}
	return append(opkit.Words(norm, cfg.K/8), math.Float32bits(eps), math.Float32bits(1/float32(cfg.K)))
}

// pitch is how far apart tokens are in what stands beside x: scales, or, with a norm, in
// quads of x itself.
func (o *Linear) pitch(a LinearArgs) uint32 {
	if o.cfg.Norm != 0 {
		return uint32(perToken(a.X) / 8)
	}
	return uint32(opkit.Dim(a.XScale, 2))
}

// beside is what a kernel binds beside x.
func (o *Linear) beside(a LinearArgs) tensor.Tensor {
	if o.cfg.Norm != 0 {
		return a.Norm
	}
	return a.XScale
}

// checkNormed looks at an input that is normed first.
func (o *Linear) checkNormed(op string, a LinearArgs) error {
	if err := pkg.Check(op, "X", a.X, tensor.BF16, a.Out.Shape[0], -1); err != nil {
		return err
	}
	if w := a.X.Shape[1]; w < o.cfg.K || w%8 != 0 {
		return pkg.Wrong(op, "X", a.X, "a multiple of 8 numbers a token, at least %d", o.cfg.K)
	}
	if !a.XScale.IsZero() {
		return pkg.Wrong(op, "XScale", a.XScale, "absent, for activations of bf16")
	}
	return pkg.Check(op, "Norm", a.Norm, o.cfg.Norm, o.cfg.K)
}

// noNorm refuses weights of a norm that there is not.
func noNorm(op string, a LinearArgs) error {
	if a.Norm.IsZero() {
		return nil
	}
	return pkg.Wrong(op, "Norm", a.Norm, "absent, for a layer without a norm")
}
