package projection

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// defaultEps is the number that every RMS norm of the model adds to the mean square.
const defaultEps float32 = 1e-6

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("projection")

// built names the build that an operation was made of.
type built = opkit.Built

// grid is a row of x workgroups, which have a token's heads among them, for each token.
func grid(dev *vk.Device, op, arg string, tokens, heads, x int) ([3]uint32, error) {
	limit := dev.Caps().MaxWorkgroupCount
	if tokens > int(limit[1]) || x > int(limit[0]) {
		return [3]uint32{}, pkg.Wrong(op, arg, fmt.Sprintf("%d tokens of %d heads", tokens, heads),
			"at most %d tokens, and heads for %d workgroups, on this device", limit[1], limit[0])
	}
	return [3]uint32{uint32(x), uint32(tokens), 1}, nil
}

// rows checks a tensor of heads, [tokens, heads, 512] bf16, whose units of 8 values a
// kernel counts with 32 bits.
func rows(op, arg string, x tensor.Tensor) error {
	if err := pkg.CheckRows(op, arg, x, tensor.BF16, -1, -1, cache.D); err != nil {
		return err
	}
	if x.Shape[1] < 1 || uint64(x.Len())/8 > math.MaxUint32 {
		return pkg.Wrong(op, arg, x, "at least one head, and fewer than 2^35 elements")
	}
	return nil
}

// table checks cosines and sines.
func table(op string, x tensor.Tensor) error {
	if err := pkg.Check(op, "Table", x, tensor.F32, -1, cache.RopeDim); err != nil {
		return err
	}
	if x.Shape[0] < 1 {
		return pkg.Wrong(op, "Table", x, "at least one row")
	}
	return nil
}

// vector checks the weights of a norm.
func vector(op, arg string, x tensor.Tensor, n int) error {
	if x.DType == tensor.F32 {
		return pkg.Check(op, arg, x, tensor.F32, n)
	}
	return pkg.Check(op, arg, x, tensor.BF16, n)
}

// epsilon returns the number that a norm adds to the mean square: the one given, or the default for
// 0.
func epsilon(op string, eps float32) (float32, error) {
	if f := float64(eps); f < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, pkg.Wrong(op, "Eps", eps, "a positive number, or 0 for %g", defaultEps)
	}
	if eps == 0 {
		return defaultEps, nil
	}
	return eps, nil
}
