package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// benchOptions are the command line of bench.
type benchOptions struct {
	options
	batches           []int
	prompt, answer    int
	url, key, picture string // of a server that clients ask
	requests, vocab   int
}

func parseBench(args []string) (o benchOptions, err error) {
	f := flag.NewFlagSet("server bench", flag.ContinueOnError)
	o.modelFlags(f)
	f.BoolVar(&o.warm, "warm", true, "take steps of all sizes before anything is timed")
	list := f.String("batch", "1,2,4,8,16,32,64", "requests at a time, one table row each")
	f.IntVar(&o.prompt, "prompt", 128, "tokens of each prompt")
	f.IntVar(&o.answer, "tokens", 64, "tokens of each answer")
	f.IntVar(&o.step, "max-step", 256, "most tokens of a step")
	f.StringVar(&o.url, "url", "", "a server to be asked by as many clients, instead of --model")
	f.StringVar(&o.key, "key", "", "with --url: the server's key, if it wants one")
	f.IntVar(&o.requests, "requests", 4, "with --url: requests of each client, one after the other")
	f.IntVar(&o.vocab, "vocab", 256, "with --url: prompts are random token ids below this")
	f.StringVar(&o.picture, "picture", "", "with --url: file for a picture of the table, SVG")
	if err = parseFlags(f, args, "Bench times a model's steps, or with --url what the clients of a server get.\n"); err != nil {
		return o, err
	}
	for part := range strings.SplitSeq(*list, ",") {
		n, bad := strconv.Atoi(part)
		if bad != nil || n < 1 {
			return o, fmt.Errorf("server: bench: --batch: got %q, want numbers of requests, such as 1,8,32", *list)
		}
		o.batches, o.sessions = append(o.batches, n), max(o.sessions, n)
	}
	if o.url == "" {
		err = o.checkModel()
	}
	switch {
	case err != nil:
	case o.url != "" && o.dir != "":
		err = fmt.Errorf("server: bench: --url, --model: got %s and %s, want one of them", o.url, o.dir)
	case o.url != "" && !strings.HasPrefix(o.url, "http://") && !strings.HasPrefix(o.url, "https://"):
		err = fmt.Errorf("server: bench: --url: got %s, want one such as http://localhost:8080", o.url)
	case o.picture != "" && o.url == "":
		err = errors.New("server: bench: --picture: got a file, want --url beside it")
	case o.requests < 1 || o.vocab < 1:
		err = fmt.Errorf("server: bench: --requests, --vocab: got %d and %d, want at least 1", o.requests, o.vocab)
	case o.prompt < 1 || o.answer < 3:
		err = fmt.Errorf("server: bench: --prompt, --tokens: got %d and %d, want at least 1 and 3", o.prompt, o.answer)
	case o.step < o.sessions:
		err = fmt.Errorf("server: bench: --max-step: got %d, want at least the largest batch, %d", o.step, o.sessions)
	}
	o.tokens = o.prompt + o.answer
	return o, err
}

// output keeps the first error of writing for the end, since lines of tables are printed without.
type output struct {
	io.Writer
	failed error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.failed == nil {
		o.failed = err
	}
	return n, err
}

// bench times generation in batches of several sizes, with random prompts, and prints two tables:
// where the time goes, and what is read of weights, of experts beside the memory's bandwidth. With
// --url it asks a server instead.
func bench(ctx context.Context, args []string, stdout io.Writer, log *slog.Logger) (err error) {
	out := &output{Writer: stdout}
	defer func() { err = errors.Join(err, out.failed) }()
	o, err := parseBench(args)
	if err != nil {
		return err
	}
	if o.url != "" {
		return o.clients(ctx, out)
	}
	return o.with(ctx, log, func(dev *vk.Device, m *model.Model) error {
		if o.warm {
			if err := m.Warm(ctx); err != nil {
				return err
			}
		}
		if m.GPU() != nil {
			return o.benchGPU(ctx, dev, m, out, log)
		}
		cores := m.CPU().Measure()
		copies, err := gpu.CopyRate(ctx, dev)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s, which copies (reads and writes) at %.0f GB/s; %d cores with %s, which read memory at %.1f GB/s and\n"+
			"the experts of single tokens at %.1f GB/s, %.0f %% of it; %d layers. Times in ms of a step.\n\n",
			dev.Adapter().Name, copies.PerSecond()/1e9, m.CPU().Workers(), cpu.Instructions(), cores.Memory/1e9,
			cores.Experts/1e9, 100*cores.Experts/cores.Memory, len(m.Weights.Layers))
		var rows []benchRow
		for _, n := range o.batches {
			row, err := o.run(ctx, m, n, log)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		printTimes(out, rows)
		printBytes(out, rows, cores.Memory)
		o.printDrafts(out, rows)
		return nil
	})
}

// benchRow holds the costs of a batch. Times and bytes are of all steps that gave every request a
// token.
type benchRow struct {
	batch, steps int
	prompts      float64 // tokens of prompts a second
	generated
	time   time.Duration // from step to step, sampling included
	device time.Duration // of it, waiting for the device
	model.Spent
}

// watched is a model that looks at its steps.
type watched struct {
	*model.Model
	batch           int
	prompts         int       // tokens in front of the steps that are timed
	began, from, to time.Time // the first step began; a full one began, the first and the last
	first, last     model.Spent
	before, waited  time.Duration // for the device
	steps           int           // timed
	now, timed      generated     // since the first full step, until the last
}

// generated counts tokens.
type generated struct{ answers, drafted int }

