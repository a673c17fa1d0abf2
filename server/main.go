// Server answers completions from a DeepSeek-V4 checkpoint: token ids in, token ids out, and text
// where the checkpoint's folder has a tokenizer.json. The attention runs on a GPU by vkmla, the
// experts and everything else on the processor or, with --experts gpu, beside it in one submission
// a step.
//
//	go run . --model DIR --listen localhost:8080
//	curl localhost:8080/v1/completions -d '{"prompt": [1, 2, 3], "temperature": 0}'
//
// Without released weights it makes some, and it times the model without clients:
//
//	go run . random --dir DIR --width flash --layers 4
//	go run . bench --model DIR --batch 1,8,32
//
// With --prefix it keeps what it computed of prompts, with --devices it serves on several GPUs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/server/api"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/server/text"
	"github.com/vkmla/vkmla/vk"
)

// options are the command line.
type options struct {
	dir, listen, device, experts, kernels string
	tokens, sessions, step, waiting       int
	workers                               int
	cacheMiB                              uint64
	drain                                 time.Duration
	warm, measure                         bool
	prefixes                              prefixOptions
	devices                               string
	further                               []string        // devices besides the first
	text                                  *text.Tokenizer // nil: the folder has none
}

// modelFlags are those of every command that runs a model.
func (o *options) modelFlags(f *flag.FlagSet) {
	f.StringVar(&o.dir, "model", "", "folder of a checkpoint: config.json and safetensors")
	f.StringVar(&o.device, "device", "", "index, part of the name, or UUID; by default the first GPU")
	f.StringVar(&o.experts, "experts", "cpu", "where experts and all else are computed: cpu, or gpu if its memory holds them")
	f.StringVar(&o.kernels, "kernels", "", "folder that keeps compiled kernels; by default none")
	f.IntVar(&o.workers, "workers", 0, "cores to compute with; 0: all")
	f.Uint64Var(&o.cacheMiB, "cache-mib", 0, "device memory for all sequences, in MiB; 0: what they can use")
}

func (o *options) checkModel() error {
	switch {
	case o.dir == "":
		return errors.New("server: --model: got none, want the folder of a checkpoint")
	case o.experts != "cpu" && o.experts != "gpu":
		return fmt.Errorf("server: --experts: got %q, want cpu or gpu", o.experts)
	case o.cacheMiB > 1<<40:
		return fmt.Errorf("server: --cache-mib: got %d, want at most %d", o.cacheMiB, 1<<40)
	}
	return nil
}

// commands are what else the program does, for its help.
const commands = `Server answers completions from the checkpoint in --model.
Other commands: server random --help, server bench --help.
`

