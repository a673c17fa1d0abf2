// Package model runs a whole DeepSeek-V4: token ids in, logits out. vkmla's engine runs the
// attention of each layer on the GPU, package cpu or gpu everything else.
package model

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// Options say what a Model is for.
type Options struct {
	MaxTokens     int    // of a sequence, prompt and answer
	MaxSessions   int    // sequences at a time
	MaxStep       int    // tokens of a step
	MaxCacheBytes uint64 // of the device's memory, for all sequences; 0: as much as they can use
	Prefixes      bool   // the caller wants Model.Prefixes
	GPU           bool   // everything on the device, one submission a step; else what is not attention on the processor
	Offload       bool   // what fits is on the device, as Placement has it
	Drafts        int    // the most tokens that are drafted at a time; 0: with Draft those of a block, else none
	Draft         string // GGUF file with the draft block, or its folder; "": with Drafts the checkpoint has one itself
	Varies        bool   // an answer's bits may depend on what else its steps have: prompts and single sessions are faster
	Memory        uint64 // with Offload: the device's memory to count with; 0: what is free
	CPU           cpu.Options
	Log           *slog.Logger // gets the engine's rare events
}

// Model is a checkpoint, ready to run. Step is for one goroutine at a time.
type Model struct {
	Config  weights.Config
	Weights *weights.Model
	Drafts  int // tokens that are drafted at a time, 0: none

	cpu     *cpu.CPU // one of these two
	gpu     *gpu.GPU
	apart   *gpu.Apart         // beside cpu: what it has is not computed there; nil: nothing
	most    int                // tokens of a sequence
	step    int                // of a step
	timed   func([]vk.Section) // gets the times of each step; nil: unused
	engine  *pipeline.Engine
	layers  []*model.DeviceLayer
	streams cpu.Streams
	x, f    []float32 // [T, D]: what enters a sub-layer, and what it gives
	states  []float32 // [T, targets*D], with drafts: what Config.DraftTargets left
	logits  []float32 // [wanted, V]
	spent   Spent

	touching sync.WaitGroup
	stop     context.CancelFunc // of it
}

// Open maps a checkpoint and uploads its attention. The caller closes the model before the device.
func Open(ctx context.Context, dev *vk.Device, dir string, o Options) (m *Model, err error) {
	m = &Model{most: o.MaxTokens, step: o.MaxStep}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.Weights, err = o.weights(dir); err != nil {
		return m, err
	}
	m.Config, m.Drafts = m.Weights.Config, o.Drafts
	if err := m.Weights.Examine(ctx, o.Log); err != nil {
		return m, err
	}
	attention, err := o.attention(dir, m.Weights)
	if err != nil {
		return m, err
	}
	defer attention.Close() // what was uploaded stays
	if attention.Images {
		o.Log.Warn("the model's images are left out: its text is served")
	}
	if widened := attention.Widened.String(); widened != "" {
		o.Log.Warn(widened)
	}
	e := o.engine()
	var at Placement
	if o.GPU || o.Offload {
		if at, err = place(ctx, dev, m.Weights, attention, e, o); err != nil {
			return m, err
		}
	}
	if o.Prefixes {
		e.Identity = m.identity(dev.Adapter(), at)
	}
	upload := func(ctx context.Context) (err error) {
		m.layers, err = attention.Upload(ctx, dev, nil)
		return err
	}
	on := gpu.Options{MaxStep: e.MaxStep, Reserve: at.Attention, Beside: upload, Matrices: o.Varies}
	if at.Whole {
		if m.gpu, err = gpu.New(ctx, dev, m.Weights, on); err != nil {
			return m, err
		}
		e.Between = m.gpu.Between
	} else {
		e.LayerByLayer = true
		if at.Of == 0 {
			at.onHost(m.Weights)
		}
		if o.CPU.Cold = at.Layers; at.fromDisk(o.Log) {
			o.CPU.Cold = len(m.Weights.Layers)
		}
		m.cpu = cpu.New(m.Weights, o.CPU)
		if at.Apart {
			if m.apart, err = gpu.NewApart(ctx, dev, m.Weights, at.Layers, on); err != nil {
				return m, err
			}
		}
	}
	if o.Offload {
		o.Log.Info("offload", "placement", at.String())
	}
	if m.layers == nil {
		if err = upload(ctx); err != nil {
			return m, err
		}
	}
	m.engine, err = pipeline.NewEngine(ctx, dev, attention.Config, m.layers, e)
	return m, err
}

