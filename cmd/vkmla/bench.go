package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/bench"
	"github.com/vkmla/vkmla/vk"
)

type benchFlags struct {
	opts     bench.DecodeOptions
	ops      []string
	topk     []int
	prefill  []int
	contexts []int
	layer    layerFlags
	suite    string
	compare  string
	peers    bench.PeerTable
	device   string
	output   string
}

// suites are the values of --suite, each with the flags that not all of them have.
var suites = []struct {
	name  string
	flags []string
}{
	{"decode", []string{"heads", "topk", "window", "batch", "context"}},
	{"indexer", []string{"heads", "topk", "batch", "context", "prefill", "op"}},
	{"attention", []string{"op", "batch", "heads", "topk"}},
	{"memory", []string{"op", "batch", "heads", "prefill"}},
	{"linear", []string{"op", "batch", "model", "weights"}},
	{"step", []string{"batch", "context", "model", "weights", "keys"}},
	{comparison, []string{"op"}},
	{"layer", []string{"batch", "context", "prefill", "model", "kind", "weights", "chunk", "keys", "output-path"}},
}

// comparison is the suite that --compare runs, of others' cases.
const comparison = "compare"

func suiteNames() string {
	var names []string
	for _, s := range suites {
		if s.name != comparison {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, ", ")
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time attention, the indexer, whole layers or whole steps",
		Long: `Bench has several suites. The suite decode, which is the default, times the decode
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
sparse prefill. The suites memory and linear time the operations that mostly move bytes (insertion,
gathering, norms, rotations) and the matrix products of layers, one by one.

The suite layer times whole layers, from hidden states to hidden states, with random
weights: one of each kind (window, c4a, c128a) of --model flash or pro in the formats
of --weights, for decode steps of --batch requests of --context tokens, and for the
chunks of prefills of --prefill tokens. It gives the time of the layer and, from
timestamps between them, of each of its operations, with the bytes of weights, caches
and activations, the share of the measured limits, launches, barriers and device
memory by purpose. What does not fit into device memory is left out, and that is said.

The suite step times whole decode steps of a model, all layers in one submission, for
--batch sequences of --context tokens: the device's time, the processor's time, the
operations by kind of layer, bytes needed and how many times their time a step takes,
launches and barriers, device memory by purpose. Layers have weights of their own as
long as there is memory for them; otherwise it is said how many share theirs. One layer
of each kind is checked first.

With --compare FILE, bench runs the cases of all suites that FILE has others' times of,
and those that have a goal without, and gives each row with the peer's time, ours, the
ratio and the share of the limit, and geometric means beside the project's goals.
--compare peers.json is the table that comes with the program; its form is that of
internal/bench/peers.json.

Exit status: 0 if every batch was right and timed, 1 if one was wrong, 2 if bench
could not do its work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.opts.Warmup == 0 && cmd.Flags().Changed("warmup") {
				f.opts.Warmup = -1 // none, as opposed to the default
			}
			if err := f.settle(cmd); err != nil {
				return err
			}
			return runBench(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.opts.Heads, "heads", 0, "query heads, 1 to 128 (default 64)")
	fl.StringVar(&f.suite, "suite", suites[0].name, suiteNames())
	fl.StringVar(&f.compare, "compare", "", "compare with the times of a file of peers, or of peers.json, which comes with the program")
	f.layer.define(fl)
	fl.StringSliceVar(&f.ops, "op", nil, "operations of the suite, names or how they begin (default all)")
	fl.IntSliceVar(&f.prefill, "prefill", nil, "suite indexer: tokens of a prefill step (default 4096; 256 on a CPU); layer: of a prompt (default 1024,4096,32768)")
	fl.IntSliceVar(&f.topk, "topk", nil, "compressed rows that a token attends (default 512; suite indexer 512,1024)")
	fl.IntVar(&f.opts.Window, "window", 0, "rows of the sliding window (default 128)")
	fl.IntSliceVar(&f.opts.Batches, "batch", nil, "tokens, one or several numbers with commas (default 1 to 128 by powers of two; suite layer 1,8,32,64; fewer on a CPU)")
	fl.IntSliceVar(&f.contexts, "context", nil, "tokens of each request (default 65536; suite indexer 16384,131072,1048576; layer 4096,131072,1048576; fewer on a CPU)")
	fl.IntVar(&f.opts.Reps, "reps", 0, "timed steps (default 200; 5 on a CPU)")
	fl.IntVar(&f.opts.Warmup, "warmup", 0, "steps before them (default 20; 1 on a CPU)")
	fl.StringVar(&f.opts.Variant, "variant", "", "variant of the attention kernel, or of the logits (default the best, see vkmla info)")
	fl.StringVar(&f.device, "device", "", "device: index, part of its name, or UUID (default the first GPU, else the first CPU)")
	fl.StringVarP(&f.output, "output", "o", "md", strings.Join(bench.Formats, ", "))
	fl.Uint64Var(&f.opts.Seed, "seed", 1, "seed of the inputs")
	return cmd
}

// settle checks the flags that belong to one suite and fills in its options.
func (f *benchFlags) settle(cmd *cobra.Command) error {
	own, others := map[string]bool{}, map[string][]string{}
	known := false
	if f.compare != "" {
		if cmd.Flags().Changed("suite") {
			return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: f.suite, Want: "nothing beside --compare, which runs cases of all suites"}
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
			others[name] = append(others[name], s.name)
		}
		known = known || s.name == f.suite && (s.name != comparison || f.compare != "")
	}
	if !known {
		return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: f.suite, Want: suiteNames()}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !own[name] && cmd.Flags().Changed(name) {
			return &vk.ArgumentError{Op: "bench: " + f.suite, Arg: name, Got: cmd.Flags().Lookup(name).Value.String(),
				Want: "nothing; it belongs to --suite " + strings.Join(others[name], ", ")}
		}
	}
	if f.suite == comparison {
		return nil
	}
	if f.suite == "decode" {
		return f.single()
	}
	return f.layer.settle()
}

// single takes the flags of which the suite decode has one number where others have
// several.
func (f *benchFlags) single() error {
	for _, v := range []struct {
		arg  string
		list []int
		to   *int
	}{{"topk", f.topk, &f.opts.TopK}, {"context", f.contexts, &f.opts.Context}} {
		if len(v.list) > 1 {
			return &vk.ArgumentError{Op: "bench: decode", Arg: v.arg, Got: fmt.Sprint(v.list), Want: "one number"}
		}
		for _, n := range v.list {
			*v.to = n
		}
	}
	return nil
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
		return report, bench.Decode(ctx, dev, f.opts, limits, p, func(r bench.Row) { p.line.clear(); report.Add(r) })
	case "layer":
		report, err := bench.NewLayerReport(stdout, f.output, dev.Adapter(), limits)
		if err != nil {
			return nil, err
		}
		return report, bench.Layers(ctx, dev, f.layerOptions(), limits, p, func(r bench.LayerRow) { p.line.clear(); report.Add(r) })
	}
	return f.runMore(ctx, dev, limits, stdout, p)
}

// runMore runs the suites of steps and of single operations.
func (f benchFlags) runMore(ctx context.Context, dev *vk.Device, limits bench.Limits, stdout io.Writer, p *benchProgress) (closer, error) {
	switch f.suite {
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
		o := bench.CompareOptions{Peers: f.peers, Ops: f.ops, Reps: f.opts.Reps, Warmup: f.opts.Warmup, Variant: f.opts.Variant, Seed: f.opts.Seed}
		return report, bench.Compare(ctx, dev, o, limits, p, func(r bench.OpRow) { p.line.clear(); report.Add(r) })
	}
	report, err := bench.NewOpReport(stdout, f.output, dev.Adapter(), limits)
	if err != nil {
		return nil, err
	}
	add := func(r bench.OpRow) { p.line.clear(); report.Add(r) }
	o := bench.SuiteOptions{Ops: f.ops, Tokens: f.opts.Batches, Models: f.layer.models, Weights: f.layer.weights,
		Reps: f.opts.Reps, Warmup: f.opts.Warmup, Variant: f.opts.Variant, Seed: f.opts.Seed}
	switch f.suite {
	case "attention":
		a := bench.AttentionOptions{Ops: f.ops, Batches: f.opts.Batches, TopK: f.topk, Reps: f.opts.Reps, Warmup: f.opts.Warmup, Variant: f.opts.Variant, Seed: f.opts.Seed}
		if f.opts.Heads > 0 {
			a.Heads = []int{f.opts.Heads}
		}
		return report, bench.Attention(ctx, dev, a, limits, p, add)
	case "linear":
		return report, bench.Linear(ctx, dev, o, limits, p, add)
	}
	time := bench.Indexer
	if f.suite == "memory" {
		time = bench.Memory
	}
	return report, time(ctx, dev, bench.IndexerOptions{Ops: f.ops, Heads: f.opts.Heads, TopK: f.topk, Batches: f.opts.Batches, Prefill: f.prefill, Contexts: f.contexts,
		Reps: f.opts.Reps, Warmup: f.opts.Warmup, Variant: f.opts.Variant, Seed: f.opts.Seed}, limits, p, add)
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