// Step takes the time of steps that give every request a token, from the start of the first to
// that of the last.
func (w *watched) Step(ctx context.Context, chunks ...model.Chunk) ([][]float32, error) {
	now, tokens, full := time.Now(), 0, len(chunks) == w.batch && w.prompts > 0
	for _, c := range chunks {
		tokens += len(c.Tokens)
		full = full && len(c.Logits) == len(c.Tokens) // of prompts few are wanted
	}
	if w.began.IsZero() {
		w.began = now
	}
	switch {
	case full && w.from.IsZero():
		w.from, w.first, w.before = now, w.Spent(), w.Stats().Running
		w.now = generated{}
	case full:
		w.steps++
		w.to, w.last, w.waited, w.timed = now, w.Spent(), w.Stats().Running-w.before, w.now
	case w.from.IsZero():
		w.prompts += tokens
	}
	w.now.answers, w.now.drafted = w.now.answers+tokens, w.now.drafted+tokens-len(chunks)
	return w.Model.Step(ctx, chunks...)
}

// TakeBack takes tokens back from the answers, too.
func (w *watched) TakeBack(s *model.Sequence, n int) error {
	w.now.answers -= n
	return w.Model.TakeBack(s, n)
}

// run answers n requests at once.
func (o *benchOptions) run(ctx context.Context, m *model.Model, n int, log *slog.Logger) (row benchRow, err error) {
	w := &watched{Model: m, batch: n}
	s := batch.New(w, batch.Options{Vocab: m.Config.Vocab, MaxTokens: o.tokens, MaxSessions: n, MaxStep: o.step,
		Drafter: w, Drafts: o.drafts, Log: log, Metrics: batch.NewMetrics(prometheus.NewRegistry())})
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	answers := make([]*batch.Answer, n)
	for i := range answers {
		r := batch.Request{Prompt: make([]int32, o.prompt), MaxTokens: o.answer, Temperature: 1, Seed: rng.Uint64()}
		for k := range r.Prompt {
			r.Prompt[k] = rng.Int32N(int32(m.Config.Vocab))
		}
		if answers[i], err = s.Submit(ctx, r); err != nil {
			return row, err
		}
	}
	for _, a := range answers {
		for reason := batch.Reason(""); reason == ""; {
			if _, reason, err = a.Next(ctx); err != nil {
				return row, err
			}
		}
	}
	if w.steps == 0 {
		return row, fmt.Errorf("server: bench: no step had all %d requests: want more --tokens", n)
	}
	return benchRow{n, w.steps, float64(w.prompts) / w.from.Sub(w.began).Seconds(), w.timed, w.to.Sub(w.from), w.waited,
		w.last.Minus(w.first)}, nil
}

// table begins a table.
func table(out io.Writer, columns ...string) {
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

func printTimes(out io.Writer, rows []benchRow) {
	table(out, "batch", "prompts, tokens/s", "answers, tokens/s", "step", "attention", "of it on the device",
		"experts", "streams", "head", "sampling and the rest")
	for _, r := range rows {
		ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(r.steps) }
		rest := r.time - r.Attention.Time - r.Experts.Time - r.Streams.Time - r.Head.Time - r.Drafts.Time
		fmt.Fprintf(out, "| %d | %.1f | %.2f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", r.batch, r.prompts,
			float64(r.answers)/r.time.Seconds(), ms(r.time), ms(r.Attention.Time), ms(r.device),
			ms(r.Experts.Time), ms(r.Streams.Time), ms(r.Head.Time), ms(rest))
	}
	fmt.Fprintln(out)
}

func printBytes(out io.Writer, rows []benchRow, memory float64) {
	table(out, "batch", "weights read a step, GB", "a token", "attention, GB", "GB/s", "experts, GB", "GB/s", "of memory",
		"head, GB", "GB/s")
	for _, r := range rows {
		gb := func(p model.Part) float64 { return float64(p.Bytes) / 1e9 / float64(r.steps) }
		rate := func(p model.Part) float64 { return float64(p.Bytes) / max(p.Time.Seconds(), 1e-9) }
		all := gb(r.Attention) + gb(r.Experts) + gb(r.Streams) + gb(r.Head)
		fmt.Fprintf(out, "| %d | %.3f | %.3f | %.3f | %.1f | %.3f | %.1f | %.0f %% | %.3f | %.1f |\n",
			r.batch, all, all/float64(r.batch), gb(r.Attention), rate(r.Attention)/1e9,
			gb(r.Experts), rate(r.Experts)/1e9, 100*rate(r.Experts)/memory, gb(r.Head), rate(r.Head)/1e9)
	}
}

// printDrafts says what drafts gave, if there were any. Those of random weights are hardly ever
// drawn: what a step and its drafts cost is then what can be learned.
func (o *benchOptions) printDrafts(out io.Writer, rows []benchRow) {
	if o.drafts == 0 {
		return
	}
	fmt.Fprintln(out)
	table(out, "batch", "drafted tokens of a step", "accepted", "tokens of an answer a step", "drafting, ms of a step")
	for _, r := range rows {
		steps := float64(r.steps)
		accepted := r.answers - r.steps*r.batch
		fmt.Fprintf(out, "| %d | %.2f | %.2f, %.0f %% | %.2f | %.1f |\n", r.batch, float64(r.drafted)/steps, float64(accepted)/steps,
			100*float64(accepted)/float64(max(r.drafted, 1)), float64(r.answers)/steps/float64(r.batch), r.Drafts.Time.Seconds()*1e3/steps)
	}
}
