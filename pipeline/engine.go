package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/internal/pages"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var le = binary.LittleEndian

const (
	opNewEngine = "pipeline: new engine"
	opPrepare   = "pipeline: prepare"
)

// Engine runs layers of a model for many sequences, its sessions. It owns their caches,
// block tables and all memory of a step; the weights are the caller's.
//
// Layers whose specs name the same pool share its block table: a session has the same pages in
// each of them. Steps are padded to 1, 2, 4 and so on up to MaxStep tokens. For each such size,
// device commands are recorded when a step first needs them. From then on a step takes the host
// one upload of lengths and positions and one submission, or with SubmitLayer one for each layer
// and one before them.
//
// Results depend on the options, the tokens of a session so far, and, but for
// EngineOptions.Invariant, the sizes that its steps were padded to. They do not depend on other
// sessions, pages, growth, or what was forked, truncated, cancelled, saved or restored meanwhile.
//
// All methods, and those of sessions and steps, may be called from any goroutine. One step is in
// progress at a time. The zero values of Engine, Session and Step cannot be used.
type Engine struct {
	dev   *vk.Device
	cfg   model.Config
	opts  EngineOptions
	print Fingerprint

	stepLock chan struct{} // full while a step is in progress, or a call that excludes one; taken first
	mu       sync.Mutex    // of all below; given up while the device is waited for, see await

	layers []commands.Layer
	drafts int // the first layer that drafts; beyond the last one without any
	pages  *pages.Pools
	ropes  map[model.Rope]tensor.Tensor
	reach  int // positions that the tensors of ropes have rows for

	sessions []*Session // by row of the block tables; nil: free
	now      progress
	sizes    *commands.Sizes

	count *commands.Counts // nil: memory is allocated, see EngineOptions.Estimate

	timing Timing
	stats  Stats
	closed bool
	freed  bool
	failed error // the device is lost
}

// NewEngine makes an engine for layers: any of the model's, in any order, the same weights several
// times if need be. A layer comes after those that it takes entries, picks or candidates from, and
// layers that draft come last. From here on a layer's number is its index in this list. Caches and
// block tables are allocated now, the memory of steps when they first need it, or by Prepare. The
// weights have to stay until the engine is closed.
//
// Errors: model.ErrConfig; vk.ErrArgument for options out of range, weights that do not fit the
// configuration, a MaxStep or MaxSessions for which a descriptor is too small, and a CacheBytes
// or MaxCacheBytes too small for a page of each cache; those of vk.Device.NewBuffer and
// vk.Device.Kernel; the context's.
func NewEngine(ctx context.Context, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer, o EngineOptions) (*Engine, error) {
	if err := o.complete(ctx, dev, cfg, layers); err != nil {
		return nil, err
	}
	for i, l := range layers {
		if l.Planned() {
			return nil, badArgument(opNewEngine, fmt.Sprintf("layers[%d]", i), "weights that were only planned", "uploaded ones")
		}
	}
	e := newEngine(dev, cfg, layers, o)
	e.mu.Lock()
	err := e.build(ctx)
	e.mu.Unlock()
	if err != nil {
		return nil, errors.Join(wrap(opNewEngine, err), e.Close())
	}
	return e, nil
}

func newEngine(dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer, o EngineOptions) *Engine {
	e := &Engine{dev: dev, cfg: cfg, opts: o, stepLock: make(chan struct{}, 1),
		ropes: map[model.Rope]tensor.Tensor{}, sessions: make([]*Session, o.MaxSessions)}
	e.addLayers(layers)
	for _, l := range e.layers {
		e.ropes[l.Rope] = tensor.Tensor{}
	}
	e.now.init(len(layers), o.MaxSessions)
	return e
}

