package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// NormTokens are the most tokens of a linear layer that norms what it is given.
const NormTokens = 2

// NormRank is the most inputs of such a layer: NormTokens of them take 4*K bytes of
// shared memory.
const NormRank = 4096

// checkNorm looks at what a norm goes together with.
func (cfg LinearConfig) checkNorm(op string) error {
	if cfg.Norm == 0 && cfg.NormOut == 0 {
		return nil
	}
	if _, err := epsilon(op, cfg.NormEps); err != nil {
		return err
	}
	switch {
	case cfg.NormOut != 0 && cfg.NormOut != tensor.BF16 && cfg.NormOut != tensor.F32:
		return pkg.Wrong(op, "NormOut", cfg.NormOut, "bf16, f32 or none")
	case cfg.NormOut != 0 && (cfg.Groups != 1 || cfg.Out != tensor.BF16 || cfg.Norm != 0):
		return pkg.Wrong(op, "NormOut", cfg.NormOut, "none for %d groups, outputs of %v and a norm of inputs of %v", cfg.Groups, cfg.Out, cfg.Norm)
	case cfg.NormOut != 0 && (cfg.NormColumns < 8 || cfg.NormColumns%8 != 0 || cfg.NormColumns > min(cfg.N, NormRank)):
		return pkg.Wrong(op, "NormColumns", cfg.NormColumns, "a multiple of 8, 8 to %d", min(cfg.N, NormRank))
	case cfg.NormOut != 0:
		return nil
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
func (cfg LinearConfig) normConstants() []uint32 { return normWords(cfg.Norm, cfg.K, cfg.NormEps) }

// normOutConstants are the last ones of proj_linear_thin.comp.
func (cfg LinearConfig) normOutConstants() []uint32 {
	return normWords(cfg.NormOut, cfg.NormColumns, cfg.NormEps)
}

// normWords are constants of a norm of n numbers with weights of a type, 0 for none.
func normWords(weights tensor.DType, n int, eps float32) []uint32 {
	norm := 1
	switch weights {
	case 0:
		return opkit.Words(0, 1, 0, 0)
	case tensor.F32:
		norm = 2
	}
	if eps == 0 {
		eps = DefaultEps
	}
	return append(opkit.Words(norm, n/8), math.Float32bits(eps), math.Float32bits(1/float32(n)))
}

// NormsOut tells whether a Record of t tokens norms outputs, as LinearConfig.NormOut wants
// it: by proj_linear_few.comp and proj_linear_thin.comp, whose workgroups have some rows of
// all tokens, or of as many as a few, so that one of them comes last. Other kernels and the
// variant VariantBase do not, and a Record then refuses LinearArgs.Normed.
func (o *Linear) NormsOut(t int) bool {
	return o.cfg.NormOut != 0 && t > 0 && (o.cfg.MaxTokens == 0 || t <= o.cfg.MaxTokens) && o.variant != VariantBase && o.plan(t, math.MaxInt32).norms
}

// checkNormOut looks at outputs that are normed.
func (o *Linear) checkNormOut(op string, a LinearArgs) error {
	t := a.Out.Shape[0]
	if a.Normed.IsZero() || !o.NormsOut(t) {
		if !a.Normed.IsZero() || !a.Arrived.IsZero() {
			return pkg.Wrong(op, "Normed, Arrived", a.Normed, "absent: outputs of %d tokens are not normed by this layer", t)
		}
		return nil
	}
	dt := tensor.U32
	if a.Arrived.DType == tensor.I32 {
		dt = tensor.I32
	}
	return opkit.First(
		pkg.Check(op, "Norm", a.Norm, o.cfg.NormOut, o.cfg.NormColumns),
		pkg.Check(op, "Normed", a.Normed, tensor.BF16, t, o.cfg.NormColumns),
		pkg.Check(op, "Arrived", a.Arrived, dt, t),
		pkg.Reach(o.dev, op, o.variant, normOutTargets(a)...))
}

func normOutTargets(a LinearArgs) []opkit.Target {
	return []opkit.Target{
		{Name: "Norm", T: a.Norm, Access: vk.Read, Align: 16}, {Name: "Normed", T: a.Normed, Access: vk.Write, Align: 16},
		{Name: "Arrived", T: a.Arrived, Access: vk.ReadWrite, Align: 4},
	}
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
func (o *Linear) noNorm(op string, a LinearArgs) error {
	if a.Norm.IsZero() || !a.Normed.IsZero() {
		return nil
	}
	return pkg.Wrong(op, "Norm", a.Norm, "absent, for a layer without a norm")
}

// recordNorm records the launch of a kernel that norms its outputs if that is wanted.
func (o *Linear) recordNorm(rec *vk.Recorder, op string, a LinearArgs, p linearPlan, like projLinearPush, bind []vk.View, targets []opkit.Target) error {
	push := projLinearNormPush{
		XAddr: like.XAddr, WAddr: like.WAddr, YAddr: like.YAddr, Tokens: like.Tokens, Groups: like.Groups, N: like.N, K: like.K,
		YStride: like.YStride, YColumn: like.YColumn, YF32: like.YF32, XScalePitch: like.XScalePitch, Splits: 1,
	}
	if !a.Normed.IsZero() {
		targets[len(targets)-1].Access = vk.ReadWrite
		targets = append(targets, normOutTargets(a)...)
		p.grid[0]++ // rehearses
		push.NormAddr, push.NormedAddr, push.ArrivedAddr = a.Norm.View().Address(), a.Normed.View().Address(), a.Arrived.View().Address()
	}
	return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{Kernel: p.kernel, Groups: p.grid, Push: vk.Bytes(&push), Bind: bind}, targets...)
}
