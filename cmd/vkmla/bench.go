package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

type benchFlags struct {
	bench.Common
	ops, cases        []string
	batches, contexts []int
	topk, prefill     []int
	heads             int
	measure           bool
	layer             layerFlags
	suite             string
	compare           string
	peers             bench.PeerTable
	device, profile   string
	output            string
	save              []string
	list              bool
}

// suites are the values of --suite; the first is the default.
var suites = []string{"attention", "indexer", "memory", "linear", "step", "prefill", "layer"}

// comparison is the suite that --compare runs, of others' cases.
const comparison = "compare"

// suitesOf is the annotation of a flag that not all suites have: those that do.
const suitesOf = "suites"

// only says which suites have a flag, in its help too.
func only(fl *pflag.FlagSet, name string, list ...string) {
	f := fl.Lookup(name)
	fl.SetAnnotation(name, suitesOf, list)
	named := slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == comparison })
	text := "suite " + named[0]
	if len(named) > 1 {
		text = "suites " + strings.Join(named, ", ")
	}
	if len(named) < len(list) {
		text += ", and --compare"
	}
	f.Usage = text + ": " + f.Usage
}

// benchLong precedes the flags in --help.
const benchLong = `Bench times kernels on a device, in several suites. Every case is checked against its
reference first; a wrong one is reported and not timed. Times are the device's, median
and 95th percentile, after a warm-up, with operands rotated past the last-level cache.
Bytes are the least that an operation has to move. Shares are of the copy bandwidth and
the matrix rate, which are measured first.

Suites of single operations:

  attention   (the default) attention for the rows of a C4A layer, of the window alone, of a
              C128A layer at a million tokens, and sparse prefill
  indexer     what picks those rows: compressors, query quantisation, logits, top-k,
              and scoring and picking in one
  memory      operations that mostly move bytes: insertion, gathering, norms, rotations
  linear      matrix products of layers

--op picks operations, by the names that verify and info use or how they begin; --case
picks sizes, by parts of their names such as heads=64/batch=1. After ~ both take a
regular expression, as --op '~^fused_.*fp8'.

The suite layer times whole layers, from hidden states to hidden states, with random
weights: one of each kind (window, c4a, c128a) of --model flash or pro, or of v41-flash after
those that it takes from, in the formats of --weights and caches of --store, for decode steps
of --batch requests of --context tokens and for the chunks of prefills of --prefill tokens.
It gives the time of the layer and of each operation, with bytes, shares of the limits,
launches, barriers and memory. If only one of --batch and --prefill is given, the other is
left out.

The suite step times whole decode steps of a model: all layers in one submission, with
and without a kernel between them that makes them depend on each other, and layer by
layer, for --batch sequences. Each step adds a token, and the last one that is timed has a
context of --context tokens. Layers have weights of their own as long as there is memory for
them; the report says how many share theirs.

In both, --model MODEL+N, such as v41-flash+5, N from 0 to 5, times what speculative decoding
runs: steps that verify N drafted tokens of each sequence, take them back, and draft the next
block in the layers that do so. Both steps are in the times of a row.

The suite prefill runs prompts of --prefill tokens through all layers of a model, in steps of
--chunk tokens, with a kernel between layers, and gives tokens a second. Experts are not in it.
Weights are as in the suite step.

--compare FILE runs the cases of all suites for which FILE has others' times, and those
with a goal of their own. Each row has the peer's time, ours, the ratio and the share of
the limit; geometric means stand beside the project's goals. --compare peers.json is the
table that comes with the program; its form is that of internal/lab/bench/peers.json.

A copy of a gigabyte reaches more than a launch of some megabytes that has to wait for
another one. So decode attention, products of up to %d tokens and whole steps also stand
beside a floor, timed in the same way: launches of the same bytes that only read. An
operation's floor has as many launches as it has itself, and the first reads all its
bytes; a step's has one for each launch that the engine recorded, in the same levels.
Computation, scattered bytes and the loading of code are not in it.

Operations:

%s
A case that fails does not end the others: its row, and a line on standard error, says why.

Exit status: 0 if everything was right and timed, 1 if something was wrong or is missing, 2 if
bench could not do its work. A lost device ends it, with the rows that were timed.`

