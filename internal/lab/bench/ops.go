package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// OpSuites are the suites of single operations, each with what it times.
var OpSuites = []struct{ Name, About string }{
	{"indexer", "Indexer and compressors of a C4A layer, and the compressor of a C128A layer; entries are a fourth of the context."},
	{"attention", "The attention kernels, with the merge of their parts."},
	{"memory", "What a layer does between its matrix products and its attention."},
	{"linear", "Matrix products of layers, by the names of their weights."},
	{compareSuite, "Operations that others have measured."},
}

const compareSuite = "compare"

// SuiteOps returns the operations that a suite times.
func SuiteOps(suite string) (ops []verify.Op) {
	for _, op := range verify.All() {
		if op.Suite == suite || suite == compareSuite && op.Suite != "" {
			ops = append(ops, op)
		}
	}
	return ops
}

// OpOptions choose what a suite of single operations times. What is nil or 0 gets the
// operation's default.
type OpOptions struct {
	Common
	Ops   []string // names or how they begin; nil: all of the suite
	Cases []string // parts of the names of cases, as "heads=64/batch=1": a case has all parts of one of these; nil: all
	Sizes verify.SizeOptions
	// Models are those whose products the suite linear times; nil: flash and pro, on a processor
	// small.
	Models []string

	only     func(op, name string) bool // cases to run; nil: all
	together int                        // cases to prepare at a time; 0: what suits the device
	reader   *reader                    // of floors; nil: there are none
	noReader error                      // why that could not be made
}

// withDefaults fills in what belongs to bench.
func (o OpOptions) withDefaults(onSlow bool) OpOptions {
	o.Sizes.Slow = onSlow
	o.Common = o.Common.withDefaults(onSlow, [2]int{100, 3}, [2]int{20, 1})
	for _, model := range pick(o.Models, onSlow, productModels, slowModels) {
		o.Sizes.Products = append(o.Sizes.Products, productsOf(model)...)
	}
	return o
}

// check looks at the options of a suite and says which of its operations were asked for.
func (o OpOptions) check(suite string) (ops []verify.Op, err error) {
	op, s := "bench: "+suite, o.Sizes
	if err := errors.Join(verify.CheckPatterns(op, "op", o.Ops), verify.CheckPatterns(op, "case", o.Cases)); err != nil {
		return nil, err
	}
	for _, asked := range o.Ops {
		if asked == "" || !slices.ContainsFunc(SuiteOps(suite), func(x verify.Op) bool { return isAsked(x.Name, asked) }) {
			return nil, &vk.ArgumentError{Op: op, Arg: "op", Got: fmt.Sprintf("%q", asked),
				Want: "one of " + strings.Join(names(SuiteOps(suite)), ", ") + ", or how some begin, or ~ and a regular expression"}
		}
	}
	for _, x := range SuiteOps(suite) {
		if len(o.Ops) == 0 || slices.ContainsFunc(o.Ops, func(asked string) bool { return isAsked(x.Name, asked) }) {
			ops = append(ops, x)
		}
	}
	most := 1 << 16 // tokens of a product; a decode step has fewer
	if suite != "linear" {
		most = 4096
	}
	return ops, errors.Join(
		within(op, "heads", s.Heads, 1, 128), within(op, "batch", s.Batches, 1, most), within(op, "prefill", s.Prefill, 128, 1<<16),
		within(op, "topk", s.TopK, 1, 1<<16), within(op, "context", s.Contexts, 512, 1<<22),
		within(op, "rows", s.Rows, 64, 1<<20), oneOf(op, "weights", s.Weights, WeightFormats), oneOf(op, "model", o.Models, Models),
		o.Common.check(op), o.checkVariant(op, ops))
}

func names(ops []verify.Op) (list []string) {
	for _, op := range ops {
		list = append(list, op.Name)
	}
	return list
}

// isAsked reports whether an operation begins as asked, or matches a regular expression.
func isAsked(name, asked string) bool {
	return strings.HasPrefix(name, asked) || verify.Matches(asked, name)
}

// hasParts reports whether a case's name has all parts of one of these; of none, whatever it is.
func hasParts(name string, any []string) bool {
	return len(any) == 0 || slices.ContainsFunc(any, func(parts string) bool {
		if verify.Matches(parts, name) {
			return true
		}
		for part := range strings.SplitSeq(parts, "/") {
			if !strings.Contains("/"+name+"/", "/"+part+"/") {
				return false
			}
		}
		return true
	})
}

// cases returns those of operations that the options ask for.
func (o OpOptions) cases(ops []verify.Op) (all []opCase) {
	for _, op := range ops {
		for _, size := range op.Sizes(o.Sizes) {
			if hasParts(size.Name, o.Cases) && (o.only == nil || o.only(op.Name, size.Name)) {
				all = append(all, opCase{op, size})
			}
		}
	}
	return all
}

// OpRow is the result for one part of one case of an operation.
type OpRow struct {
	Op      string `json:"op"`
	Case    string `json:"case"` // sizes, as name=value with slashes between
	Part    string `json:"part,omitempty"`
	Variant string `json:"variant"`

	Time        Time    `json:"time"`
	Bytes       float64 `json:"bytes"`        // the least that has to be read and written
	Flop        float64 `json:"flop"`         // of matrix products; 0 where there are none
	GBs         float64 `json:"gbs"`          // of Time.Median
	TFLOPs      float64 `json:"tflops"`       // of Time.Median
	ShareCopy   float64 `json:"share_copy"`   // GBs over the measured copy bandwidth
	ShareMatrix float64 `json:"share_matrix"` // TFLOPs over the measured matrix rate
	Peers       []Peer  `json:"peers,omitempty"`

	// As many launches one after the other as the part has; the first reads its
	// bytes and none does anything else; 0 where they were not timed.
	FloorUS       float64 `json:"floor_us,omitempty"`
	FloorLaunches int     `json:"floor_launches,omitempty"`
	ShareFloor    float64 `json:"share_floor,omitempty"` // FloorUS over Time.Median

	Sets   int     `json:"sets"` // of operands, in turn
	Status string  `json:"status"`
	Error  float64 `json:"error"` // of the check, see verify.Result
	Bound  float64 `json:"bound"`
	Detail string  `json:"detail,omitempty"`
}

// Ops checks and times the cases of a suite that the options ask for and hands each row to
// emit as it is done. A row has the status "ok"; or, without times, "wrong" if its check failed,
// "skipped" if the device lacks memory or a feature for it, "failed" if anything else went wrong.
//
// Errors: vk.ErrArgument, also where the options leave no case; after all rows ErrWrong if one is
// not ok. The context's and vk.ErrDeviceLost end the run, with the rows so far.
func Ops(ctx context.Context, dev *vk.Device, suite string, o OpOptions, l Limits, p Progress, emit func(OpRow)) error {
	ops, err := o.check(suite)
	if err != nil {
		return err
	}
	o = o.withDefaults(slow(dev))
	cases := o.cases(ops)
	if len(cases) == 0 && o.only == nil {
		return &vk.ArgumentError{Op: "bench: " + suite, Arg: "case", Got: strings.Join(o.Cases, ", "),
			Want: "parts of the names of cases, as " + example(o, ops)}
	}
	return timeCases(ctx, dev, o, cases, l, p, emit)
}

// example returns the name of a case.
func example(o OpOptions, ops []verify.Op) string {
	o.Cases = nil
	for _, c := range o.cases(ops) {
		return c.size.Name
	}
	return "batch=1"
}