// parseFlags reads a command's arguments, which all are flags.
func parseFlags(f *flag.FlagSet, args []string, about string) error {
	f.Usage = func() {
		fmt.Fprint(f.Output(), about)
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("server: got argument %q, want flags only, or random or bench as the first argument", f.Arg(0))
	}
	return nil
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("server", flag.ContinueOnError)
	o.modelFlags(f)
	f.StringVar(&o.listen, "listen", "localhost:8080", "address")
	f.IntVar(&o.tokens, "max-tokens", 32768, "most tokens of a sequence, prompt and answer")
	f.IntVar(&o.sessions, "max-sessions", 16, "most requests computed at a time")
	f.IntVar(&o.step, "max-step", 256, "most tokens of a step: what every answer waits for")
	f.IntVar(&o.waiting, "max-waiting", 1024, "most requests that wait")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "how long requests may go on after SIGTERM")
	f.BoolVar(&o.warm, "warm", true, "take steps of all sizes and read all weights before listening, so that no request waits for that")
	f.BoolVar(&o.measure, "measure", false, "measure how fast experts are read beside the memory's bandwidth")
	f.StringVar(&o.devices, "devices", "", "serve on several GPUs: all, or a list with commas, as --device takes them")
	o.prefixes.flags(f)
	if err = parseFlags(f, args, commands); err != nil {
		return o, err
	}
	switch err = o.checkModel(); {
	case err != nil:
	case o.sessions < 1:
		err = fmt.Errorf("server: --max-sessions: got %d, want at least 1", o.sessions)
	case o.step < o.sessions:
		err = fmt.Errorf("server: --max-step: got %d, want at least --max-sessions, %d", o.step, o.sessions)
	default:
		err = errors.Join(o.prefixes.check(), o.divide())
	}
	return o, err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := command(ctx, os.Args[1:], slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command runs what the arguments say: random, bench, or else the server.
func command(ctx context.Context, args []string, log *slog.Logger) error {
	switch {
	case len(args) > 0 && args[0] == "random":
		return writeRandom(ctx, args[1:], log)
	case len(args) > 0 && args[0] == "bench":
		return bench(ctx, args[1:], os.Stdout, log)
	}
	o, err := parse(args)
	if err == nil {
		o.text, err = text.Open(o.dir) // before the model, which takes minutes
	}
	if err != nil {
		return err
	}
	return o.with(ctx, log, func(dev *vk.Device, m *model.Model) error {
		if o.measure && m.GPU() != nil {
			if err := logRates(ctx, log, dev, m.GPU()); err != nil {
				return err
			}
		} else if o.measure {
			b := m.CPU().Measure()
			log.Info("bandwidth", "memory_GB/s", b.Memory/1e9, "experts_GB/s", b.Experts/1e9, "share", b.Experts/b.Memory)
		}
		return serve(ctx, o, log, dev, m)
	})
}

// with opens the model for f.
func (o *options) with(ctx context.Context, log *slog.Logger, f func(*vk.Device, *model.Model) error) (err error) {
	instance, err := vk.NewInstance(vk.InstanceOptions{AppName: "server"})
	if err != nil {
		return err
	}
	defer instance.Close()
	adapter, err := instance.Pick(o.device)
	if err != nil {
		return err
	}
	dev, err := adapter.Open(vk.DeviceOptions{PipelineCacheDir: o.kernels})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()

	began := time.Now()
	m, err := model.Open(ctx, dev, o.dir, model.Options{MaxTokens: o.tokens, MaxSessions: o.sessions, MaxStep: o.step,
		MaxCacheBytes: o.cacheMiB << 20, Prefixes: o.prefixes.where != "", GPU: o.experts == "gpu",
		CPU: cpu.Options{Workers: o.workers}, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if o.warm {
		if err := m.Warm(ctx); err != nil {
			return err
		}
	}
	log.Info("model", "folder", o.dir, "layers", len(m.Weights.Layers), "device", adapter.Name,
		"experts", o.experts, "products", cpu.Instructions(), "time", time.Since(began))
	return f(dev, m)
}

// engineMetrics are the engine's counters.
func engineMetrics(m *model.Model) (list []prometheus.Collector) {
	for name, x := range map[string]struct {
		help string
		of   func(s pipeline.Stats) float64
	}{
		"padding_rows_total":        {"Rows of steps beyond their tokens.", func(s pipeline.Stats) float64 { return float64(s.Padding) }},
		"aborted_steps_total":       {"Steps that were given up.", func(s pipeline.Stats) float64 { return float64(s.Aborted) }},
		"starved_steps_total":       {"Steps whose workgroups starved.", func(s pipeline.Stats) float64 { return float64(s.Starved) }},
		"recordings_total":          {"Times that commands were recorded.", func(s pipeline.Stats) float64 { return float64(s.Recorded) }},
		"growths_total":             {"Times that caches grew.", func(s pipeline.Stats) float64 { return float64(s.Grown) }},
		"full_total":                {"Times that caches were full.", func(s pipeline.Stats) float64 { return float64(s.Full) }},
		"device_wait_seconds_total": {"Time of waiting for the device.", func(s pipeline.Stats) float64 { return s.Running.Seconds() }},
		"recording_seconds_total":   {"Time of recording and compiling.", func(s pipeline.Stats) float64 { return s.Recording.Seconds() }},
		"growing_seconds_total":     {"Time of growing caches.", func(s pipeline.Stats) float64 { return s.Growing.Seconds() }},
	} {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "server_engine_" + name, Help: x.help},
			func() float64 { return x.of(m.Stats()) }))
	}
	return append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "server_engine_sessions", Help: "Sessions of the engine."},
		func() float64 { return float64(m.Stats().Sessions) }))
}

// listen serves until the context ends, then lets requests finish.
func listen(ctx context.Context, o options, log *slog.Logger, list hosts) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for i, h := range list {
		if err := h.begin(ctx, o, log, list.register(registry, i)); err != nil {
			return errors.Join(err, list.close(ctx))
		}
	}
	server := &http.Server{Handler: api.New(api.Options{Name: filepath.Base(o.dir), EOS: list[0].m.Config.EOS, Text: o.text,
		Metrics: registry, Log: log, Healthy: list.err, Schedule: list.submit}), ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return errors.Join(err, list.close(ctx))
	}
	log.Info("listening", "address", listener.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		log.Info("closing: no more requests", "drain", o.drain)
	}
	drain, cancel := context.WithTimeout(context.Background(), o.drain)
	defer cancel()
	// Requests end first, then their connections.
	if closing := list.close(drain); closing != nil {
		log.Warn("requests were given up", "error", closing)
	}
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(last))
}
