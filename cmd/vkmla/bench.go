package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	suite    string
	device   string
	output   string
}

// suites are the values of --suite.
var suites = []string{"decode", "indexer", "memory"}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time a decode step, or the indexer",
		Long: `Bench has three suites. The suite decode, which is the default, times the decode
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

The suite memory does the same for the operations of a layer that are bound by the
bytes they move: norms, rotation, quantisation, insertion and gathering of rows.
In these two suites a time of a short launch is the mean of up to 16 that follow
each other between two timestamps.

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
	fl.StringVar(&f.suite, "suite", suites[0], strings.Join(suites, ", "))
	fl.StringSliceVar(&f.ops, "op", nil, "suite indexer: operations, names or how they begin (default all)")
	fl.IntSliceVar(&f.prefill, "prefill", nil, "suite indexer: tokens of a prefill step (default 4096; 256 on a CPU)")
	fl.IntSliceVar(&f.topk, "topk", nil, "compressed rows that a token attends (default 512; suite indexer 512,1024)")
	fl.IntVar(&f.opts.Window, "window", 0, "rows of the sliding window (default 128)")
	fl.IntSliceVar(&f.opts.Batches, "batch", nil, "tokens, one or several numbers with commas (default 1 to 128 by powers of two; 1,2,4 on a CPU)")
	fl.IntSliceVar(&f.contexts, "context", nil, "tokens of each request (default 65536; suite indexer 16384,131072,1048576; 4096 on a CPU)")
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
	switch f.suite {
	case "indexer", "memory":
		return nil
	case "decode":
		for _, name := range []string{"op", "prefill"} {
			if cmd.Flags().Changed(name) {
				return &vk.ArgumentError{Op: "bench: decode", Arg: name, Got: cmd.Flags().Lookup(name).Value.String(), Want: "nothing; it belongs to --suite indexer"}
			}
		}
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
	return &vk.ArgumentError{Op: "bench", Arg: "suite", Got: f.suite, Want: strings.Join(suites[:len(suites)-1], ", ") + " or " + suites[len(suites)-1]}
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

// run runs the suite and returns its report, to be closed.
func (f benchFlags) run(ctx context.Context, dev *vk.Device, limits bench.Limits, stdout io.Writer, p *benchProgress) (interface{ Close() error }, error) {
	if f.suite == "decode" {
		report, err := bench.NewReport(stdout, f.output, dev.Adapter(), limits)
		if err != nil {
			return nil, err
		}
		return report, bench.Decode(ctx, dev, f.opts, limits, p, func(r bench.Row) { p.line.clear(); report.Add(r) })
	}
	report, err := bench.NewOpReport(stdout, f.output, dev.Adapter(), limits)
	if err != nil {
		return nil, err
	}
	o := bench.IndexerOptions{Ops: f.ops, Heads: f.opts.Heads, TopK: f.topk, Batches: f.opts.Batches, Prefill: f.prefill, Contexts: f.contexts,
		Reps: f.opts.Reps, Warmup: f.opts.Warmup, Variant: f.opts.Variant, Seed: f.opts.Seed}
	time := bench.Indexer
	if f.suite == "memory" {
		time = bench.Memory
	}
	return report, time(ctx, dev, o, limits, p, func(r bench.OpRow) { p.line.clear(); report.Add(r) })
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