// addLayers lists the engine's layers.
func (e *Engine) addLayers(layers []*model.DeviceLayer) {
	last := map[int]int{} // the last of the layers so far with a number of the model
	for i, w := range layers {
		spec := &e.cfg.Layers[w.Layer]
		last[w.Layer] = i
		latest := func(number int) int {
			if at, there := last[number]; there {
				return at
			}
			return i
		}
		l := commands.Layer{W: w, Spec: spec, Entries: latest(spec.EntriesOf), Picks: latest(spec.PicksOf), Blocks: -1,
			Rope: e.cfg.Rope(w.Layer)}
		switch spec.Candidates {
		case model.CandidatesMade:
			l.Blocks = i
		case model.CandidatesUsed:
			l.Blocks = latest(spec.CandidatesOf)
		}
		if e.layers = append(e.layers, l); !spec.Block {
			e.drafts = i + 1
		}
	}
}

func (e *Engine) build(ctx context.Context) (err error) {
	if err = e.arrangePools(); err != nil {
		return err
	}
	// Building the smallest step finds out whether weights and options suit the kernels, before
	// the caches take their memory.
	if _, err = e.sizes.Of(ctx, 1); err != nil {
		return err
	}
	if err = e.pages.Allocate(ctx); err != nil {
		return err
	}
	return e.growRopes(ctx, min(e.opts.MaxTokens, max(firstRows, e.opts.MaxStep)))
}

// arrangePools makes the pools, without memory, and checks that the device can take what the
// options allow.
func (e *Engine) arrangePools() error {
	if err := e.shapePools(); err != nil {
		return err
	}
	if err := e.pages.Arrange(); err != nil {
		return err
	}
	o := &e.opts
	e.sizes = commands.New(commands.Config{Dev: e.dev, Model: &e.cfg, Layers: e.layers, Drafts: e.drafts, Ranks: ranksOf(e.layers, &e.cfg),
		MaxTokens: o.MaxTokens, MaxSessions: o.MaxSessions, MaxStep: o.MaxStep, Variant: o.Variant, Invariant: o.Invariant,
		Quantise: o.QuantiseActivations, KeepTopK: o.KeepTopK, LayerByLayer: o.LayerByLayer, Workspace: gatherBytes, Pages: e.pages,
		Ropes: func(r model.Rope) tensor.Tensor { return e.ropes[r] }, Between: o.between(), Time: e.time, Record: e.record, Wait: e.await,
		Op: opNewEngine, Count: e.count})
	return e.sizes.Check()
}

// shapePools makes the pools that the layers' specs name, without pages.
func (e *Engine) shapePools() (err error) {
	o := &e.opts
	cfg := pages.Config{Dev: e.dev, Drafts: e.drafts, Window: e.cfg.Window, MaxTokens: o.MaxTokens, MaxSequences: o.MaxSessions,
		MaxStep: o.MaxStep, Rewind: o.Rewind, CacheBytes: o.CacheBytes, MaxCacheBytes: o.MaxCacheBytes, Records: o.Records, Keys: o.Keys,
		Op: opNewEngine, Run: e.runOnce, Wait: e.await, Drop: e.forget, Log: e.log}
	for _, l := range e.layers {
		cfg.Layers = append(cfg.Layers, pages.Layer{Number: l.W.Layer, Spec: l.Spec, Entries: l.Entries})
	}
	if e.pages, err = pages.New(cfg); err == nil {
		e.print = e.fingerprint()
	}
	return err
}

// firstRows is the number of positions in the first tables of cosines and sines.
const firstRows = 4096

// growRopes makes the tables of cosines and sines reach `rows` positions, and drops the commands
// that use shorter ones.
func (e *Engine) growRopes(ctx context.Context, rows int) error {
	if rows <= e.reach {
		return nil
	}
	rows = min(max(rows, 2*e.reach), e.opts.MaxTokens)
	fresh := map[model.Rope]tensor.Tensor{}
	drop := func(all map[model.Rope]tensor.Tensor) (err error) {
		for _, t := range all {
			err = errors.Join(err, t.Close())
		}
		return err
	}
	for r := range e.ropes {
		t, err := tensor.New(e.dev, "rope tables", tensor.F32, rows, model.RopeRow)
		if err == nil {
			fresh[r] = t
			err = e.await(func() error { return uploadRope(ctx, t, r) })
		}
		if err != nil {
			return errors.Join(err, drop(fresh))
		}
	}
	old := e.ropes
	e.ropes, e.reach = fresh, rows
	return errors.Join(e.forget(), drop(old))
}

