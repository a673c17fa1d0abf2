// Package verify describes the operations of vkmla and checks them on a device.
//
// An operation is described once, in a file op_<name>.go of this package, by an
// [Op]: how to make random cases, what its plain Go reference is, how to run each
// of its variants, how close the two have to be, and the sizes that a benchmark
// times. `vkmla verify`, `vkmla bench`, `vkmla info` and the tests (through package
// testkit) all use that one description.
//
//	type myInput struct {
//		K    Array `in:"k u16 T 512"`
//		Page int   `in:"block_size"`
//		T    int
//	}
//
//	func init() {
//		Register(Op{
//			Name: "my_op", Class: ClassExact, Variants: opkit.Builds("kv_my_op"),
//			Of: Of{"cache.MyOp", "kv_my_op", ""},
//			Random: func(seed uint64) []Case { ... }, // inputs only
//			Ref:    refBy(fields, func(x myInput) (Arrays, error) { ... }),
//			Bind: bindBy(fields, func(b Build, x myInput) (Bound, error) {
//				op, err := cache.NewMyOp(b.Dev, cache.MyOpConfig{Page: x.Page})
//				return bound(op, err, func(r *Rig) Launch {
//					a := cache.MyOpArgs{K: r.In(x.K, tensor.BF16), Out: r.Out(tensor.BF16, x.T)}
//					return launch(op, a, outs{"out": a.Out})
//				})
//			}),
//			Compare: exactly("out"),
//		})
//	}
//
// The names of parameters and arrays are those of the manifest, so the same Bind
// and Ref serve random, recorded and timed cases.
package verify

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
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
	Of    Of     // for CONTRIBUTING.md

	// Variants of the operation, best first. Verify tries all that the device can run.
	Variants []tuning.Variant

	// Random makes cases from a seed: the same seed gives the same cases. Only
	// inputs are filled in. Sizes should include 1, 2, 17, 61, 69 and 321, pages
	// permuted, and every byte that must not be read poisoned.
	Random func(seed uint64) []Case

	// NaN says what one does; the zero value: random cases have none but their own.
	NaN Spoilt

	// Ref computes the outputs of a case by the operation's reference. It must
	// not change the case.
	Ref func(c Case) (Arrays, error)

	// Bind makes what a case needs of the operation's public wrappers. It must not
	// change the case.
	Bind func(b Build, c Case) (Bound, error)

	// Make makes what a case needs and runs nothing, also on an absent device. Register makes it of
	// Bind where it is nil.
	Make func(dev *vk.Device, variant string, c Case) error

	// Lacks reports that no device has a variant for a case; nil: some device has each for all.
	Lacks func(c Case, variant string) bool

	// After makes the case's outputs of what was read back; nil: they are the same.
	After func(c Case, variant string, got Arrays) (Arrays, error)

	// Run computes the outputs of a case on dev with the named variant. Register
	// makes it of Bind and After where it is nil.
	Run func(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error)

	// Compare judges what Run (or Ref) gave against what the case wants.
	Compare func(c Case, got, want Arrays) Result

	// Timing says what a benchmark times of the operation; the zero value: nothing.
	Timing
}

// Of says what an operation consists of.
type Of struct {
	Types    string // Go types, with their packages
	Kernels  string // stems of shaders
	Sections string // places in a layer, as suites layer and step of bench name them; ", " between them
}

// Kernels of parts of a selection.
const (
	scoreKernels = "idx_logits idx_logits_cm idx_logits_lanes idx_logits_prompt"
	topkKernels  = "idx_topk idx_topk_lanes idx_topk_tiles"
)

// Build says what an operation is made on and as.
type Build struct {
	Dev      *vk.Device
	Variant  string // "" picks the best
	MaxBytes uint64 // of the largest tensor; 0: whatever a descriptor can hold
}

// Bound is an operation that was made for a case. Place gives it operands: once to
// check it, and once for each set of operands to time it.
type Bound struct {
	Variant string // that runs
	Place   func(r *Rig) Launch
}

// Launch is an operation with its operands.
type Launch struct {
	Out    map[string]tensor.Tensor
	Record func(rec *vk.Recorder) error
	Args   any    // points to the arguments that Record takes, which a test changes; may be nil
	Parts  []Part // steps that are timed one by one, too; may be nil
}

// Part is a step of an operation.
type Part struct {
	Name   string
	Record func(rec *vk.Recorder) error
}

var registry = map[string]Op{}

// Register adds an operation. It is called from init functions and panics if
// the description is incomplete or the name is taken.
func Register(op Op) {
	if op.Name == "" || op.Class == "" || len(op.Variants) == 0 || op.Random == nil || op.Ref == nil ||
		(op.Run == nil || op.Make == nil) && op.Bind == nil || op.Compare == nil {
		panic(fmt.Sprintf("verify: register: operation %q is incomplete", op.Name))
	}
	if _, taken := registry[op.Name]; taken {
		panic(fmt.Sprintf("verify: register: operation %q exists already", op.Name))
	}
	if op.Run == nil {
		op.Run = op.runBound
	}
	if op.Make == nil {
		op.Make = func(dev *vk.Device, variant string, c Case) error {
			_, err := op.Bind(Build{Dev: dev, Variant: variant}, c)
			return err
		}
	}
	if op.NaN.Input != "" {
		op.NaN.watch(&op)
	}
	registry[op.Name] = op
}

// runBound is Run for an operation that has Bind.
func (op Op) runBound(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
	bound, err := op.Bind(Build{Dev: dev, Variant: variant}, c)
	if err != nil {
		return nil, err
	}
	r := NewRig(ctx, dev)
	defer r.Close()
	x := bound.Place(r)
	r.Do(x.Record)
	got, err := r.Results(x.Out)
	if err != nil {
		return nil, err
	}
	return op.after(c, variant, got)
}

func (op Op) after(c Case, variant string, got Arrays) (Arrays, error) {
	if op.After == nil {
		return got, nil
	}
	return op.After(c, variant, got)
}

// Lookup finds a registered operation.
func Lookup(name string) (Op, bool) { op, ok := registry[name]; return op, ok }

// All returns the registered operations in the order of their names.
func All() []Op {
	return slices.SortedFunc(maps.Values(registry), func(a, b Op) int { return cmp.Compare(a.Name, b.Name) })
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
		cases[i].Op, cases[i].Source = op.Name, cmp.Or(cases[i].Source, "random")
	}
	return cases
}

// RandomCases returns the random cases of all operations for a seed, by their names.
func RandomCases(seed uint64) map[string][]Case {
	ops := All()
	cases, of := make([][]Case, len(ops)), map[string][]Case{}
	var making errgroup.Group
	making.SetLimit(runtime.GOMAXPROCS(0))
	for i, op := range ops {
		making.Go(func() error { cases[i] = op.RandomCases(seed); return nil })
	}
	making.Wait()
	for i, op := range ops {
		of[op.Name] = cases[i]
	}
	return of
}
