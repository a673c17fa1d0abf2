// Server answers conversations and completions from a DeepSeek-V4 checkpoint: token ids in, token
// ids out, and text where the checkpoint's folder has a tokenizer.json. The attention runs on a GPU
// by vkmla, the experts and everything else on the processor or, with --experts gpu, beside it in
// one submission a step.
//
//	go run . --model DIR --listen localhost:8080
//	curl localhost:8080/v1/completions -d '{"prompt": [1, 2, 3], "temperature": 0}'
//
// Without released weights it makes some, and it times a model's steps, or what clients get:
//
//	go run . random --dir DIR --width flash --layers 4
//	go run . bench --model DIR --batch 1,8,32
//	go run . bench --url http://localhost:8080
//
// With --prefix it keeps what it computed of prompts, with --devices it serves on several GPUs.
package main

import (
	"cmp"
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
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/sizes"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/server/api"
	"github.com/vkmla/vkmla/server/chat"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/server/text"
	"github.com/vkmla/vkmla/vk"
)

// options are the command line.
type options struct {
	dir, draft, listen              string
	device, experts, kernels        string
	admin, name, keyFile            string
	keys                            []string
	front                           *front
	tokens, sessions, step, waiting int
	workers, drafts                 int
	offload                         bool
	memory                          uint64 // bytes of the device; 0: what is free
	cacheMiB                        uint64
	drain                           time.Duration
	warm, measure, invariant        bool
	prefixes                        prefixOptions
	devices                         string
	further                         []string        // devices besides the first
	text                            *text.Tokenizer // nil: the folder has none
	template                        string          // file of the chat template
	chat                            *chat.Template  // nil: none
}

// modelFlags are those of every command that runs a model.
func (o *options) modelFlags(f *flag.FlagSet) {
	f.StringVar(&o.dir, "model", "", "folder of a checkpoint, config.json and safetensors, or a .gguf file")
	f.StringVar(&o.device, "device", "", "index, part of the name, or UUID; by default the first GPU")
	f.StringVar(&o.experts, "experts", "cpu", "where experts and all else are computed: cpu, or gpu if its memory holds them")
	f.BoolVar(&o.offload, "offload", false,
		"put on the GPU what fits: attention, head and shared experts, then the experts of as many layers as it holds")
	f.Func("memory", "device memory for --offload to count with, as 24GiB or 80GB; by default what is free", func(s string) error {
		n, ok := sizes.Parse(s)
		if o.memory = n; !ok {
			return fmt.Errorf("got %q, want %s", s, sizes.Wanted)
		}
		return nil
	})
	f.IntVar(&o.drafts, "drafts", 0,
		"tokens that a DSpark block drafts after each of an answer, such as 5; they change no answer; 0: none, or with --draft all")
	f.StringVar(&o.draft, "draft", "", "a .gguf file with the DSpark block; by default it is the checkpoint's own")
	f.BoolVar(&o.invariant, "invariant", true,
		"the bits of an answer depend on its prompt alone; false: also on what else is computed at a time, and prompts are faster")
	f.StringVar(&o.kernels, "kernels", "", "folder that keeps compiled kernels; by default none")
	f.IntVar(&o.workers, "workers", 0, "cores to compute with; 0: all")
	f.Uint64Var(&o.cacheMiB, "cache-mib", 0, "device memory for all sequences, in MiB; 0: what they can use")
}

// sizeFlags are those that say how much is computed at a time.
func (o *options) sizeFlags(f *flag.FlagSet) {
	f.IntVar(&o.tokens, "max-tokens", 32768, "most tokens of a sequence, prompt and answer")
	f.IntVar(&o.sessions, "max-sessions", 16, "most requests computed at a time")
	f.IntVar(&o.step, "max-step", 256, "most tokens of a step: what every answer waits for")
}

// mostWorkers is more cores than a machine has.
const mostWorkers = 1 << 12

func (o *options) checkModel() error {
	switch {
	case o.dir == "":
		return errors.New("server: --model: got none, want a checkpoint")
	case o.experts != "cpu" && o.experts != "gpu":
		return fmt.Errorf("server: --experts: got %q, want cpu or gpu", o.experts)
	case o.workers < 0 || o.workers > mostWorkers:
		return fmt.Errorf("server: --workers: got %d, want 0 to %d", o.workers, mostWorkers)
	case o.memory > 0 && !o.offload:
		return errors.New("server: --memory: got a size, want --offload beside it")
	case o.drafts < 0:
		return fmt.Errorf("server: --drafts: got %d, want at least 0", o.drafts)
	case o.cacheMiB > 1<<40:
		return fmt.Errorf("server: --cache-mib: got %d, want at most %d", o.cacheMiB, 1<<40)
	}
	return nil
}