func uploadRope(ctx context.Context, t tensor.Tensor, r model.Rope) error {
	values, err := r.Table(t.Shape[0], 1)
	if err != nil {
		return err
	}
	data := make([]byte, t.Bytes())
	for i, v := range values {
		le.PutUint32(data[4*i:], math.Float32bits(v))
	}
	return t.Upload(ctx, data)
}

// Layers returns the number of layers.
func (e *Engine) Layers() int { return len(e.layers) }

// TopK is the width of picks: index_topk of the model.
func (e *Engine) TopK() int { return e.cfg.TopK }

// Prepare allocates and records what steps of `tokens` tokens need, so that the first of them does
// not have to. It waits while a step is in progress. Only Step.SetInput allocates and records more,
// for hidden states in host memory. Errors: those of Begin and of Step.Submit.
func (e *Engine) Prepare(ctx context.Context, tokens int) error {
	if tokens < 1 || tokens > e.opts.MaxStep {
		return badArgument(opPrepare, "tokens", tokens, "1 to %d", e.opts.MaxStep)
	}
	if err := e.betweenSteps(ctx, func() error { return e.prepare(ctx, tokens) }); err != nil {
		return fmt.Errorf("%s: %w", opPrepare, err)
	}
	return nil
}

func (e *Engine) prepare(ctx context.Context, tokens int) error {
	b, err := e.sizes.Of(ctx, tokens)
	if err != nil {
		return err
	}
	for _, draft := range e.draftsOrNot(tokens) {
		pieces := 0 // blocks of drafts read pages in place
		if !draft {
			if b.Gathers() {
				pieces = 1 // as a prompt's first chunk has
			}
		}
		keys := []commands.Key{{Layer: commands.Whole, Pieces: pieces, Draft: draft}}
		if e.opts.LayerByLayer {
			keys = nil
			first, _ := e.sizes.Given(draft)
			for i := first; i < len(e.layers); i++ {
				keys = append(keys, commands.Key{Layer: i, Pieces: pieces, Draft: draft})
			}
			keys = append(keys, commands.Key{Layer: commands.Prologue, Draft: draft})
		}
		for _, key := range keys {
			if _, err := b.Commands(key, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// EngineMemory is device memory in bytes, by purpose.
type EngineMemory struct {
	Weights   uint64 // of the layers, which the engine does not own: the sum of DeviceLayer.Bytes
	Caches    uint64 // pages
	Held      uint64 // of Caches: the pages that sessions hold, each counted once
	Tables    uint64 // block tables, cosines and sines
	Steps     uint64 // what passes between operations, of the largest size in use, and the metadata of steps of each
	Workspace uint64 // rows that are gathered to be attended, 256 MiB at most
	Hidden    uint64 // hidden states and kept picks, those in host memory included
	Host      uint64 // of Steps and Hidden: what is mapped host memory
}

// Total is the sum; Held is in it as a part of Caches, Host as a part of Steps and Hidden.
func (m EngineMemory) Total() uint64 {
	return m.Weights + m.Caches + m.Tables + m.Steps + m.Workspace + m.Hidden
}

// Memory returns what is allocated now. A server that begins no new sequences once Held is near
// EngineOptions.MaxCacheBytes leaves room for the open ones to grow.
//
// Steps and Hidden grow with the sizes of steps so far, and of Prepare. For T tokens, all kinds of
// layers share scratch: about 2*T*2*H*512 bytes, and some tens of MB that do not grow with T. Each
// kind has lists of 4*T*Window bytes, or of 4*T*(Window + entries) where it attends all of them.
// Each indexer whose picks others read has up to 8*T*TopK. After Warm there is scratch for one
// size alone, that which takes most. Before it, each size that took more than all that came before
// it may have some of its own. All sizes of Hidden take about twice what the largest does.
func (e *Engine) Memory() EngineMemory {
	var m EngineMemory
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return m
	}
	m.Weights = e.weights()
	m.Caches, m.Held, m.Tables = e.pages.Memory()
	for _, t := range e.ropes {
		m.Tables += t.Bytes()
	}
	m.Steps, m.Hidden, m.Host, m.Workspace = e.sizes.Bytes()
	return m
}

// weights is the memory of the layers, each counted once.
func (e *Engine) weights() (sum uint64) {
	seen := map[*model.DeviceLayer]bool{}
	for _, l := range e.layers {
		if !seen[l.W] {
			seen[l.W] = true
			sum += l.W.Bytes()
		}
	}
	return sum
}

// Close ends the step in progress, waits for the device, and frees everything but the weights.
// Using the engine, its sessions or steps afterwards gives vk.ErrClosed. Closing again does
// nothing.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	if st := e.now.step; st != nil {
		st.withhold() // the program that was to signal a semaphore may be gone
		st.leave()
	}
	e.mu.Unlock()
	e.stepLock <- struct{}{} // calls that have it find the engine closed, and end
	defer e.unlockStep()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed {
		return nil
	}
	e.freed = true
	return e.free()
}

// free frees what the engine owns once the device is done with it.
func (e *Engine) free() error {
	if p := e.now.flight; p != nil {
		e.mu.Unlock()
		_ = p.Wait(context.Background()) // bounded by vk.DeviceOptions.HangAfter
		e.mu.Lock()
	}
	var err error
	if e.sizes != nil {
		err = e.sizes.Close()
	}
	if e.pages != nil {
		err = errors.Join(err, e.pages.Close())
	}
	for _, t := range e.ropes {
		err = errors.Join(err, t.Close())
	}
	return err
}

// forget drops all recorded commands.
func (e *Engine) forget() error { return e.sizes.Forget() }

// usable reports why nothing can be done. It is called, as all below, with e.mu held.
func (e *Engine) usable() error {
	if e.closed {
		return fmt.Errorf("engine %w", vk.ErrClosed)
	}
	return e.failed
}

// note remembers a lost device, and ends the step in progress: no call shall wait for it.
func (e *Engine) note(err error) error {
	if errors.Is(err, vk.ErrDeviceLost) && e.failed == nil {
		e.failed = err
		e.log(slog.LevelError, "the device is lost", "error", err)
		if st := e.now.step; st != nil {
			st.end()
		}
	}
	return err
}

// runOnce records commands, runs them and waits.
func (e *Engine) runOnce(ctx context.Context, record func(*vk.Recorder) error) error {
	cmd, err := e.record(record)
	if err != nil {
		return err
	}
	return errors.Join(e.await(func() error { return cmd.Run(ctx) }), cmd.Release())
}

// record records commands.
func (e *Engine) record(record func(*vk.Recorder) error) (*vk.Commands, error) {
	rec, err := e.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := record(rec); err != nil {
		return nil, err
	}
	return rec.End()
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// ranksOf returns among how many devices the weights' heads are divided. Weights of a wrong shape
// count as whole: the layers refuse them.
func ranksOf(layers []commands.Layer, cfg *model.Config) int {
	heads := layers[0].W.QB.N / cache.D
	if heads < 1 || cfg.Heads%heads != 0 || cfg.Groups%(cfg.Heads/heads) != 0 {
		return 1
	}
	return cfg.Heads / heads
}

// gatherBytes is the most memory of gathered rows; 0: attention.DefaultWorkspace. Tests make it
// small, so that steps take several pieces.
var gatherBytes uint64
