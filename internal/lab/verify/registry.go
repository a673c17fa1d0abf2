// Package verify runs operations on a device and judges what they give.
//
// An operation is described once, in a file op_<name>.go of this package, by an
// Op: how to make random cases, what its plain Go reference is, how to run each
// of its variants, and how close the two have to be. `vkmla verify`, the tests
// (through package testkit) and the benchmark's check before it times a kernel
// all use that one description.
//
//	func init() {
//		Register(Op{
//			Name: "my_op", Class: ClassExact,
//			Variants: cache.MyOpVariants,
//			Random:   func(seed uint64) []Case { ... },   // inputs only
//			Ref:      func(c Case) (Arrays, error) { ... },
//			Run: func(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
//				in := c.Input()
//				k, page := in.Array("k", vectors.U16, -1, 512), in.Int("block_size")
//				if err := in.Err(); err != nil {
//					return nil, err
//				}
//				r := NewRig(ctx, dev)
//				defer r.Close()
//				op, err := cache.NewMyOp(dev, cache.MyOpConfig{Page: page, Variant: variant})
//				...
//				out := r.Out(tensor.BF16, n, 512)       // poisoned and fenced
//				r.Do(func(rec *vk.Recorder) error { return op.Record(rec, cache.MyOpArgs{K: r.In(k, tensor.BF16), Out: out}) })
//				return r.Results(map[string]tensor.Tensor{"out": out})
//			},
//			Compare: exactly("out"),
//		})
//	}
//
// The names of parameters and arrays are those of the manifest, so the same Run
// and Ref serve random and recorded cases.
package verify

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/vk"
)

// Case, Array and Arrays are those of package vectors.
type (
	Case   = vectors.Case
	Array  = vectors.Array
	Arrays = vectors.Arrays
)

// Classes of agreement.
const (
	ClassExact     = "E" // every byte is equal
	ClassBoundary  = "B" // every byte is equal but where rounding is undecided in float64
	ClassTolerance = "T" // numeric tolerance
	ClassSet       = "S" // the same set of indices
)

// Op describes an operation.
type Op struct {
	Name  string // as in a manifest
	Class string // one of the Class constants

	// Variants are what the operation can run as, best first, as its wrapper
	// offers them. All that the device has the features for are tried.
	Variants []vk.Variant

	// Random makes cases from a seed: the same seed gives the same cases. Only
	// inputs are filled in. Sizes should include 1, 2, 17, 61, 69 and 321, pages
	// permuted, and every byte that must not be read poisoned.
	Random func(seed uint64) []Case

	// Ref computes the outputs of a case by the operation's reference. It must
	// not change the case.
	Ref func(c Case) (Arrays, error)

	// Run computes the outputs of a case on dev with the named variant, through
	// the product's public wrappers. It must not change the case.
	Run func(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error)

	// Compare judges what Run (or Ref) gave against what the case wants.
	Compare func(c Case, got, want Arrays) Result
}

var registry = map[string]Op{}

// Register adds an operation. It is called from init functions and panics if
// the description is incomplete or the name is taken.
func Register(op Op) {
	if op.Name == "" || op.Class == "" || len(op.Variants) == 0 || op.Random == nil || op.Ref == nil || op.Run == nil || op.Compare == nil {
		panic(fmt.Sprintf("verify: register: operation %q is incomplete", op.Name))
	}
	if _, taken := registry[op.Name]; taken {
		panic(fmt.Sprintf("verify: register: operation %q exists already", op.Name))
	}
	registry[op.Name] = op
}

// Lookup finds a registered operation.
func Lookup(name string) (Op, bool) { op, ok := registry[name]; return op, ok }

// All returns the registered operations in the order of their names.
func All() []Op {
	ops := make([]Op, 0, len(registry))
	for _, op := range registry {
		ops = append(ops, op)
	}
	slices.SortFunc(ops, func(a, b Op) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return ops
}

// RandomCases makes the operation's random cases for a run's seed, with what
// they want still to be computed. Every operation gets a seed of its own from
// the run's, so that a run of one operation repeats the cases that it had in a
// run of all.
func (op Op) RandomCases(seed uint64) []Case {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", seed, op.Name)
	cases := op.Random(h.Sum64())
	for i := range cases {
		cases[i].Op, cases[i].Source = op.Name, "random"
	}
	return cases
}
