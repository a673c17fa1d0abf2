package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vkmla/vkmla/internal/lab/bench"
	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// All returns the checks, in the order in which they run: what is short and says much comes first.
// Quick ones are the least that says something; in each group they precede the others.
func All(quick bool) []Check {
	list := slices.Concat(limitChecks(), operationChecks(), layerChecks(true), cutChecks(true), timeChecks(true))
	if quick {
		return list
	}
	for _, c := range slices.Concat(layerChecks(false), cutChecks(false), timeChecks(false)) {
		if _, ok := find(list, c.ID()); !ok {
			list = append(list, c)
		}
	}
	order := func(c Check) int { return slices.IndexFunc(Groups, func(g Group) bool { return g.Name == c.Group }) }
	slices.SortStableFunc(list, func(a, b Check) int { return order(a) - order(b) })
	return list
}

// progress tells the supervisor what a benchmark does.
type progress struct {
	e    *Env
	what string
}

func (p *progress) Rows(int, int) {}

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

// layerOp is the operation that is a whole layer.
const layerOp = "layer"

// operationChecks have one check for each operation that verify knows.
func operationChecks() (list []Check) {
	for _, op := range verify.All() {
		if op.Name != layerOp {
			list = append(list, Check{Group: GroupOperations, Name: op.Name, Run: operation(op.Name, "")})
		}
	}
	return list
}

// quickLayers are the layers that a quick check takes: of each model, one with everything that
// others have or all that take from each other.
var quickLayers = []string{"recorded_c4a", "v41"}

// layerChecks have one check for each kind of whole layer that verify knows.
func layerChecks(quick bool) (list []Check) {
	op, ok := verify.Lookup(layerOp)
	if !ok {
		return nil
	}
	for _, c := range op.RandomCases(0) { // names and what they are: the same for all seeds
		if !quick || slices.Contains(quickLayers, c.Name) {
			list = append(list, Check{Group: GroupLayers, Name: c.Name, About: c.About, Run: operation(layerOp, c.Name)})
		}
	}
	return list
}

// operation checks an operation, or one case of it, in one case at least and then for as long as
// its share of the budget lasts.
func operation(name, only string) func(ctx context.Context, e *Env) error {
	return func(ctx context.Context, e *Env) error {
		o := verify.Options{Ops: []string{name}, Seed: e.Seed, Best: e.Quick, Progress: func(done, total int, _, name string) {
			e.Doing(fmt.Sprintf("%s, %d of %d", name, done+1, total))
		}}
		if only != "" {
			o.Cases = []string{only}
		} else if e.Quick {
			o.Most = quickCases
		}
		ctx, enough := context.WithCancelCause(ctx)
		defer enough(nil)
		start := time.Now()
		_, err := verify.Run(ctx, e.Dev, o, func(r verify.Row) {
			if e.Row(r); time.Since(start) > e.Share {
				enough(errShare)
			}
		})
		if errors.Is(context.Cause(ctx), errShare) {
			return errShare
		}
		return err
	}
}

// cutModels are the models whose sequences are checked, with the scenarios that are run: quick ones
// are short. Of DeepSeek-V4.1 they are those of groups of two, of sources and of candidates.
var cutModels = []struct {
	model         sequences.Model
	suffix        string   // of a check's name
	quick, others []string // nil others: all
}{
	{sequences.V4, "", []string{"shared prefixes", "short recordings", "padding", "draft block"}, nil},
	{sequences.V41, ", v41", []string{"shared prefixes"},
		[]string{"shared prefixes", "restored sessions", "rejected drafts", "truncation", "equal scores"}},
}

// cutChecks have one check for each model and scenario. They share what they put on the device.
func cutChecks(quick bool) (list []Check) {
	for _, m := range cutModels {
		some := m.others
		if quick {
			some = m.quick
		}
		for _, s := range sequences.Scenarios() {
			if some == nil || slices.Contains(some, s.Name) {
				list = append(list, cutCheck(m.model, s, s.Name+m.suffix))
			}
		}
	}
	return list
}

// cutCheck returns the check of a scenario of a model.
func cutCheck(m sequences.Model, s sequences.Scenario, name string) Check {
	about := s.Proves
	if len(s.Reports) > 0 {
		about += " (" + strings.Join(s.Reports, ", ") + ")"
	}
	return Check{Group: GroupCuts, Name: name, About: about, Run: func(ctx context.Context, e *Env) error {
		l, err := e.cuts(ctx, m)
		if err != nil {
			return err
		}
		r := verify.Row{Case: name, Status: verify.Pass}
		if err := s.Run(ctx, l); err != nil {
			if ctx.Err() != nil || errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, vk.ErrLimit) {
				return err
			}
			r.Status, r.Detail = verify.Fail, oneLine(err.Error())
		}
		e.Row(r)
		return nil
	}}
}

// Timed steps of layers: how often each is timed, and what.
const (
	timedReps   = 10
	timedWarmup = 2
)

// most is how much more than a small step a large one may be: 32 times as many tokens, each of
// which sees 32 times as many.
const most = 32 * 32

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
	{mode: "decode", batch: 32, context: 131072, smaller: 0, grows: most},
	{mode: "prefill", prompt: 4096, smaller: 1, grows: most},
}

// stepName names the step of a row, and its kind of layer apart.
func stepName(t bench.LayerRow) string {
	if t.Mode == "prefill" {
		return prefillOf(t.Tokens)
	}
	return decodeOf(t.Batch, t.Context)
}

func prefillOf(tokens int) string { return fmt.Sprintf("prefill of %d tokens", tokens) }

func decodeOf(batch, context int) string {
	if batch == 1 {
		return fmt.Sprintf("decode, a sequence of %d tokens", context)
	}
	return fmt.Sprintf("decode, %d sequences of %d tokens", batch, context)
}

// timedKinds are the kinds of layers that are timed, of either model.
var timedKinds = bench.KindsOf("flash", "small")

// timeChecks time layers of a model, in quick steps or in the others: of V4-Flash, on a processor
// of a small model.
func timeChecks(quick bool) (list []Check) {
	name := func(i int, kind string) string {
		s := timedSteps[i]
		if s.prompt > 0 {
			return kind + ", " + prefillOf(s.prompt)
		}
		return kind + ", " + decodeOf(s.batch, s.context)
	}
	for i, s := range timedSteps {
		if s.quick != quick {
			continue
		}
		for _, kind := range timedKinds {
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