// Warm takes steps of all sizes and looks at all weights, so that the first requests wait for
// nothing that the later ones do not wait for.
func (m *Model) Warm(ctx context.Context) error {
	if err := m.engine.Warm(ctx); err != nil || m.cpu == nil {
		return err
	}
	return m.cpu.Warm(ctx)
}

// Sizes are the numbers of tokens that steps are padded to.
func (m *Model) Sizes() []int { return m.engine.Sizes() }

// Touch has all weights that are read from files brought into memory, beside what else is done,
// until the context ends.
func (m *Model) Touch(ctx context.Context) {
	if m.cpu == nil {
		return
	}
	ctx, m.stop = context.WithCancel(ctx)
	m.touching.Go(func() { _ = m.cpu.Warm(ctx) }) // a file that has changed is found by who reads it next
}

// Stats returns the engine's counts.
func (m *Model) Stats() pipeline.Stats { return m.engine.Stats() }

// Sequence stands for the tokens that attention remembers.
type Sequence struct{ session *pipeline.Session }

// NewSequence opens an empty sequence.
//
// Errors: pipeline.ErrTooManySessions.
func (m *Model) NewSequence() (*Sequence, error) {
	session, err := m.engine.Open()
	if err != nil {
		return nil, err
	}
	return &Sequence{session}, nil
}

// Close forgets the tokens. Closing twice is allowed, as is closing one that no model opened.
func (s *Sequence) Close() error {
	if s == nil || s.session == nil {
		return nil
	}
	return s.session.Close()
}

// CacheBytes is the device memory that sequences take.
func (m *Model) CacheBytes() uint64 { return m.engine.Memory().Total() }

// CPU computes what is not attention; nil with Options.GPU.
func (m *Model) CPU() *cpu.CPU { return m.cpu }

// Intact reports a file that was written to since the model was opened, if steps read it.
//
// Errors: *model.CheckpointError.
func (m *Model) Intact() error {
	if m.gpu != nil {
		return nil
	}
	return m.Weights.Intact()
}

// Chunk holds the next tokens of a sequence, and the numbers, from 0, of those whose logits are
// wanted.
type Chunk struct {
	Sequence *Sequence
	Tokens   []int32
	Logits   []int
}

