package vectors

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// Roles of an array in a case, as a manifest spells them.
const (
	RoleIn     = "in"     // input
	RoleBefore = "before" // a buffer that the operation writes into, as it was
	RoleAfter  = "after"  // the same buffer as it became
	RoleOut    = "out"    // output
	RoleRef    = "ref"    // what a reference computed, not a kernel
	RoleAux    = "aux"    // bookkeeping
)

// Case is one set of inputs of an operation and what should come out.
type Case struct {
	Op, Name string
	Source   string         // "random", or the folder it was read from
	About    string         // a sentence about the case, may be empty
	Params   map[string]any // numbers are json.Number or Go numbers, the rest strings
	In       Arrays         // roles in and before
	Want     Arrays         // roles out, after, ref and aux; nil until computed for a random case
	Role     map[string]string
}

// Informational reports whether the case documents an upstream kernel without
// being a requirement. Such cases have names that start with "info_".
func (c Case) Informational() bool { return strings.HasPrefix(c.Name, "info_") }

// Input gives checked access to the inputs of a case. The first thing that is
// missing or has the wrong type or shape is remembered and everything after it
// yields zero values, so an operation asks for all it needs and then looks at
// Err once.
type Input struct {
	c   Case
	err error
}

// Input starts reading the inputs of c.
func (c Case) Input() *Input { return &Input{c: c} }

// Err returns the first thing that went wrong, nil if nothing did. It wraps
// ErrFormat.
func (in *Input) Err() error { return in.err }

func (in *Input) fail(format string, args ...any) {
	if in.err == nil {
		in.err = fmt.Errorf("vectors: %s.%s: %s: %w", in.c.Op, in.c.Name, fmt.Sprintf(format, args...), ErrFormat)
	}
}

// Has reports whether the case has an input array of that name.
func (in *Input) Has(name string) bool { _, ok := in.c.In[name]; return ok }

// Array returns the input array of that name, which must have the type t and
// the shape dims, where -1 stands for any size. Without dims every shape will
// do. On failure it returns the zero Array.
//
// What says the same in another way is taken, too: integers of another width where I32
// or I64 is wanted, if they fit, and dimensions of 1 that dims has not, or that it has
// and the array has not, as upstream's arguments have them ([T, 1, width] of indices).
func (in *Input) Array(name string, t Type, dims ...int) Array {
	a, ok := in.c.In[name]
	if !ok {
		in.fail("has no input array %q", name)
	}
	return in.check(name, a, t, dims)
}

// Optional is Array for an array that a case may lack; then it returns the zero
// Array without an error.
func (in *Input) Optional(name string, t Type, dims ...int) Array {
	a, ok := in.c.In[name]
	if !ok {
		return Array{}
	}
	return in.check(name, a, t, dims)
}

// First is Array for an array whose first n rows alone count, and which may have
// more, as upstream's buffers do. dims are the dimensions after.
func (in *Input) First(n int, name string, t Type, dims ...int) Array {
	a := in.Array(name, t, append([]int{-1}, dims...)...)
	if in.err == nil && a.Dim(0) < n {
		in.fail("%s is %v, want at least %d rows", name, a, n)
		return Array{}
	}
	return a.First(n)
}

func (in *Input) check(name string, a Array, t Type, dims []int) Array {
	fit, ok := a.fitted(t, dims)
	if !ok {
		in.fail("%s is %v, want %v %s", name, a, t, shapeString(dims))
	}
	if in.err != nil {
		return Array{}
	}
	return fit
}

// Int returns an integral parameter. It fails if there is none of that name, or
// if it is not an integer of at most 53 bits.
func (in *Input) Int(name string) int {
	v := in.Float(name)
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		in.fail("parameter %s is %v, want an integer", name, v)
		return 0
	}
	return int(v)
}

// IntOr is Int for a parameter that a case may lack.
func (in *Input) IntOr(name string, otherwise int) int {
	if _, ok := in.c.Params[name]; !ok {
		return otherwise
	}
	return in.Int(name)
}

// Float returns a numeric parameter. It fails if there is none of that name or
// if it is not a finite number.
func (in *Input) Float(name string) float64 {
	p, ok := in.c.Params[name]
	if !ok {
		in.fail("has no parameter %q", name)
		return 0
	}
	v := math.NaN()
	switch n := p.(type) {
	case json.Number:
		if f, err := n.Float64(); err == nil {
			v = f
		}
	case int:
		v = float64(n)
	case int64:
		v = float64(n)
	case float32:
		v = float64(n)
	case float64:
		v = n
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		in.fail("parameter %s is %v, want a number", name, p)
		return 0
	}
	return v
}
