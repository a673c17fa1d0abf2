package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// Common are the options that all suites have. What is 0 gets its default, which is
// less on a processor.
type Common struct {
	Reps    int    // timed launches or steps: decode 200, layer and step 40, others 100
	Warmup  int    // those before them: 20, layer and step 5; negative for none
	Variant string // of operations that are timed, of attention in layers; "" for the best
	Seed    uint64 // of the inputs
}

// slow reports whether a device is a processor. There sizes are small, cases are prepared one
// by one, and nothing waits for a clock to rise.
func slow(dev *vk.Device) bool { return dev.Adapter().Type == vk.TypeCPU }

// either returns the second of two defaults on a slow device.
func either[T any](onSlow bool, gpu, processor T) T {
	if onSlow {
		return processor
	}
	return gpu
}

// pick returns what was asked for, or a default.
func pick[T any](given []T, onSlow bool, gpu, processor []T) []T {
	if len(given) > 0 {
		return given
	}
	return either(onSlow, gpu, processor)
}

// withDefaults fills in what is 0, and makes no warm-up a number.
func (c Common) withDefaults(onSlow bool, reps, warmup [2]int) Common {
	c.Reps = cmp.Or(c.Reps, either(onSlow, reps[0], reps[1]))
	c.Warmup = max(cmp.Or(c.Warmup, either(onSlow, warmup[0], warmup[1])), 0)
	return c
}

// check looks at the numbers, with defaults or without.
func (c Common) check(op string) error {
	switch {
	case c.Reps < 0 || c.Reps > 4000:
		return &vk.ArgumentError{Op: op, Arg: "reps", Got: fmt.Sprint(c.Reps), Want: "1 to 4000"}
	case c.Warmup > 4000:
		return &vk.ArgumentError{Op: op, Arg: "warmup", Got: fmt.Sprint(c.Warmup), Want: "0 to 4000"}
	}
	return nil
}

// checkVariant demands a variant that each of the operations has.
func (c Common) checkVariant(op string, ops []verify.Op) error {
	for _, x := range ops {
		var names []string
		for _, v := range x.Variants {
			names = append(names, v.Name)
		}
		if c.Variant != "" && !slices.Contains(names, c.Variant) {
			return &vk.ArgumentError{Op: op, Arg: "variant", Got: fmt.Sprintf("%q", c.Variant), Want: strings.Join(names, ", ") + " for " + x.Name}
		}
	}
	return nil
}

// within demands numbers between two.
func within(op, arg string, v []int, low, high int) error {
	for _, n := range v {
		if n < low || n > high {
			return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(n), Want: fmt.Sprintf("%d to %d", low, high)}
		}
	}
	return nil
}

// oneOf demands names of a list.
func oneOf(op, arg string, names, of []string, more ...string) error {
	for _, name := range names {
		if !slices.Contains(of, name) {
			return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprintf("%q", name), Want: strings.Join(append(of[:len(of):len(of)], more...), ", ")}
		}
	}
	return nil
}
