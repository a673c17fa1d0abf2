package projection

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// check looks at what does not depend on the device.
func (cfg LinearConfig) check(op string) error {
	if err := cfg.checkFormats(op); err != nil {
		return err
	}
	switch {
	case cfg.Out != tensor.BF16 && cfg.Out != tensor.F32:
		return pkg.Wrong(op, "Out", cfg.Out, "bf16 or f32")
	case cfg.N < 8 || cfg.N%8 != 0:
		return pkg.Wrong(op, "N", cfg.N, "a multiple of 8")
	}
	if err := opkit.FirstError(
		cfg.checkNorm(op),
		pkg.Range(op, "Groups", cfg.Groups, 1, math.MaxUint16),
		pkg.Range(op, "K", cfg.K, 1, math.MaxInt32/cfg.Groups),
		pkg.Range(op, "N", cfg.N, 1, math.MaxInt32/cfg.Groups),
		pkg.Range(op, "MaxTokens", cfg.MaxTokens, 0, math.MaxInt32/max(cfg.N, cfg.K)/cfg.Groups),
		pkg.Range(op, "Workgroups", cfg.Workgroups, 0, math.MaxInt32),
		pkg.Range(op, "Beside", cfg.Beside, 0, math.MaxInt32-cfg.N*cfg.Groups),
	); err != nil {
		return err
	}
	if most := math.MaxInt32 / cfg.K / cfg.Groups; cfg.N > most {
		return pkg.Wrong(op, "N", cfg.N, "at most %d, for fewer than 2^31 weights", most)
	}
	return nil
}

func (o *Linear) check(op string, a LinearArgs) error {
	if err := o.checkOut(op, a); err != nil {
		return err
	}
	if err := opkit.FirstError(o.checkX(op, a),
		o.cfg.Weights.check(op, a.W, o.cfg.N*o.cfg.Groups, o.cfg.K), o.checkNorm(op, a)); err != nil {
		return err
	}
	return opkit.FirstError(
		pkg.Optional(op, "Scratch", a.Scratch, tensor.F32, -1),
		pkg.Reach(o.dev, op, o.variant, linearSources(a)...),
		pkg.Reach(o.dev, op, o.variant, opkit.Target{Name: "Out", T: a.Out, Align: 8},
			opkit.Target{Name: "Scratch", T: a.Scratch, Align: 16}),
		pkg.Bindable(o.dev, op, "W.Scale", a.W.Scale), pkg.Bindable(o.dev, op, "XScale", a.XScale),
	)
}

// checkOut looks at the output, whose first dimension is T.
func (o *Linear) checkOut(op string, a LinearArgs) error {
	rank := max(2, len(a.Out.Shape))
	if err := pkg.Check(op, "Out", a.Out, o.cfg.Out, anyDims(rank)...); err != nil {
		return err
	}
	t, rows := a.Out.Shape[0], o.cfg.N*o.cfg.Groups
	width := perToken(a.Out)
	switch {
	case t > 0 && (width%8 != 0 || width < rows):
		return pkg.Wrong(op, "Out", a.Out, "a multiple of 8 numbers a token, at least %d", rows)
	case a.OutColumn < 0 || a.OutColumn%8 != 0 || t > 0 && a.OutColumn > width-rows:
		return pkg.Wrong(op, "OutColumn", a.OutColumn, "a multiple of 8 that leaves room for %d of %d columns", rows, width)
	case o.cfg.MaxTokens > 0 && t > o.cfg.MaxTokens:
		return pkg.Wrong(op, "Out", a.Out, "at most %d tokens, for which the kernels were built", o.cfg.MaxTokens)
	}
	return nil
}

func (o *Linear) checkX(op string, a LinearArgs) error {
	t, g, k, is := a.Out.Shape[0], o.cfg.Groups, o.cfg.K, o.cfg.Activations.row()
	if is.block == 0 {
		dims := anyDims(max(2, len(a.X.Shape)))
		dims[0] = t
		if err := pkg.Check(op, "X", a.X, tensor.BF16, dims...); err != nil {
			return err
		}
		if t > 0 && perToken(a.X) != g*k {
			return pkg.Wrong(op, "X", a.X, "%d numbers a token", g*k)
		}
		if !a.XScale.IsZero() {
			return pkg.Wrong(op, "XScale", a.XScale, "absent, for activations of %v", o.cfg.Activations)
		}
		return nil
	}
	dt := is.scales[0]
	if slices.Contains(is.scales, a.XScale.DType) {
		dt = a.XScale.DType
	}
	if err := pkg.Check(op, "X", a.X, tensor.U8, g, t, k*16/is.quad); err != nil || is.rows {
		return opkit.FirstError(err, pkg.Check(op, "XScale", a.XScale, dt, g, t, k/is.block))
	}
	if err := pkg.Check(op, "XScale", a.XScale, dt, g, k/is.block, -1); err != nil {
		return err
	}
	if a.XScale.Shape[2] < t {
		return pkg.Wrong(op, "XScale", a.XScale, "scales of at least %d tokens", t)
	}
	return nil
}

// anyDims are dimensions of any size.
func anyDims(rank int) []int { return slices.Repeat([]int{-1}, rank) }

// perToken returns the number of numbers in a row along the first dimension.
func perToken(t tensor.Tensor) int {
	n := 1
	for _, d := range t.Shape[1:] {
		n *= d
	}
	return n
}