// opNames returns the lines of the help that name operations.
func opNames() string {
	var b strings.Builder
	for _, name := range suites {
		for _, op := range bench.SuiteOps(name) {
			fmt.Fprintf(&b, "  %-11s %s\n", name, op.Name)
			name = ""
		}
	}
	return b.String()
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time operations, whole layers or whole steps",
		Long:  fmt.Sprintf(benchLong, verify.FloorTokens, opNames()),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.settle(cmd); err != nil {
				return err
			}
			if f.list {
				return listBench(f, cmd.Flags().Changed("suite") || f.compare != "", cmd.OutOrStdout())
			}
			return runBench(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.define(cmd.Flags())
	return cmd
}

// define defines the flags, with the suites that they belong to and their defaults.
func (f *benchFlags) define(fl *pflag.FlagSet) {
	ops, models := []string{"indexer", "attention", "memory", "linear", comparison}, []string{"layer", "step", "prefill"}
	fl.StringVar(&f.suite, "suite", suites[0], strings.Join(suites, ", "))
	fl.StringVar(&f.compare, "compare", "", "compare with the times of a file of peers, or of peers.json, which comes with the program")
	fl.StringSliceVar(&f.ops, "op", nil, "operations, names or how they begin (default all)")
	only(fl, "op", ops...)
	fl.StringSliceVar(&f.cases, "case", nil, "parts of the names of cases, as heads=64/batch=1 (default all)")
	only(fl, "case", ops...)
	fl.IntVar(&f.heads, "heads", 0, "query heads, 1 to 128 (default 64 and 128; indexer 64)")
	only(fl, "heads", "indexer", "attention", "memory")
	fl.Var(&numbers{list: &f.batches}, "batch", "tokens, as 1,4-8 or 1..64:x2 (default 1 to 256; indexer, memory 1,32,128; "+
		"linear 1,4,16,4096; layer 1,8,32,64; step 1,32; fewer on a processor)")
	only(fl, "batch", "indexer", "attention", "memory", "linear", "step", "layer")
	fl.Var(&numbers{list: &f.contexts}, "context", "tokens of each request (default 131072; indexer 16384,131072,1048576; "+
		"layer 4096,131072,1048576; fewer on a processor)")
	only(fl, "context", "indexer", "step", "layer")
	fl.Var(&numbers{list: &f.prefill}, "prefill", "tokens of a prompt, in indexer and memory of one step "+
		"(default 4096; layer 1024,4096,32768; prefill 4096,32768; fewer on a processor)")
	only(fl, "prefill", "indexer", "memory", "layer", "prefill")
	fl.Var(&numbers{list: &f.topk}, "topk", "compressed rows that a token attends, or that are picked "+
		"(default the operation's own; indexer 512,1024)")
	only(fl, "topk", "indexer", "attention")
	f.layer.define(fl, models)
	fl.StringVar(&f.Variant, "variant", "", "variant of the operations, "+
		"of attention in layers and steps (default the best, see vkmla info)")
	fl.IntVarP(&f.Reps, "reps", "r", 0, "timed launches, steps or prompts "+
		"(default 100; layer, step 40; prefill 5; fewer on a processor)")
	fl.Uint64Var(&f.Seed, "seed", 1, "seed of the inputs")
	deviceFlags(fl, &f.device, &f.profile)
	measureFlag(fl, &f.measure)
	fl.StringVarP(&f.output, "output", "o", "md", strings.Join(bench.Formats, ", "))
	fl.StringArrayVar(&f.save, "save", nil, "also write to this file, in the format of its ending: "+strings.Join(bench.Formats, ", ")+
		"; may be given more than once")
	fl.BoolVar(&f.list, "list", false, "list operations and cases, of --suite or of all suites, as they are on a GPU, and stop; "+
		"in md, csv or json")
}

// checkGiven refuses numbers that are too small for any suite: in options, 0 stands for
// the default.
func checkGiven(fl *pflag.FlagSet) (err error) {
	fl.Visit(func(x *pflag.Flag) {
		var list []int
		switch x.Value.Type() {
		case "int":
			n, _ := fl.GetInt(x.Name)
			list = []int{n}
		case "numbers":
			list = *x.Value.(*numbers).list
		}
		for _, n := range list {
			if n < 1 && err == nil {
				err = &vk.ArgumentError{Op: "bench", Arg: x.Name, Got: fmt.Sprint(n), Want: "at least 1"}
			}
		}
	})
	return err
}

// settle checks the flags that belong to one suite and reads what they name.
func (f *benchFlags) settle(cmd *cobra.Command) error {
	if err := checkGiven(cmd.Flags()); err != nil {
		return err
	}
	switch {
	case f.compare == "":
		if !slices.Contains(suites, f.suite) {
			return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: strconv.Quote(f.suite), Want: strings.Join(suites, ", ")}
		}
	case cmd.Flags().Changed("suite"):
		return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: strconv.Quote(f.suite),
			Want: "nothing beside --compare, which runs cases of all suites"}
	default:
		var err error
		if f.peers, err = bench.ReadPeers(f.compare); err != nil {
			return err
		}
		f.suite = comparison
	}
	if err := f.checkOwn(cmd.Flags()); err != nil || f.suite == comparison {
		return err
	}
	return f.layer.settle()
}

// checkOwn refuses flags of other suites.
func (f *benchFlags) checkOwn(fl *pflag.FlagSet) (err error) {
	fl.Visit(func(x *pflag.Flag) {
		list := x.Annotations[suitesOf]
		if err != nil || list == nil || slices.Contains(list, f.suite) {
			return
		}
		want := "nothing; it belongs to --suite " + strings.Join(list, ", ")
		want = strings.Replace(want, ", "+comparison, ", or --compare", 1)
		got := x.Value.String()
		if list, err := fl.GetStringSlice(x.Name); err == nil {
			got = strings.Join(list, ",")
		}
		err = &vk.ArgumentError{Op: "bench: " + f.suite, Arg: x.Name, Got: strconv.Quote(got), Want: want}
	})
	return err
}