// Step takes tokens of some sequences through the model and commits them. It returns the logits
// [V] that were wanted, in the order of chunks; they stay until the next step, or Draft. After an
// error no sequence has changed.
//
// Errors: a token that is not of the vocabulary; model.ErrCheckpoint where a file of weights that
// are read from it has changed; those of pipeline's Engine.Begin, such as
// cache.ErrPoolFull, and of Step.RunLayer or Step.Run.
func (m *Model) Step(ctx context.Context, chunks ...Chunk) ([][]float32, error) {
	var ids []int32
	var wanted []int
	parts := make([]pipeline.Chunk, len(chunks))
	for i, c := range chunks {
		for _, k := range c.Logits {
			wanted = append(wanted, len(ids)+k)
		}
		for _, id := range c.Tokens {
			if id < 0 || int(id) >= m.Config.Vocab {
				return nil, fmt.Errorf("model: step: token %d, want 0 to %d", id, m.Config.Vocab-1)
			}
		}
		ids = append(ids, c.Tokens...)
		parts[i] = pipeline.Chunk{Session: c.Sequence.session, Tokens: len(c.Tokens)}
	}
	step, err := m.engine.Begin(ctx, parts...)
	if err != nil {
		return nil, err
	}
	defer step.Abort() // does nothing after Commit
	if m.gpu != nil {
		return m.stepGPU(ctx, step, parts, ids, wanted)
	}
	if err := m.Intact(); err != nil {
		return nil, err
	}
	var logits [][]float32
	err = m.Weights.Read(func() (err error) { // a file may become shorter meanwhile
		logits, err = m.forward(ctx, ids, wanted, func(layer int, x, f []float32) error {
			return m.attend(ctx, step, parts, layer, x, f)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return logits, step.Commit()
}

// runLayer runs the attention of a layer for all chunks: f [T, D] from x [T, D]; nil where it gives
// nothing.
func runLayer(ctx context.Context, step *pipeline.Step, chunks []pipeline.Chunk, layer int, x, f []float32) error {
	tokens := 0
	for _, c := range chunks {
		tokens += c.Tokens
	}
	d, at := len(x)/tokens, 0
	for i, c := range chunks {
		if err := step.SetInput(layer, i, x[at:][:c.Tokens*d]); err != nil {
			return err
		}
		at += c.Tokens * d
	}
	if err := step.RunLayer(ctx, layer); err != nil || f == nil {
		return err
	}
	at = 0
	for i, c := range chunks {
		if err := step.ReadOutput(layer, i, f[at:][:c.Tokens*d]); err != nil {
			return err
		}
		at += c.Tokens * d
	}
	return nil
}

// attention runs a layer's attention: f [T, D] from x [T, D].
type attention func(layer int, x, f []float32) error

// forward is the model around its attention.
func (m *Model) forward(ctx context.Context, ids []int32, wanted []int, attend attention) ([][]float32, error) {
	own, w := m.Weights.Own(), m.watch()
	m.cpu.Embed(&m.streams, ids)
	for i := range own {
		if err := m.layer(ctx, i, attend, &w); err != nil {
			return nil, err
		}
		m.keepState(i)
	}
	w.lap(&m.spent.Streams)
	logits, err := m.logitsOf(ctx, false, wanted, &w)
	if err != nil || m.Weights.Draft == nil {
		return logits, err
	}
	return logits, m.context(len(ids), attend, &w)
}

// layer takes the streams through a layer.
func (m *Model) layer(ctx context.Context, i int, attend attention, w *watch) error {
	s, l, spent := &m.streams, &m.Weights.Layers[i], &m.spent
	m.x, m.f = room(m.x, s.T*m.Config.Hidden), room(m.f, s.T*m.Config.Hidden)
	m.cpu.Enter(s, &l.AttnHC, l.AttnNorm, m.x)
	w.lap(&spent.Streams)
	if err := attend(i, m.x, m.f); err != nil {
		return err
	}
	w.lap(&spent.Attention)
	m.cpu.Leave(s, m.f)
	m.cpu.Enter(s, &l.FFNHC, l.FFNNorm, m.x)
	w.lap(&spent.Streams)
	if err := m.experts(ctx, i, m.x, m.f); err != nil {
		return err
	}
	w.lap(&spent.Experts)
	m.cpu.Leave(s, m.f)
	return nil
}

// logitsOf returns those of some tokens.
func (m *Model) logitsOf(ctx context.Context, drafts bool, wanted []int, w *watch) ([][]float32, error) {
	v := m.Config.Vocab
	m.logits = room(m.logits, len(wanted)*v)
	if err := m.head(ctx, drafts, wanted, m.logits); err != nil {
		return nil, err
	}
	w.lap(&m.spent.Head)
	list := make([][]float32, len(wanted))
	for i := range list {
		list[i] = m.logits[i*v:][:v:v]
	}
	return list, nil
}

// room is s with n numbers, of any content.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// Close frees everything. Closing twice is allowed.
func (m *Model) Close() error {
	var errs []error
	if m.stop != nil {
		m.stop()
		m.touching.Wait()
	}
	if m.engine != nil {
		errs = append(errs, m.engine.Close())
	}
	errs = append(errs, m.gpu.Close(), m.apart.Close(), model.CloseLayers(m.layers))
	if m.cpu != nil {
		m.cpu.Close()
	}
	if m.Weights != nil {
		errs = append(errs, m.Weights.Close())
	}
	m.engine, m.layers, m.cpu, m.gpu, m.apart, m.Weights = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
