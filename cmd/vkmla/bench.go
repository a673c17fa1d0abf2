package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/vk"
)

type benchFlags struct {
	bench.Common
	ops               []string
	batches, contexts []int
	topk, prefill     []int
	heads, window     int
	layer             layerFlags
	suite             string
	compare           string
	peers             bench.PeerTable
	device            string
	output            string
}

// suites are the values of --suite, each with the flags that not all of them have, and
// the names that --op takes.
var suites = []struct {
	name  string
	flags []string
	ops   []string
}{
	{"decode", []string{"heads", "topk", "window", "batch", "context", "variant"}, nil},
	{"indexer", []string{"heads", "topk", "batch", "context", "prefill", "op", "variant"}, bench.IndexerOps},
	{"attention", []string{"op", "batch", "heads", "topk", "variant"}, bench.AttentionOps},
	{"memory", []string{"op", "batch", "heads", "prefill"}, bench.MemoryOps},
	{"linear", []string{"op", "batch", "model", "weights", "variant"}, bench.LinearOps},
	{"step", []string{"batch", "context", "model", "weights", "keys", "variant"}, nil},
	{comparison, comparedFlags, nil},
	{"layer", []string{"batch", "context", "prefill", "model", "kind", "weights", "chunk", "keys", "output-path", "variant"}, nil},
}

// comparison is the suite that --compare runs, of others' cases.
const comparison = "compare"

var comparedFlags = []string{"op", "variant"}

