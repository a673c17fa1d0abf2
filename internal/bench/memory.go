package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// MemoryOps are the operations of the memory suite, which move bytes and compute little:
//
//	insert      cache.Insert of so many rows
//	gather      cache.Gather of rows from pages to bf16
//	q_insert    projection.QInsert: norm and rotation of queries, KV rows into the cache
//	qkv_norm    projection.QKVNorm with a rank of 1536
//	o_quant     projection.InverseRopeQuant with f32 scales, and o_quant_packed
var MemoryOps = []string{"insert", "gather", "q_insert", "qkv_norm", "o_quant", "o_quant_packed"}

// LinearOps are the matrix products of layers, by the names of their weights.
var LinearOps = []string{"wq_a_wkv", "wq_b", "wo_a", "wo_b"}

// SuiteOptions describes what to time of the memory and linear suites. What is empty or
// 0 gets its default, which is less on a CPU.
type SuiteOptions struct {
	Ops     []string // names or how they begin; nil: all
	Tokens  []int    // of a step, instead of the operations' own
	Models  []string // linear: of Models
	Weights []string // linear: of WeightFormats
	Reps    int
	Warmup  int // negative for none
	Variant string
	Seed    uint64

	only func(op, name string) bool // cases to run; nil: all
}

func (o SuiteOptions) check(op string, ops []string) error {
	for _, n := range o.Tokens {
		if n < 1 || n > 1<<16 {
			return &vk.ArgumentError{Op: op, Arg: "batch", Got: fmt.Sprint(n), Want: "1 to 65536"}
		}
	}
	for _, name := range o.Ops {
		if name == "" || !slices.ContainsFunc(ops, func(op string) bool { return strings.HasPrefix(op, name) }) {
			return &vk.ArgumentError{Op: op, Arg: "op", Got: fmt.Sprintf("%q", name), Want: "one of " + strings.Join(ops, ", ") + ", or how some begin"}
		}
	}
	l := LayerOptions{Models: o.Models, Weights: o.Weights, Chunk: 1, Reps: max(o.Reps, 1), Warmup: max(o.Warmup, 0)}
	return l.check(op)
}

// Memory checks and times the cases of MemoryOps, as Indexer does.
func Memory(ctx context.Context, dev *vk.Device, o SuiteOptions, l Limits, p Progress, emit func(OpRow)) error {
	if err := o.check("bench: memory", MemoryOps); err != nil {
		return err
	}
	return o.cases(ctx, dev, memoryCases(o, dev.Adapter().Type == vk.TypeCPU), l, p, emit)
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
	common := IndexerOptions{Reps: o.Reps, Warmup: o.Warmup, Variant: o.Variant, Seed: o.Seed}.withDefaults(dev.Adapter().Type)
	wants := IndexerOptions{Ops: o.Ops}
	var wrong error
	for _, c := range all {
		if !wants.wants(c.op) || o.only != nil && !o.only(c.op, c.name) {
			continue
		}
		rows, err := timeCase(ctx, dev, common, c, l, p)
		if err != nil {
			return fmt.Errorf("bench: %s %s: %w", c.op, c.name, err)
		}
		for _, r := range rows {
			emit(r)
			if r.Status == "wrong" {
				wrong = ErrWrong
			}
		}
	}
	return wrong
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

func memoryCases(o SuiteOptions, cpu bool) (all []opCase) {
	add := func(op, name string, build func(*opRig) error) {
		all = append(all, opCase{op, name, func(_ context.Context, r *opRig) error { return build(r) }})
	}
	tokens := pickInts(o.Tokens, []int{1, 32, 128, 4096}, []int{1, 32}, cpu)
	for _, t := range tokens {
		add("insert", fmt.Sprintf("tokens=%d", t), func(r *opRig) error { return r.insert(t) })
	}
	for _, requests := range []int{1, 4} {
		rows := 65536
		if cpu {
			rows = 512
		}
		add("gather", fmt.Sprintf("requests=%d/rows=%d", requests, rows), func(r *opRig) error { return r.gather(requests, rows) })
	}
	for _, heads := range []int{64, 128} {
		for _, t := range tokens {
			add("q_insert", fmt.Sprintf("tokens=%d/heads=%d", t, heads), func(r *opRig) error { return r.qInsert(t, heads) })
		}
	}
	for _, t := range tokens {
		add("qkv_norm", fmt.Sprintf("tokens=%d/rank=1536", t), func(r *opRig) error { return r.qkvNorm(t, 1536) })
	}
	for _, packed := range []bool{false, true} {
		op := map[bool]string{false: "o_quant", true: "o_quant_packed"}[packed]
		for _, heads := range []int{64, 128} {
			for _, t := range tokens {
				add(op, fmt.Sprintf("tokens=%d/heads=%d", t, heads), func(r *opRig) error { return r.outputQuant(t, heads, packed) })
			}
		}
	}
	return all
}
