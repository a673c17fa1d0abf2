package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// StartOptions describe the starts to time: from an open device and weights on it to the first
// decode step of a model. What is empty or 0 gets its default, which is less on a processor. Of
// LayerOptions, Kinds, Prefill, Chunk, Output and Warmup have no meaning.
//
// A driver keeps what it compiled in memory and in folders of its own. So each start has a process
// of its own, and folders for caches that are empty, or as the one before left them.
type StartOptions struct {
	LayerOptions
	// Worker is the command line of a program that hands its standard input and output to
	// StartWorker, and the folder of PipelineCacheDir, its last argument.
	Worker []string
}

func (o StartOptions) withDefaults(onSlow bool) StartOptions {
	o.Batches = pick(o.Batches, onSlow, []int{1, 32}, []int{1})
	o.Contexts = pick(o.Contexts, onSlow, []int{131072}, []int{700})
	o.Reps = pickOne(o.Reps, onSlow, 3, 1)
	o.LayerOptions = o.LayerOptions.withDefaults(onSlow)
	return o
}

// StartRow is the start of an engine.
type StartRow struct {
	Model   string `json:"model"`
	Weights string `json:"weights"`
	Batch   int    `json:"batch"`
	Context int    `json:"context"` // the longest session that the engine takes
	Layers  int    `json:"layers"`
	Caches  string `json:"caches"` // of compiled kernels, the library's and the driver's: empty or full

	Open    Time `json:"open"`    // of the device
	Upload  Time `json:"upload"`  // of random weights: a layer of each kind, which all layers share
	Engine  Time `json:"engine"`  // NewEngine, with caches for sessions of Context tokens
	Compile Time `json:"compile"` // the kernels and the memory of the step: Prepare without Record
	Record  Time `json:"record"`  // of the step's commands
	Submit  Time `json:"submit"`  // Begin and Submit of the first step
	Ready   Time `json:"ready"`   // the sum of the last four
	First   Time `json:"first"`   // until the first step has run, from its submission on

	// Kernels is what the driver took over each kernel in the last of these starts, in
	// microseconds; several are compiled at a time.
	Kernels    map[string]float64 `json:"kernels_us"`
	CacheBytes uint64             `json:"cache_bytes"` // of the library's file
	Status     string             `json:"status"`
	Detail     string             `json:"detail,omitempty"`
}

// Kinds of StartRow.Caches.
const (
	cachesEmpty = "empty"
	cachesFull  = "full"
)

// startOrder is what a worker is asked for, and startParts what it answers, in nanoseconds.
type (
	startOrder struct {
		Model, Weights, Variant string
		Batch, Context          int
		Keys                    cache.IndexKeyFormat
		Records                 model.Records
		Invariant               bool
		Seed                    uint64
	}
	startParts struct {
		Open, Upload, Engine, Compile, Record, Submit, First float64
		Layers                                               int
		Kernels                                              map[string]float64
	}
)

// rows are the starts to time, without what is measured.
func (o StartOptions) rows() (list []StartRow) {
	for _, of := range o.models() {
		for _, length := range o.Contexts {
			for _, batch := range o.Batches {
				list = append(list, StartRow{Model: of.model, Weights: of.weights, Context: max(length, 2), Batch: batch})
			}
		}
	}
	return list
}

// Starts times the starts and hands each row to emit as it is done. A start that fails has a row of
// status "failed". Errors: vk.ErrArgument; ErrWrong, as with Ops; the context's.
func Starts(ctx context.Context, dev *vk.Device, o StartOptions, p Progress, emit func(StartRow)) error {
	if err := o.check("bench: start", o.Models); err != nil {
		return err
	}
	o = o.withDefaults(slow(dev))
	t, rows := tally{ctx: ctx}, o.rows()
	for i, row := range rows {
		p.Rows(i, len(rows))
		if err := o.both(&t, row, p, emit); err != nil {
			return err
		}
	}
	return t.missing
}

