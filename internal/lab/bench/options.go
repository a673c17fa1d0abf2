package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// Common are the options that all suites have. What is 0 gets its default, which is
// less on a CPU.
type Common struct {
	Reps    int    // timed launches or steps: decode 200, layer and step 40, others 100
	Warmup  int    // those before them: 20, layer and step 5; negative for none
	Variant string // of attention kernels, scores and products; "" for the best
	Seed    uint64 // of the inputs
}

// withDefaults fills in what is 0, with the second of each two on a CPU, and makes no
// warm-up a number.
func (c Common) withDefaults(t vk.DeviceType, reps, warmup [2]int) Common {
	at := 0
	if t == vk.TypeCPU {
		at = 1
	}
	if c.Reps == 0 {
		c.Reps = reps[at]
	}
	if c.Warmup == 0 {
		c.Warmup = warmup[at]
	}
	c.Warmup = max(c.Warmup, 0)
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

// checkVariant demands a variant that each of the operations has of which one can be
// chosen, and at least one such operation.
func (c Common) checkVariant(op string, ops []string) error {
	if c.Variant == "" {
		return nil
	}
	bad := &vk.ArgumentError{Op: op, Arg: "variant", Got: fmt.Sprintf("%q", c.Variant), Want: "nothing; there is no choice for " + strings.Join(ops, ", ")}
	chosen := false
	for _, name := range ops {
		var variants []string
		for _, v := range variantsOf(name) {
			variants = append(variants, v.Name)
		}
		if variants == nil {
			continue
		}
		if chosen = true; !slices.Contains(variants, c.Variant) {
			bad.Want = strings.Join(variants, ", ") + " for " + name
			return bad
		}
	}
	if !chosen {
		return bad
	}
	return nil
}

// variantsOf is the ladder from which Common.Variant chooses for an operation of a
// suite; nil: it is not asked.
func variantsOf(op string) []vk.Variant {
	switch {
	case op == "prefill":
		return attention.PrefillVariants
	case strings.HasPrefix(op, "decode_"):
		return attention.DecodeVariants
	case strings.HasPrefix(op, "logits_"), strings.HasPrefix(op, "select_"):
		return indexer.LogitsVariants
	case slices.Contains(LinearOps, op):
		return projection.LinearVariants
	}
	return nil
}

// chosen tells whether an operation was asked for: by its name or how that begins, or
// by no name at all.
func chosen(asked []string, op string) bool {
	return len(asked) == 0 || slices.ContainsFunc(asked, func(name string) bool { return strings.HasPrefix(op, name) })
}

// chooseOps are those of a suite's operations that were asked for. Errors:
// vk.ErrArgument for a name that none of them begins with.
func chooseOps(op string, asked, all []string) (ops []string, err error) {
	for _, name := range asked {
		if name == "" || !slices.ContainsFunc(all, func(op string) bool { return strings.HasPrefix(op, name) }) {
			return nil, &vk.ArgumentError{Op: op, Arg: "op", Got: fmt.Sprintf("%q", name), Want: "one of " + strings.Join(all, ", ") + ", or how some begin"}
		}
	}
	for _, name := range all {
		if chosen(asked, name) {
			ops = append(ops, name)
		}
	}
	return ops, nil
}