func suiteNames() string {
	var names []string
	for _, s := range suites {
		if s.name != comparison {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, ", ")
}

// benchLong is what --help says before the flags.
const benchLong = `Bench has several suites. The suite decode, which is the default, times the decode
attention of a DeepSeek-V4 C4A layer for several batch sizes: each token is a
request of its own and attends its sliding window and the rows that the indexer
picked, from FP8 pages behind random block tables.

Two times are given. "attend" is the attention kernel with the merge of its
parts; "step" is all of it: map slots, insert the new row, build both index lists,
attend. Times are GPU timestamps, median and 95th percentile, after a warm-up, with
inputs rotated past the last-level cache. Bytes are the least that attention has to
move; the shares are of the copy bandwidth and the matrix rate measured first.

Before a batch size is timed, its index lists are compared with the reference for
all tokens, and the attention for up to three. A wrong kernel is reported as wrong
and not timed.

The suite indexer times what chooses those rows, operation by operation: the
compressors, query quantisation, logits, top-k, and scoring and selecting in one.
Its rows stand beside what other implementations take on an H100, where somebody
measured it. --batch, --prefill, --context and --topk give its sizes, --op picks
operations by the beginning of their names. Each case is checked first, too.

The suite attention times the attention kernel alone, with the merge of its parts: for
the rows of a C4A layer, of the window alone, of a C128A layer at a million tokens, and
sparse prefill. The suites memory and linear time the operations that mostly move bytes
(insertion, gathering, norms, rotations) and the matrix products of layers, one by one.

The suite layer times whole layers, from hidden states to hidden states, with random
weights: one of each kind (window, c4a, c128a) of --model flash or pro in the formats
of --weights, for decode steps of --batch requests of --context tokens, and for the
chunks of prefills of --prefill tokens. It gives the time of the layer and, from
timestamps between them, of each of its operations, with the bytes of weights, caches
and activations, the share of the measured limits, launches, barriers and device
memory by purpose. Where one of --batch and --prefill is given, the other is left out.
What does not fit into device memory is left out, too, and that is said.

The suite step times whole decode steps of a model, all layers in one submission, with
and without a kernel between them that makes them depend on each other, and layer by
layer, for --batch sequences of --context tokens: the device's time, the processor's
time, the operations by kind of layer, bytes needed and how many times their time a step
takes, launches and barriers, device memory by purpose. Layers have weights of their own
as long as there is memory for them; otherwise it is said how many share theirs. One
layer of each kind is checked first, and that all layers are in the chain.

With --compare FILE, bench runs the cases of all suites that FILE has others' times of,
and those that have a goal without, and gives each row with the peer's time, ours, the
ratio and the share of the limit, and geometric means beside the project's goals.
--compare peers.json is the table that comes with the program; its form is that of
internal/lab/bench/peers.json.

A copy of a gigabyte reaches more than any launch of some megabytes that has to wait for
another one. So decode attention, products of up to %d tokens and whole steps stand beside
a floor, too, timed in the same run in the same way: launches of the same bytes that only
read. Of an operation there are as many, one behind the other, as it has itself, and the
first reads all its bytes; of a step there is one for each launch that the engine recorded,
in the same levels. What has to be computed is not in it, nor that bytes lie scattered, nor
the way of kernels' code from memory: what has these launches can hardly be faster.

--op takes these names, or how some begin, and with --compare those of all suites:

%s
Exit status: 0 if every batch was right and timed, 1 if one was wrong, 2 if bench
could not do its work.`

// opNames are the lines of the help that name operations.
func opNames() string {
	var b strings.Builder
	for _, s := range suites {
		if s.ops == nil {
			continue
		}
		line := fmt.Sprintf("  %-10s", s.name)
		for i, op := range s.ops {
			if len(line)+len(op) > 85 {
				fmt.Fprintln(&b, line)
				line = strings.Repeat(" ", 12)
			}
			line += " " + op
			if i < len(s.ops)-1 {
				line += ","
			}
		}
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time attention, the indexer, whole layers or whole steps",
		Long:  fmt.Sprintf(benchLong, bench.FloorTokens, opNames()),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.settle(cmd); err != nil {
				return err
			}
			return runBench(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.define(cmd.Flags())
	return cmd
}

// define says of each flag which suites have it, and its defaults.
func (f *benchFlags) define(fl *pflag.FlagSet) {
	fl.StringVar(&f.suite, "suite", suites[0].name, suiteNames())
	fl.StringVar(&f.compare, "compare", "", "compare with the times of a file of peers, or of peers.json, which comes with the program")
	fl.StringSliceVar(&f.ops, "op", nil, "suites indexer, attention, memory, linear, and --compare: operations, names or how they begin (default all)")
	fl.IntVar(&f.heads, "heads", 0, "query heads, 1 to 128 (default, suites decode, indexer: 64; attention, memory: 64 and 128)")
	fl.IntSliceVar(&f.batches, "batch", nil, "tokens, one or several numbers with commas (default, suite decode: 1 to 128 by powers of two; indexer, memory: 1,32,128; attention: 1 to 256; linear: 1,4,16,4096; layer: 1,8,32,64; step: 1,32; fewer on a CPU)")
	fl.IntSliceVar(&f.contexts, "context", nil, "tokens of each request (default, suite decode: 65536; indexer: 16384,131072,1048576; layer: 4096,131072,1048576; step: 131072; fewer on a CPU)")
	fl.IntSliceVar(&f.prefill, "prefill", nil, "suites indexer, memory: tokens of a prefill step (default 4096; 256 on a CPU); layer: of a prompt (default 1024,4096,32768; 300 on a CPU)")
	fl.IntSliceVar(&f.topk, "topk", nil, "compressed rows that a token attends, or that are picked (default, suite decode: 512; indexer: 512,1024; attention: the operation's own)")
	fl.IntVar(&f.window, "window", 0, "suite decode: rows of the sliding window (default 128)")
	f.layer.define(fl)
	fl.StringVar(&f.Variant, "variant", "", "variant of attention kernels, scores or products; not suite memory (default the best, see vkmla info)")
	fl.IntVar(&f.Reps, "reps", 0, "timed launches or steps (default, suite decode: 200; indexer, attention, memory, linear: 100; layer, step: 40; fewer on a CPU)")
	fl.IntVar(&f.Warmup, "warmup", 0, "those before them (default 20; suites layer, step: 5; 1 on a CPU)")
	fl.Uint64Var(&f.Seed, "seed", 1, "seed of the inputs")
	fl.StringVar(&f.device, "device", "", "device: index, part of its name, or UUID (default the first GPU, else the first CPU)")
	fl.StringVarP(&f.output, "output", "o", "md", strings.Join(bench.Formats, ", "))
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
		case "intSlice":
			list, _ = fl.GetIntSlice(x.Name)
		}
		least := 1
		if x.Name == "warmup" {
			least = 0
		}
		for _, n := range list {
			if n < least && err == nil {
				err = &vk.ArgumentError{Op: "bench", Arg: x.Name, Got: fmt.Sprint(n), Want: fmt.Sprintf("at least %d", least)}
			}
		}
	})
	return err
}