// both times starts without and with caches, by turns, up to one that fails.
func (o StartOptions) both(t *tally, row StartRow, p Progress, emit func(StartRow)) error {
	var list [2][]startParts
	rows := [2]StartRow{row, row}
	rows[0].Caches, rows[1].Caches = cachesEmpty, cachesFull
	tried, failed := 0, error(nil)
	for rep := 0; rep < o.Reps && failed == nil; rep++ {
		dir, err := os.MkdirTemp("", "vkmla-start-")
		if err != nil {
			return fmt.Errorf("bench: start: %w", err)
		}
		defer os.RemoveAll(dir)
		for i := range rows {
			p.Step(fmt.Sprintf("%s %s, batch %d, caches %s", row.Model, row.Weights, row.Batch, rows[i].Caches))
			var parts startParts
			if parts, failed = o.start(t.ctx, dir, row); failed != nil {
				break
			}
			list[i] = append(list[i], parts)
			rows[i].CacheBytes = cacheBytes(dir)
			tried++
			p.Advance(int64(tried), int64(2*o.Reps))
		}
	}
	for i, x := range rows {
		var err error
		switch {
		case failed != nil && i == tried%2:
			err = failed
		case len(list[i]) == 0:
			continue // behind the one that failed
		}
		if len(list[i]) > 0 {
			x.fill(list[i])
		}
		if err := t.add("start: "+x.title(), err, &x.Status, &x.Detail, func() { emit(x) }); err != nil {
			return err
		}
	}
	return nil
}

// fill fills in what was timed.
func (x *StartRow) fill(list []startParts) {
	last := list[len(list)-1]
	x.Layers, x.Kernels = last.Layers, last.Kernels
	for _, part := range []struct {
		to *Time
		of func(startParts) float64
	}{
		{&x.Open, func(s startParts) float64 { return s.Open }}, {&x.Upload, func(s startParts) float64 { return s.Upload }},
		{&x.Engine, func(s startParts) float64 { return s.Engine }}, {&x.Compile, func(s startParts) float64 { return s.Compile }},
		{&x.Record, func(s startParts) float64 { return s.Record }}, {&x.Submit, func(s startParts) float64 { return s.Submit }},
		{&x.Ready, func(s startParts) float64 { return s.Engine + s.Compile + s.Record + s.Submit }},
		{&x.First, func(s startParts) float64 { return s.First }},
	} {
		var ns []float64
		for _, s := range list {
			ns = append(ns, part.of(s))
		}
		*part.to = summarise(ns)
	}
}

// cacheBytes is the size of the library's cache in a folder.
func cacheBytes(dir string) (sum uint64) {
	names, _ := filepath.Glob(filepath.Join(dir, "pipelines-*"))
	for _, name := range names {
		if f, err := os.Stat(name); err == nil {
			sum += uint64(f.Size())
		}
	}
	return sum
}

// driverCaches are the variables by which drivers find the folder of their own cache.
var driverCaches = []string{"HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR"}

// start has a worker start an engine with the caches of a folder.
func (o StartOptions) start(ctx context.Context, dir string, x StartRow) (parts startParts, err error) {
	text, err := json.Marshal(startOrder{Model: x.Model, Weights: x.Weights, Variant: o.Variant, Batch: x.Batch, Context: x.Context,
		Keys: o.Keys, Records: o.Records, Invariant: o.Invariant, Seed: o.Seed})
	if err != nil {
		return parts, err
	}
	cmd := exec.CommandContext(ctx, o.Worker[0], append(o.Worker[1:len(o.Worker):len(o.Worker)], dir)...)
	cmd.Env = cmd.Environ()
	for _, name := range driverCaches {
		cmd.Env = append(cmd.Env, name+"="+dir)
	}
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), &said
	answer, err := cmd.Output()
	if ctx.Err() != nil {
		return parts, ctx.Err()
	}
	if err != nil {
		return parts, fmt.Errorf("worker: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	answer = bytes.TrimSpace(answer)
	last := answer[bytes.LastIndexByte(answer, '\n')+1:] // drivers write what they like before
	if err := json.Unmarshal(last, &parts); err != nil {
		return parts, fmt.Errorf("worker: answer %q: %w", last, err)
	}
	return parts, nil
}

// StartWorker starts an engine as it is asked for on in, and says on out what that took. open
// opens the device; close releases it.
func StartWorker(ctx context.Context, in io.Reader, out io.Writer, open func() (dev *vk.Device, close func(), err error)) error {
	var order startOrder
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("bench: start: order: %w", err)
	}
	began := time.Now()
	dev, close, err := open()
	if err != nil {
		return err
	}
	defer close()
	s := startRun{engineRun: engineRun{ctx: ctx, dev: dev, p: Silent{}, cfg: modelConfig(order.Model),
		shape: decodeShape(order.Batch, 1, 1)}, order: order}
	s.parts.Open, s.parts.Layers = nanoseconds(time.Since(began)), len(s.cfg.Layers)
	if err := errors.Join(s.run(), s.close()); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(s.parts)
}

