package bench

import (
	"context"
	"errors"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// recorded records commands with f.
func recorded(dev *vk.Device, f func(r *vk.Recorder) error) (*vk.Commands, error) {
	r, err := dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	if err := f(r); err != nil {
		r.Close()
		return nil, err
	}
	return r.End()
}

// run records commands with f and runs them to the end.
func run(ctx context.Context, dev *vk.Device, f func(r *vk.Recorder) error) error {
	c, err := recorded(dev, f)
	if err != nil {
		return err
	}
	return errors.Join(c.Run(ctx), c.Close())
}

// kernel makes one of those of the benchmark, with what else is said of it.
func kernel(dev *vk.Device, name string, spec vk.KernelSpec) (*vk.Kernel, error) {
	code, err := kernels.Get(name)
	if err != nil {
		return nil, err
	}
	spec.Name, spec.SPIRV, spec.Requires = code.Name, code.SPIRV, code.Requires
	return dev.Kernel(spec)
}

// fetch reads a tensor's elements back.
func fetch[T any](ctx context.Context, t tensor.Tensor) ([]T, error) {
	v := make([]T, t.Len())
	return v, t.Download(ctx, numfmt.Bytes(v))
}
