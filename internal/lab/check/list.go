package check

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// All are the checks, in the order in which they run: what is short and says much comes first.
// Quick ones are the least that says something.
func All(quick bool) []Check {
	return slices.Concat(limitChecks(), operationChecks(), timeChecks(quick))
}

// progress tells the supervisor what a benchmark does.
type progress struct {
	e    *Env
	what string
}

func (p *progress) Step(what string) {
	p.what = what
	p.e.Doing(what)
}

func (p *progress) Advance(done, total int64) {
	p.e.Doing(fmt.Sprintf("%s %d%%", p.what, 100*done/max(total, 1)))
}

func limitChecks() []Check {
	const reps = 9
	return []Check{{Group: GroupLimits, Name: "memory and arithmetic", About: "a copy, and multiply-adds in registers",
		Run: func(ctx context.Context, e *Env) error {
			l, err := bench.Measure(ctx, e.Dev, reps, &progress{e: e})
			if err == nil {
				e.Measured(l)
			}
			return err
		}}}
}

// quickCases is how many cases of an operation a quick check takes.
const quickCases = 2

// operationChecks have one check for each operation that verify knows.
func operationChecks() (list []Check) {
	for _, op := range verify.All() {
		list = append(list, Check{Group: GroupOperations, Name: op.Name, Run: func(ctx context.Context, e *Env) error {
			o := verify.Options{Ops: []string{op.Name}, Seed: e.Seed, Progress: func(done, total int, _, name string) {
				e.Doing(fmt.Sprintf("%s, %d of %d", name, done+1, total))
			}}
			if e.Quick {
				o.Best, o.Most = true, quickCases
			}
			_, err := verify.Run(ctx, e.Dev, o, e.Row)
			return err
		}})
	}
	return list
}

// Timed steps of layers: how often each is timed, and what.
const (
	timedReps   = 10
	timedWarmup = 2
)

// timedSteps are the sizes of steps, from short to long.
var timedSteps = []struct {
	mode                   string
	context, prompt, batch int
	smaller                int // the index of a smaller one of the same mode; -1: none
	grows                  float64
	quick                  bool
}{
	{mode: "decode", batch: 1, context: 4096, smaller: -1, quick: true},
	{mode: "prefill", prompt: 128, smaller: -1},
	{mode: "decode", batch: 32, context: 131072, smaller: 0, grows: 100},
	{mode: "prefill", prompt: 4096, smaller: 1, grows: 32},
}

func prefillOf(tokens int) string { return fmt.Sprintf("prefill of %d tokens", tokens) }

func decodeOf(batch, context int) string {
	if batch == 1 {
		return fmt.Sprintf("decode, a sequence of %d tokens", context)
	}
	return fmt.Sprintf("decode, %d sequences of %d tokens", batch, context)
}

// timeChecks time layers of a model: of V4-Flash, on a processor of a small model.
func timeChecks(quick bool) (list []Check) {
	name := func(i int, kind string) string {
		s := timedSteps[i]
		if s.prompt > 0 {
			return kind + ", " + prefillOf(s.prompt)
		}
		return kind + ", " + decodeOf(s.batch, s.context)
	}
	for i, s := range timedSteps {
		if quick && !s.quick {
			continue
		}
		for _, kind := range bench.Kinds {
			o := bench.LayerOptions{Kinds: []string{kind}, Checked: true, Chunk: s.prompt,
				Common: bench.Common{Reps: timedReps, Warmup: timedWarmup}}
			if s.prompt > 0 {
				o.Prefill = []int{s.prompt}
			} else {
				o.Batches, o.Contexts = []int{s.batch}, []int{s.context}
			}
			c := Check{Group: GroupTimes, Name: name(i, kind), Grows: s.grows, Run: timeLayers(o)}
			if s.smaller >= 0 {
				c.Smaller = name(s.smaller, kind)
			}
			list = append(list, c)
		}
	}
	return list
}

// timeLayers times what the options say.
func timeLayers(o bench.LayerOptions) func(ctx context.Context, e *Env) error {
	return func(ctx context.Context, e *Env) error {
		if e.Limits.CopyGBs == 0 || e.Limits.MatrixTFLOPs == 0 {
			return fmt.Errorf("%w: the limits could not be measured", errNotRun)
		}
		o.Seed = e.Seed
		err := bench.Layers(ctx, e.Dev, o, e.Limits, &progress{e: e}, e.Timed)
		if errors.Is(err, bench.ErrWrong) {
			return nil // the row says it
		}
		return err
	}
}