// startRun is one start.
type startRun struct {
	engineRun
	order startOrder
	parts startParts
	own   []*randomLayer
}

func (s *startRun) close() error {
	err := s.engineRun.close()
	for _, w := range s.own {
		err = errors.Join(err, w.Close())
	}
	return err
}

// lap sets what passed since a time, and returns the present.
func lap(to *float64, since time.Time) time.Time {
	now := time.Now()
	*to = nanoseconds(now.Sub(since))
	return now
}

func (s *startRun) run() error {
	at := time.Now()
	if err := s.makeWeights(); err != nil {
		return err
	}
	at = lap(&s.parts.Upload, at)
	o := pipeline.EngineOptions{MaxTokens: s.order.Context, MaxSessions: s.order.Batch, MaxStep: max(s.order.Batch, 128),
		CacheBytes: 1 << 62, Keys: s.order.Keys, Records: s.order.Records, Variant: s.order.Variant, Invariant: s.order.Invariant}
	var err error
	if s.engine, err = pipeline.NewEngine(s.ctx, s.dev, s.cfg, s.layers(), o); err != nil {
		return err
	}
	at = lap(&s.parts.Engine, at)
	if err := s.engine.Prepare(s.ctx, s.order.Batch); err != nil {
		return err
	}
	var prepared float64
	at = lap(&prepared, at)
	for range s.order.Batch {
		x, err := s.engine.Open()
		if err != nil {
			return err
		}
		s.sessions = append(s.sessions, x)
	}
	st, err := s.begin(s.shape)
	if err != nil {
		return err
	}
	if err := st.Submit(); err != nil {
		return err
	}
	at = lap(&s.parts.Submit, at)
	if err := errors.Join(st.Wait(s.ctx), st.Commit()); err != nil {
		return err
	}
	lap(&s.parts.First, at)
	s.parts.Kernels = map[string]float64{}
	for name, took := range s.dev.Compiled() {
		s.parts.Kernels[name] = float64(took.Nanoseconds()) / 1e3
	}
	// Recorded once more, with all there is: what the first recording did not wait for.
	if err := s.engine.RecordAgain(s.ctx); err != nil {
		return err
	}
	at = time.Now()
	err = s.engine.Prepare(s.ctx, s.order.Batch)
	lap(&s.parts.Record, at)
	s.parts.Record = min(s.parts.Record, prepared)
	s.parts.Compile = prepared - s.parts.Record
	return err
}

// makeWeights makes a layer of each kind, which all layers of the kind share.
func (s *startRun) makeWeights() error {
	maker := newWeightMaker(s.ctx, s.dev, s.order.Seed)
	defer maker.Close()
	byKind := map[string]*randomLayer{}
	for i, l := range s.cfg.Layers {
		kind := kindOf(l.LayerSpec)
		if byKind[kind] == nil {
			w, err := maker.layer(s.cfg, i, formatNamed(s.order.Weights))
			if err != nil {
				return err
			}
			byKind[kind] = w
			s.own = append(s.own, w)
		}
		s.weights = append(s.weights, byKind[kind])
	}
	return nil
}