// settle checks the flags that belong to one suite, reads what they name, and makes no
// warm-up what it is in options.
func (f *benchFlags) settle(cmd *cobra.Command) error {
	if err := checkGiven(cmd.Flags()); err != nil {
		return err
	}
	if f.Warmup == 0 && cmd.Flags().Changed("warmup") {
		f.Warmup = -1 // none, as opposed to the default
	}
	own, others := map[string]bool{}, map[string][]string{}
	known := false
	if f.compare != "" {
		if cmd.Flags().Changed("suite") {
			return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: strconv.Quote(f.suite), Want: "nothing beside --compare, which runs cases of all suites"}
		}
		var err error
		if f.peers, err = bench.ReadPeers(f.compare); err != nil {
			return err
		}
		f.suite = comparison
	}
	for _, s := range suites {
		for _, name := range s.flags {
			own[name] = own[name] || s.name == f.suite
			if s.name != comparison {
				others[name] = append(others[name], s.name)
			}
		}
		known = known || s.name == f.suite && (s.name != comparison || f.compare != "")
	}
	if !known {
		return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: strconv.Quote(f.suite), Want: suiteNames()}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !own[name] && cmd.Flags().Changed(name) {
			want := "nothing; it belongs to --suite " + strings.Join(others[name], ", ")
			if slices.Contains(comparedFlags, name) {
				want += ", or --compare"
			}
			return &vk.ArgumentError{Op: "bench: " + f.suite, Arg: name, Got: strconv.Quote(strings.Trim(cmd.Flags().Lookup(name).Value.String(), "[]")), Want: want}
		}
	}
	if f.suite == comparison {
		return nil
	}
	if f.suite == "decode" {
		_, err := f.decodeOptions()
		return err
	}
	return f.layer.settle()
}

// decodeOptions are those of the suite decode, which has one number where others have
// several.
func (f benchFlags) decodeOptions() (bench.DecodeOptions, error) {
	o := bench.DecodeOptions{Common: f.Common, Heads: f.heads, Window: f.window, Batches: f.batches}
	for _, v := range []struct {
		arg  string
		list []int
		to   *int
	}{{"topk", f.topk, &o.TopK}, {"context", f.contexts, &o.Context}} {
		if len(v.list) > 1 {
			return o, &vk.ArgumentError{Op: "bench: decode", Arg: v.arg, Got: fmt.Sprint(v.list), Want: "one number"}
		}
		for _, n := range v.list {
			*v.to = n
		}
	}
	return o, nil
}

func runBench(ctx context.Context, f benchFlags, stdout, stderr io.Writer) error {
	if err := bench.CheckFormat(f.output); err != nil {
		return err
	}
	dev, close, err := openDevice(f.device)
	if err != nil {
		return err
	}
	defer close()
	p := &benchProgress{line: newProgress(stderr)}
	defer p.line.clear()
	limits, err := bench.Measure(ctx, dev, 9, p)
	if err != nil {
		return err
	}
	report, err := f.run(ctx, dev, limits, stdout, p)
	p.line.clear()
	if err != nil && !errors.Is(err, bench.ErrWrong) {
		if ctx.Err() != nil && report != nil { // somebody was tired of waiting: what there is
			err = errors.Join(err, report.Close())
		}
		return err
	}
	if e := report.Close(); e != nil {
		return fmt.Errorf("bench: output: %w", e)
	}
	if err != nil {
		return errWrong
	}
	return nil
}