func runBench(ctx context.Context, f benchFlags, stdout, stderr io.Writer) error {
	outputs, err := openOutputs("bench", stdout, f.output, f.save, bench.Formats)
	if err != nil {
		return err
	}
	dev, close, err := openDevice(f.device, f.profile)
	if err != nil {
		return err
	}
	defer close()
	if f.measure {
		if err := measured(ctx, dev, stderr); err != nil {
			return err
		}
	}
	p := &benchProgress{line: newProgress(stderr), stderr: plainWriter{stderr}}
	defer p.line.clear()
	limits, err := bench.Measure(ctx, dev, 9, p)
	if err != nil {
		return err
	}
	on := bench.ReportOn{Adapter: dev.Adapter(), Profile: f.profile, Limits: limits}
	err = f.run(ctx, dev, on, outputs, p)
	if errors.Is(err, bench.ErrWrong) && err.Error() == bench.ErrWrong.Error() {
		return errWrong
	}
	return err
}

// run runs the suite and writes its reports.
func (f benchFlags) run(ctx context.Context, dev *vk.Device, on bench.ReportOn, outputs []*output, p *benchProgress) error {
	switch f.suite {
	case "layer":
		return report(on, outputs, p, bench.NewLayerReport, func(add func(bench.LayerRow)) error {
			return bench.Layers(ctx, dev, f.layerOptions(), on.Limits, p, add)
		})
	case "step":
		return report(on, outputs, p, bench.NewStepReport, func(add func(bench.StepRow)) error {
			return bench.Steps(ctx, dev, f.layerOptions(), on.Limits, p, add)
		})
	case "prefill":
		return report(on, outputs, p, bench.NewPrefillReport, func(add func(bench.PrefillRow)) error {
			return bench.Prefills(ctx, dev, f.layerOptions(), on.Limits, p, add)
		})
	case comparison:
		start := func(on bench.ReportOn) (*bench.Report[bench.OpRow], error) {
			return bench.NewCompareReport(on, f.peers)
		}
		return report(on, outputs, p, start, func(add func(bench.OpRow)) error {
			return bench.Compare(ctx, dev, f.compareOptions(), on.Limits, p, add)
		})
	}
	start := func(on bench.ReportOn) (*bench.Report[bench.OpRow], error) { return bench.NewOpReport(on, f.suite) }
	return report(on, outputs, p, start, func(add func(bench.OpRow)) error {
		return bench.Ops(ctx, dev, f.suite, f.opOptions(), on.Limits, p, add)
	})
}

// report runs a suite and writes its rows to all outputs, those so far if something ended it. What
// is not ok is also said at once.
func report[R any](on bench.ReportOn, outputs []*output, p *benchProgress,
	start func(bench.ReportOn) (*bench.Report[R], error), suite func(add func(R)) error) error {
	var reports []*bench.Report[R]
	for _, o := range outputs {
		on.Out, on.Format = o, o.format
		r, err := start(on)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	rows := 0
	err := suite(func(row R) {
		rows++
		p.line.clear()
		if text := reports[0].Problem(row); text != "" {
			fmt.Fprintln(p.stderr, text)
		}
		for _, r := range reports {
			r.Add(row)
		}
	})
	p.line.clear()
	if err != nil && rows == 0 {
		return err
	}
	for i, r := range reports {
		if e := errors.Join(r.Close(), outputs[i].keep()); e != nil {
			err = errors.Join(err, fmt.Errorf("bench: output: %w", e))
		}
	}
	return err
}

func (f benchFlags) compareOptions() bench.CompareOptions {
	return bench.CompareOptions{Common: f.Common, Peers: f.peers, Ops: f.ops, Cases: f.cases}
}

func (f benchFlags) opOptions() bench.OpOptions {
	if f.suite == comparison {
		return f.compareOptions().OpOptions()
	}
	s := verify.SizeOptions{IndexHeads: f.heads, TopK: f.topk, Batches: f.batches, Prefill: f.prefill,
		Contexts: f.contexts, Weights: f.layer.weights}
	if f.heads > 0 {
		s.Heads = []int{f.heads}
	}
	return bench.OpOptions{Common: f.Common, Ops: f.ops, Cases: f.cases, Sizes: s, Models: f.layer.models}
}

// benchProgress shows what a benchmark does on the progress line.
type benchProgress struct {
	line        *progress
	stderr      io.Writer
	what        string
	done, total int // rows
}

func (p *benchProgress) Rows(done, total int) { p.done, p.total = done, total }

func (p *benchProgress) Step(what string) {
	if p.total > 0 {
		what = fmt.Sprintf("%d/%d%s %s", p.done+1, p.total, p.line.left(p.done, p.total), what)
	}
	p.what = what
	p.line.show("%s", what)
}

func (p *benchProgress) Advance(done, total int64) {
	p.line.show("%s %d%%", p.what, 100*done/max(total, 1))
}
