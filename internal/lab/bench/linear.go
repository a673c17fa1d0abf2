package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// LinearOps are the matrix products of layers, by the names of their weights.
var LinearOps = []string{"wq_a_wkv", "wq_b", "wo_a", "wo_b"}

// SuiteOptions describes what to time of the linear suite. What is empty or
// 0 gets its default, which is less on a CPU.
type SuiteOptions struct {
	Common
	Ops     []string // names or how they begin; nil: all
	Tokens  []int    // of a step, instead of the operations' own
	Models  []string // of Models
	Weights []string // of WeightFormats

	only func(op, name string) bool // cases to run; nil: all
}

func (o SuiteOptions) check(op string, all []string) error {
	for _, n := range o.Tokens {
		if n < 1 || n > 1<<16 {
			return &vk.ArgumentError{Op: op, Arg: "batch", Got: fmt.Sprint(n), Want: "1 to 65536"}
		}
	}
	ops, err := chooseOps(op, o.Ops, all)
	if err != nil {
		return err
	}
	l := LayerOptions{Common: o.Common, Models: o.Models, Weights: o.Weights, Chunk: 1}
	l.Variant = "" // of an attention kernel
	return errors.Join(l.check(op), o.checkVariant(op, ops))
}

// Linear checks and times the cases of LinearOps, as Indexer does.
func Linear(ctx context.Context, dev *vk.Device, o SuiteOptions, l Limits, p Progress, emit func(OpRow)) error {
	if err := o.check("bench: linear", LinearOps); err != nil {
		return err
	}
	return o.cases(ctx, dev, linearCases(o, dev.Adapter().Type == vk.TypeCPU), l, p, emit)
}

// cases times those cases that the options want.
func (o SuiteOptions) cases(ctx context.Context, dev *vk.Device, all []opCase, l Limits, p Progress, emit func(OpRow)) error {
	common := IndexerOptions{Common: o.Common}.withDefaults(dev.Adapter().Type)
	common.only = o.only
	return timeCases(ctx, dev, common, slices.DeleteFunc(all, func(c opCase) bool { return !chosen(o.Ops, c.op) }), l, p, emit)
}

// pickInts is the given list, or a default for the kind of device.
func pickInts(given, gpu, slow []int, cpu bool) []int {
	switch {
	case given != nil:
		return given
	case cpu:
		return slow
	}
	return gpu
}