// closer is a report that is still to be finished.
type closer interface{ Close() error }

// run runs the suite and returns its report, to be closed.
func (f benchFlags) run(ctx context.Context, dev *vk.Device, limits bench.Limits, stdout io.Writer, p *benchProgress) (closer, error) {
	switch f.suite {
	case "decode":
		report, err := bench.NewReport(stdout, f.output, dev.Adapter(), limits)
		if err != nil {
			return nil, err
		}
		o, err := f.decodeOptions()
		if err != nil {
			return nil, err
		}
		return report, bench.Decode(ctx, dev, o, limits, p, func(r bench.Row) { p.line.clear(); report.Add(r) })
	case "layer":
		report, err := bench.NewLayerReport(stdout, f.output, dev.Adapter(), limits)
		if err != nil {
			return nil, err
		}
		return report, bench.Layers(ctx, dev, f.layerOptions(), limits, p, func(r bench.LayerRow) { p.line.clear(); report.Add(r) })
	case "step":
		report, err := bench.NewStepReport(stdout, f.output, dev.Adapter(), limits)
		if err != nil {
			return nil, err
		}
		return report, bench.Steps(ctx, dev, bench.StepOptions{LayerOptions: f.layerOptions()}, limits, p, func(r bench.StepRow) { p.line.clear(); report.Add(r) })
	case comparison:
		report, err := bench.NewCompareReport(stdout, f.output, dev.Adapter(), limits, f.peers)
		if err != nil {
			return nil, err
		}
		o := bench.CompareOptions{Common: f.Common, Peers: f.peers, Ops: f.ops}
		return report, bench.Compare(ctx, dev, o, limits, p, func(r bench.OpRow) { p.line.clear(); report.Add(r) })
	}
	report, err := bench.NewOpReport(stdout, f.output, f.suite, dev.Adapter(), limits)
	if err != nil {
		return nil, err
	}
	return report, f.runOps(ctx, dev, limits, p, func(r bench.OpRow) { p.line.clear(); report.Add(r) })
}

// runOps runs the suites of single operations.
func (f benchFlags) runOps(ctx context.Context, dev *vk.Device, limits bench.Limits, p *benchProgress, add func(bench.OpRow)) error {
	switch f.suite {
	case "attention":
		o := bench.AttentionOptions{Common: f.Common, Ops: f.ops, Batches: f.batches, TopK: f.topk}
		if f.heads > 0 {
			o.Heads = []int{f.heads}
		}
		return bench.Attention(ctx, dev, o, limits, p, add)
	case "linear":
		o := bench.SuiteOptions{Common: f.Common, Ops: f.ops, Tokens: f.batches, Models: f.layer.models, Weights: f.layer.weights}
		return bench.Linear(ctx, dev, o, limits, p, add)
	}
	o := bench.IndexerOptions{Common: f.Common, Ops: f.ops, Heads: f.heads, TopK: f.topk, Batches: f.batches, Prefill: f.prefill, Contexts: f.contexts}
	if f.suite == "memory" {
		return bench.Memory(ctx, dev, o, limits, p, add)
	}
	return bench.Indexer(ctx, dev, o, limits, p, add)
}

// benchProgress shows what a benchmark does on the progress line.
type benchProgress struct {
	line *progress
	what string
}

func (p *benchProgress) Step(what string) {
	p.what = what
	p.line.show("%s", what)
}

func (p *benchProgress) Advance(done, total int64) {
	p.line.show("%s %d%%", p.what, 100*done/max(total, 1))
}