// commands begins the help.
const commands = `Server answers conversations and completions from the checkpoint in --model.
Other commands: server random --help, server bench --help, server plan --help.
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
		return fmt.Errorf("server: got argument %q, want flags only, or random, bench or plan as the first argument", f.Arg(0))
	}
	return nil
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("server", flag.ContinueOnError)
	o.modelFlags(f)
	f.StringVar(&o.listen, "listen", "localhost:8080", "address of the API")
	f.StringVar(&o.admin, "admin-listen", "",
		"address of metrics and profiles; by default metrics are beside the API, and profiles nowhere")
	f.StringVar(&o.name, "served-model-name", "", "the model's name in the API; by default that of its folder")
	f.Func("api-key", "a key that requests to /v1 need; may be given several times", func(s string) error {
		o.keys = append(o.keys, s)
		return nil
	})
	f.StringVar(&o.keyFile, "api-key-file", "", "file with such keys, one a line")
	f.StringVar(&o.template, "chat-template", "", "file with the Jinja template of conversations; by default the model's own")
	o.sizeFlags(f)
	f.IntVar(&o.waiting, "max-waiting", 1024, "most requests that wait")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "how long requests may go on after SIGTERM")
	f.BoolVar(&o.warm, "warm", true, "take steps of all sizes while nothing else is to be done, so that no request waits for kernels")
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
	case o.tokens < 1:
		err = fmt.Errorf("server: --max-tokens: got %d, want at least 1", o.tokens)
	case o.waiting < 1:
		err = fmt.Errorf("server: --max-waiting: got %d, want at least 1", o.waiting)
	case o.drain < 0:
		err = fmt.Errorf("server: --drain: got %v, want at least 0", o.drain)
	case o.step < o.sessions:
		err = fmt.Errorf("server: --max-step: got %d, want at least --max-sessions, %d", o.step, o.sessions)
	default:
		err = errors.Join(o.prefixes.check(), o.readKeys(), o.divide())
	}
	f.Visit(func(x *flag.Flag) {
		if err == nil && o.prefixes.where == "" && strings.HasPrefix(x.Name, "prefix-") {
			err = fmt.Errorf("server: --%s: got %s, want --prefix beside it", x.Name, x.Value)
		}
	})
	o.name = cmp.Or(o.name, filepath.Base(o.dir))
	return o, err
}

// readKeys reads the keys of a file, and refuses empty ones.
func (o *options) readKeys() error {
	if o.keyFile != "" {
		data, err := os.ReadFile(o.keyFile)
		if err != nil {
			return fmt.Errorf("server: --api-key-file: %w", err)
		}
		list := strings.Fields(string(data))
		if len(list) == 0 {
			return fmt.Errorf("server: --api-key-file: got %s without a key, want one a line", o.keyFile)
		}
		o.keys = append(o.keys, list...)
	}
	if slices.Contains(o.keys, "") {
		return errors.New("server: --api-key: got an empty key, want a secret")
	}
	return nil
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

// command runs what the arguments say: random, bench, plan, or else the server.
func command(ctx context.Context, args []string, log *slog.Logger) (err error) {
	switch {
	case len(args) > 0 && args[0] == "random":
		return writeRandom(ctx, args[1:], log)
	case len(args) > 0 && args[0] == "bench":
		return bench(ctx, args[1:], os.Stdout, log)
	case len(args) > 0 && args[0] == "plan":
		return plan(ctx, args[1:], os.Stdout)
	}
	o, err := parse(args)
	if err == nil {
		o.text, err = text.Open(o.dir) // before the model, which takes minutes
	}
	if err == nil {
		o.chat, err = chat.Open(o.template, o.text)
	}
	if err == nil {
		err = o.prefixes.open(ctx, log)
	}
	if err != nil {
		return err
	}
	if o.template != "" && o.chat == nil {
		return errors.New("server: --chat-template: got a model without a tokenizer, want one with tokenizer.json")
	}
	if o.front, err = o.bind(log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.front.close()) }()
	err = o.with(ctx, log, func(dev *vk.Device, m *model.Model) error {
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
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		log.Info("ended while it started")
		return nil
	}
	return err
}

// with opens the model for f.
func (o *options) with(ctx context.Context, log *slog.Logger, f func(*vk.Device, *model.Model) error) error {
	o.checkKernels(log)
	return o.withDevice(func(dev *vk.Device) (err error) {
		began := time.Now()
		options := o.modelOptions()
		options.Log = log
		m, err := model.Open(ctx, dev, o.dir, options)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		o.drafts = m.Drafts
		log.Info("model", "folder", o.dir, "layers", len(m.Weights.Layers), "drafts", m.Drafts, "device", dev.Adapter().Name,
			"experts", o.experts, "products", cpu.Instructions(), "time", time.Since(began))
		return f(dev, m)
	})
}

// checkKernels warns where compiled kernels cannot be kept: the server runs without, and a folder
// that may only be read can hold them already.
func (o *options) checkKernels(log *slog.Logger) {
	if o.kernels == "" {
		return
	}
	err := os.MkdirAll(o.kernels, 0o777)
	if err == nil {
		err = files.Replaceable(filepath.Join(o.kernels, "0"))
	}
	if err != nil {
		log.Warn("kernels are compiled at each start: they cannot be kept in --kernels", "error", err)
	}
}

// modelOptions are the model's, without a log.
func (o *options) modelOptions() model.Options {
	return model.Options{MaxTokens: o.tokens, MaxSessions: o.sessions, MaxStep: o.step, MaxCacheBytes: o.cacheMiB << 20,
		Prefixes: o.prefixes.store != nil, GPU: o.experts == "gpu", Offload: o.offload, Memory: o.memory, Drafts: o.drafts,
		Draft: o.draft, Varies: !o.invariant, CPU: cpu.Options{Workers: o.workers}}
}

// withDevice opens the device for f.
func (o *options) withDevice(f func(*vk.Device) error) (err error) {
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
	return f(dev)
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
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "vkmla_engine_" + name, Help: x.help},
			func() float64 { return x.of(m.Stats()) }))
	}
	return append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "vkmla_engine_sessions", Help: "Sessions of the engine."},
		func() float64 { return float64(m.Stats().Sessions) }))
}

// bind takes the ports before anything else, so that one in use is said at once, and answers there
// that the server starts.
func (o *options) bind(log *slog.Logger) (*front, error) {
	f := &front{log: log, ended: make(chan error, 2)}
	for _, x := range []struct {
		flag, address string
		gate          *api.Gate
	}{{"listen", o.listen, &f.api}, {"admin-listen", o.admin, &f.admin}} {
		if x.address == "" {
			continue
		}
		l, err := net.Listen("tcp", x.address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("server: --%s: %w", x.flag, err), f.close())
		}
		server := &http.Server{Handler: x.gate, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
		x.gate.Say("starting: the model is being opened")
		f.servers = append(f.servers, server)
		log.Info("listening", "address", l.Addr().String())
		go func() { f.ended <- server.Serve(l) }()
	}
	return f, nil
}

// front is the server's ports.
type front struct {
	api, admin api.Gate
	servers    []*http.Server
	ended      chan error
	log        *slog.Logger
	draining   atomic.Bool
}

// close ends the connections that are left: what they waited for has ended or was given up.
func (f *front) close() (err error) {
	for _, s := range f.servers {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if s.Shutdown(ctx) != nil { // some clients do not read, or do not write
			f.log.Warn("connections were closed in the middle")
			err = errors.Join(err, s.Close())
		}
		cancel()
	}
	return err
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
	f := o.front
	host, _, _ := net.SplitHostPort(o.listen)
	handler, admin := api.New(api.Options{Name: o.name, EOS: list[0].m.Config.EOS, Text: o.text, Chat: o.chat, MaxTokens: o.tokens,
		Keys: o.keys, Host: host, Metrics: registry, Log: log, Schedule: list.submit, Healthy: func() error {
			if f.draining.Load() {
				return errors.New("draining")
			}
			return cmp.Or(replicas.Err(list), list[0].m.Intact(), list.warming())
		}})
	if o.admin == "" { // metrics beside the API, profiles nowhere
		both := http.NewServeMux()
		both.Handle("/", handler)
		both.Handle("GET /metrics", admin)
		handler = both
	}
	f.api.Open(handler)
	f.admin.Open(admin)
	log.Info("ready", "model", o.name)
	var err error
	select {
	case err = <-f.ended:
	case <-ctx.Done():
		log.Info("draining: no more requests", "drain", o.drain)
	}
	f.draining.Store(true)
	drain, cancel := context.WithTimeout(context.Background(), o.drain)
	defer cancel()
	// Requests end first, then their connections.
	if closing := list.close(drain); closing != nil {
		log.Warn("requests were given up", "error", closing)
	}
	return err
}
