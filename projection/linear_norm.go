package projection

import (
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// normRank is the most columns that a linear layer norms.
const normRank = 4096

// checkNorm looks at what a norm goes together with.
func (cfg LinearConfig) checkNorm(op string) error {
	if cfg.Norm == 0 {
		return nil
	}
	if _, err := epsilon(op, cfg.NormEps); err != nil {
		return err
	}
	switch most := min(cfg.N, normRank); {
	case cfg.Norm != tensor.BF16 && cfg.Norm != tensor.F32:
		return pkg.Wrong(op, "Norm", cfg.Norm, "bf16, f32 or none")
	case cfg.Groups != 1 || cfg.Out != tensor.BF16:
		return pkg.Wrong(op, "Norm", cfg.Norm, "none for %d groups and outputs of %v", cfg.Groups, cfg.Out)
	case cfg.NormColumns < 8 || cfg.NormColumns%8 != 0 || cfg.NormColumns > most:
		return pkg.Wrong(op, "NormColumns", cfg.NormColumns, "a multiple of 8, 8 to %d", most)
	}
	return nil
}

// normConstants are the last ones of proj_linear_tokens1to8.comp and proj_linear_tokens8to32.comp.
func (cfg LinearConfig) normConstants() []uint32 {
	norm, eps := 1, cfg.NormEps
	switch cfg.Norm {
	case 0:
		return opkit.Constants(0, 1, 0, 0)
	case tensor.F32:
		norm = 2
	}
	if eps == 0 {
		eps = defaultEps
	}
	return append(opkit.Constants(norm, cfg.NormColumns/8), math.Float32bits(eps), math.Float32bits(1/float32(cfg.NormColumns)))
}

// Norms tells whether a Record of t tokens can norm outputs. proj_linear_tokens1to8 and
// proj_linear_tokens8to32 can: the last of the workgroups with some rows of the same tokens norms
// them. Other kernels and build base cannot, and a Record then refuses LinearArgs.Normed.
func (o *Linear) Norms(t int) bool {
	return o.mayNorm() && t > 0 && (o.cfg.MaxTokens == 0 || t <= o.cfg.MaxTokens) && o.plan(t, math.MaxInt32).norms
}

// mayNorm tells whether there are kernels that norm what they give.
func (l *linearLayer) mayNorm() bool { return l.cfg.Norm != 0 && l.variant != opkit.Base }

// checkNorm looks at outputs that are normed.
func (o *Linear) checkNorm(op string, a LinearArgs) error {
	t := a.Out.Shape[0]
	if !o.Norms(t) || a.Normed.IsZero() {
		if !a.Norm.IsZero() || !a.Normed.IsZero() || !a.Arrived.IsZero() {
			return pkg.Wrong(op, "Norm, Normed, Arrived", a.Norm, "absent, for outputs that are not normed")
		}
		return nil
	}
	dt := tensor.U32
	if a.Arrived.DType == tensor.I32 {
		dt = tensor.I32
	}
	return opkit.FirstError(
		pkg.Check(op, "Norm", a.Norm, o.cfg.Norm, o.cfg.NormColumns),
		pkg.Check(op, "Normed", a.Normed, tensor.BF16, t, o.cfg.NormColumns),
		pkg.Check(op, "Arrived", a.Arrived, dt, t),
		pkg.Reach(o.dev, op, o.variant, normTargets(a)...))
}

func normTargets(a LinearArgs) []opkit.Target {
	return []opkit.Target{
		{Name: "Norm", T: a.Norm, Access: vk.Read, Align: 16}, {Name: "Normed", T: a.Normed, Access: vk.Write, Align: 16},
		{Name: "Arrived", T: a.Arrived, Access: vk.ReadWrite, Align: 4},
	}
}

// recordNorm records the launch of a kernel that norms its outputs if that is wanted. One more
// workgroup then rehearses the norm: see shaders/lib/linear_norm.glsl.
func (o *Linear) recordNorm(rec *vk.Recorder, op string, a LinearArgs, kernel *vk.Kernel, grid [3]uint32, like projLinearPush,
	bind []vk.View, targets []opkit.Target) error {
	push := projLinearNormPush{projLinearPush: like}
	if !a.Normed.IsZero() {
		grid[0]++
		targets[len(targets)-1].Access = vk.ReadWrite
		targets = append(targets, normTargets(a)...)
		push.NormAddr, push.NormedAddr, push.ArrivedAddr = a.Norm.View().Address(), a.Normed.View().Address(), a.Arrived.View().Address()
	}
	return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{Kernel: kernel, Groups: grid, Push: vk.Bytes(&push), Bind: bind,
		Products: o.products(int(push.Tokens))}, targets...)
}
