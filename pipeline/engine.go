package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNewEngine = "pipeline: new engine"
	opPrepare   = "pipeline: prepare"
)

// EngineOptions say what an Engine is for.
type EngineOptions struct {
	// Longest sequence, 1 to MaxPositions of the model, and on a device whose descriptors
	// hold less than 256 bytes for each (vk.Caps.MaxStorageBufferRange) to what they hold:
	// 524288 tokens in 128 MiB, the least that Vulkan demands.
	MaxTokens   int
	MaxSessions int // most sessions that are open at once, forks that are kept for their beginnings included; 0: 1
	MaxStep     int // most tokens of a step, of all its sessions; 0: 128

	// CacheBytes is how much cache memory, of all layers, there is at first; 0: about
	// what one session of 4096 tokens needs. It grows, by doubling, to at most
	// MaxCacheBytes; 0: as far as sessions can use it. Growing copies the caches, and
	// steps are recorded again, so that a step then takes much longer than others. Where
	// no more is allowed, unused memory of one sort of pages becomes that of another, if
	// it is a sixteenth of all.
	CacheBytes, MaxCacheBytes uint64

	// Rewind is by how many tokens a session can be truncated below its greatest length; 0:
	// not at all, but to no tokens. Pages of windows and compressor states are kept for so
	// many tokens more.
	Rewind int

	Keys     cache.IndexKeyFormat // how indexer keys are stored; 0: cache.IndexKeyFP8
	Hadamard bool                 // mix indexer queries and keys before they are quantised
	Variant  string               // of the attention kernel; "" picks the best

	// Output says how attention's output goes into wo_a; 0 is OutputBF16. The others want
	// an FP8 wo_a in every layer.
	Output OutputPath

	// Ranks is how many ranks share heads and groups, see CheckpointOptions.Ranks; 0 counts as 1. With
	// more, outputs are f32: partial sums, to be added up over the ranks.
	Ranks int

	// KeepTopK keeps the indexer's picks of every layer, for Step.TopK.
	KeepTopK bool

	// SubmitBudget is how long a submission may keep the device, so that a watchdog leaves
	// it alone and others have their turn: a step with more to do is handed over in several,
	// which changes nothing else. 0 is 200 ms; with a negative one a step is always one
	// submission. What operations take is measured: in the first step of a size, and in
	// one that has so much more to do than the one before that it might take too long,
	// each is a submission of its own. Attention and products that take too long alone
	// are divided by their workgroups, into 64 pieces at most; before they were
	// measured, only on devices that are not discrete GPUs, blindly. A device without
	// timestamps has one submission for a step. See Engine.Longest.
	SubmitBudget time.Duration

	// LayerByLayer is for callers that run a step's layers one by one, for what enters a
	// layer is made of the output of the one before by something else than Between: all
	// layers then share one tensor of inputs and one of outputs, and Step.Run is not there.
	LayerByLayer bool

	// Between records what the rest of a model does between its layers of attention, on the
	// same device: then a step goes through the whole model in one submission. What it is
	// called for, and when, is said at the type Between.
	Between func(rec *vk.Recorder, at Between) error
}

// Engine runs layers of a model for many sequences, its sessions. It owns their caches,
// block tables and all memory of a step; the weights are the caller's.
//
// Layers of one ratio share block tables: a session has the same pages in each of them.
// Device commands are recorded once for each number of tokens (1, 2, 4 and so on up to
// MaxStep, to which steps are padded), when a step first needs them; from then on a
// step takes the host one upload of lengths and positions and one submission, or with
// SubmitLayer one for each layer and one before them, unless they would be longer than
// EngineOptions.SubmitBudget. The one submission is for a whole model whose other
// operations EngineOptions.Between records.
//
// Results depend on the options, the tokens of a session so far, and the size that its
// steps were padded to; not on other sessions, pages, growth, or what was forked,
// truncated, cancelled, saved or restored meanwhile.
//
// All methods, and those of sessions and steps, may be called from any goroutine. One
// step is in progress at a time. The zero values of Engine, Session and Step are of no use.
type Engine struct {
	dev    *vk.Device
	cfg    model.Config
	opts   EngineOptions
	update *cache.TableUpdate

	turn chan struct{} // holds a token while a step, or something that excludes one, is in progress
	done chan struct{} // closed by Close
	run  sync.Mutex    // held while the device is waited for, so that Close does not free what is waited on; taken before mu
	mu   sync.Mutex    // of all below

	layers  []*engineLayer
	caches  []*layerCache // of all layers
	pools   []*enginePool
	tables  *tensor.Arena // of all block tables
	ropes   map[model.Rope]tensor.Tensor
	reach   int // positions that the tensors of ropes have rows for
	buckets map[int]*bucket

	sessions []*Session // by row of the block tables; nil: free
	rows     []rowState // by row
	step     *Step      // in progress
	flight   *vk.Pending
	copies   []pendingCopy
	parts    []stepPart // of the step in progress, reused
	need     pageCounts // likewise
	busy     []busyPart // those of sessions whose tables have something to do, see rowState.quiet
	changed  []tableOf  // those that may have entries that the device does not have
	byRow    []int      // index into parts, or -1
	ran, set []bool     // of the step: layers that ran; [layers, MaxSessions] inputs set from host memory
	shown    []bool     // of the step: layers whose results are in host memory, for ReadOutput

	timing  Timing
	longest time.Duration // of a submission so far
	closed  bool
	failed  error // the device is lost
}

// engineLayer is a layer with its caches.
type engineLayer struct {
	w              *model.DeviceLayer
	spec           *model.Layer
	entries, picks *engineLayer // that it takes them from: itself, or an earlier one
	caches         layer.Caches
	rope           model.Rope
}

// NewEngine makes an engine for layers, which may be any of the model's, in any order,
// and the same weights several times: from here on a layer is called by its number in
// the list. It allocates caches and block tables; the memory of steps comes when they
// are first needed, or with Prepare. The weights have to stay until the engine is
// closed.
//
// Errors: *ConfigError (ErrConfig); vk.ErrArgument for options out of range, among them
// a MaxStep or MaxSessions whose tensors or block tables exceed what one descriptor
// holds, weights that do not fit the configuration, or a CacheBytes or MaxCacheBytes
// that holds not even a page of each cache; those of vk.Device.NewBuffer and vk.Device.Kernel; the context's.
func NewEngine(ctx context.Context, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer, o EngineOptions) (*Engine, error) {
	if err := o.complete(dev, cfg, layers); err != nil {
		return nil, err
	}
	e := &Engine{dev: dev, cfg: cfg, opts: o, turn: make(chan struct{}, 1), done: make(chan struct{}),
		ropes: map[model.Rope]tensor.Tensor{}, buckets: map[int]*bucket{}, sessions: make([]*Session, o.MaxSessions), rows: make([]rowState, o.MaxSessions),
		byRow: make([]int, o.MaxSessions), ran: make([]bool, len(layers)), set: make([]bool, len(layers)*o.MaxSessions), shown: make([]bool, len(layers))}
	for _, w := range layers {
		l := &engineLayer{w: w, spec: &cfg.Layers[w.Layer], rope: cfg.Rope(w.Layer)}
		e.layers = append(e.layers, l)
		l.entries, l.picks = e.latest(l.spec.EntriesOf), e.latest(l.spec.PicksOf)
		e.ropes[l.rope] = tensor.Tensor{}
	}
	if err := e.build(ctx); err != nil {
		return nil, errors.Join(wrap(opNewEngine, err), e.Close())
	}
	return e, nil
}

// wrap puts an operation in front of an error, unless it stands there already.
func wrap(op string, err error) error {
	if a, ok := err.(*vk.ArgumentError); ok && a.Op == op {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// argumentCheck remembers the first thing that is wrong with a call's arguments.
type argumentCheck struct {
	op  string
	err error
}

func (c *argumentCheck) bad(arg string, got any, want string, a ...any) {
	if c.err == nil {
		c.err = &vk.ArgumentError{Op: c.op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
	}
}

// latest returns the last of the layers so far with a number of the model, nil without one.
func (e *Engine) latest(number int) *engineLayer {
	for _, l := range slices.Backward(e.layers) {
		if l.w.Layer == number {
			return l
		}
	}
	return nil
}

// complete fills in what options leave open, and checks them.
func (o *EngineOptions) complete(dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer) error {
	if o.MaxSessions == 0 {
		o.MaxSessions = 1
	}
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.MaxStep == 0 {
		o.MaxStep = 128
	}
	if o.SubmitBudget == 0 {
		o.SubmitBudget = defaultSubmitBudget
	}
	if o.Keys == 0 {
		o.Keys = cache.IndexKeyFP8
	}
	c := argumentCheck{op: opNewEngine}
	if dev == nil {
		c.bad("dev", "nil", "a device")
	} else if c.err = cfg.Check(); c.err == nil {
		switch most := min(cfg.MaxPositions, model.MaxPosition, ropeRows(dev)); {
		case o.MaxTokens < 1 || o.MaxTokens > most:
			c.bad("MaxTokens", o.MaxTokens, "1 to %d", most)
		case o.MaxSessions < 0 || o.MaxSessions > 1<<16:
			c.bad("MaxSessions", o.MaxSessions, "0 to %d", 1<<16)
		case o.Ranks < 0 || cfg.Groups%o.Ranks != 0:
			c.bad("Ranks", o.Ranks, "a divisor of the %d groups", cfg.Groups)
		case o.MaxStep < 1:
			c.bad("MaxStep", o.MaxStep, "at least 1")
		case o.Rewind < 0:
			c.bad("Rewind", o.Rewind, "at least 0")
		case o.LayerByLayer && o.Between != nil:
			c.bad("LayerByLayer", "true, and Between", "only one of them")
		case o.Output < OutputBF16 || o.Output > OutputFP8Packed:
			c.bad("Output", o.Output, "bf16, fp8 or fp8-packed")
		case len(layers) == 0:
			c.bad("layers", "none", "at least one")
		}
	}
	for i, w := range layers {
		if c.err != nil {
			break
		}
		arg := fmt.Sprintf("layers[%d]", i)
		switch n := len(cfg.Layers); {
		case w == nil:
			c.bad(arg, "nil", "the weights of a layer")
		case w.Layer < 0 || w.Layer >= n:
			c.bad(arg+".Layer", w.Layer, "0 to %d, of a model of %d layers", n-1, n)
		default:
			for _, from := range []int{cfg.Layers[w.Layer].EntriesOf, cfg.Layers[w.Layer].PicksOf} {
				if from != w.Layer && !slices.ContainsFunc(layers[:i], func(x *model.DeviceLayer) bool { return x.Layer == from }) {
					c.bad(arg, w.Layer, "layer %d in front of it, from which it takes entries or picks", from)
				}
			}
		}
	}
	o.MaxStep = min(o.MaxStep, o.MaxTokens*o.MaxSessions)
	o.Rewind = min(o.Rewind, o.MaxTokens)
	return c.err
}

func (e *Engine) build(ctx context.Context) (err error) {
	if e.update, err = cache.NewTableUpdate(e.dev); err != nil {
		return err
	}
	if err = e.buildPools(); err != nil {
		return err
	}
	if err = e.checkTables(); err != nil {
		return err
	}
	if err = e.checkStep(); err != nil {
		return err
	}
	// A bucket, without its commands, finds out whether weights and options suit the
	// kernels, before the caches take their memory.
	if _, err = e.bucket(ctx, 1); err != nil {
		return err
	}
	if err = e.allocateCaches(ctx); err != nil {
		return err
	}
	if err = e.buildTables(ctx); err != nil {
		return err
	}
	return e.growRopes(ctx, min(e.opts.MaxTokens, max(firstRows, e.opts.MaxStep)))
}

// firstRows is how many rows of cosines and sines there are at first.
const firstRows = 4096

// growRopes makes the tables of cosines and sines reach so many positions. Commands that
// use shorter ones are dropped.
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
			err = uploadRope(ctx, t, r)
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
		putFloat(data[4*i:], v)
	}
	return t.Upload(ctx, data)
}

// Layers returns the number of layers.
func (e *Engine) Layers() int { return len(e.layers) }

// TopK is the width of picks: index_topk of the model.
func (e *Engine) TopK() int { return e.cfg.TopK }

// Caches returns the caches of a layer, for tests and measurements that fill them; the
// pools are others once the engine has grown. It is empty for a layer that there is not.
func (e *Engine) Caches(layer int) LayerCaches {
	e.mu.Lock()
	defer e.mu.Unlock()
	if layer < 0 || layer >= len(e.layers) {
		return LayerCaches{}
	}
	return e.layers[layer].reads()
}

// Prepare allocates and records what steps of so many tokens need, so that the first of
// them does not have to. After Prepare(MaxStep) no step will need more memory of its
// size, but for hidden states in host memory: a size that Step.SetInput was never called
// for allocates and records what that takes. Errors: those of Begin and of Step.Submit.
func (e *Engine) Prepare(ctx context.Context, tokens int) error {
	if tokens < 1 || tokens > e.opts.MaxStep {
		return &vk.ArgumentError{Op: opPrepare, Arg: "tokens", Got: fmt.Sprint(tokens), Want: fmt.Sprintf("1 to %d", e.opts.MaxStep)}
	}
	if err := e.enter(ctx); err != nil {
		return fmt.Errorf("%s: %w", opPrepare, err)
	}
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.usable()
	if err == nil {
		err = e.prepare(ctx, tokens)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opPrepare, e.note(err))
	}
	return nil
}

func (e *Engine) prepare(ctx context.Context, tokens int) error {
	b, err := e.bucket(ctx, tokens)
	if err != nil {
		return err
	}
	if !e.opts.LayerByLayer {
		_, err = b.commands(commandKey{layer: wholeStep}, 0)
		return err
	}
	for i := -1; i < len(e.layers) && err == nil; i++ {
		_, err = b.commands(commandKey{layer: i}, 0)
	}
	return err
}

// EngineMemory is device memory in bytes, by purpose.
type EngineMemory struct {
	Weights uint64 // of the layers, which the engine does not own: the sum of DeviceLayer.Bytes
	Caches  uint64 // pages
	Held    uint64 // of Caches, the pages that sessions hold, those that they share once
	Tables  uint64 // block tables, cosines and sines
	Steps   uint64 // what passes from one operation of a layer to the next, and the metadata of steps, for each size in use
	Hidden  uint64 // hidden states and picks, those in host memory included
}

// Total is the sum; Held is in it as a part of Caches.
func (m EngineMemory) Total() uint64 { return m.Weights + m.Caches + m.Tables + m.Steps + m.Hidden }

// Memory returns what is allocated now. A server that begins no new sequences once Held is
// near EngineOptions.MaxCacheBytes leaves room for those that there are to become longer. Steps and Hidden grow with the sizes of steps
// that there were, or that Prepare was asked for; a size takes no more again, but that
// Step.SetInput brings hidden states in host memory. For T tokens, Steps is, for each
// ratio among the layers, 2*T*(2*H*512 + G*ORank + 2*QRank + 1024) bytes and in
// compressed layers about 2*T*(2048 + 256*Hi) more, with index lists of
// 4*T*(Window + TopK) (C128A: 4*T*(Window + MaxTokens/128)) and scratch that does not
// grow with T beyond some tens of MB. As sizes are powers of two, all of them
// together take about twice what the largest does.
func (e *Engine) Memory() EngineMemory {
	e.mu.Lock()
	defer e.mu.Unlock()
	var m EngineMemory
	if e.closed {
		return m
	}
	seen := map[*model.DeviceLayer]bool{}
	for _, l := range e.layers {
		if !seen[l.w] {
			seen[l.w] = true
			m.Weights += l.w.Bytes()
		}
	}
	for _, c := range e.caches {
		m.Caches += c.memory().Bytes()
	}
	for _, p := range e.pools {
		m.Held += uint64(p.ids.Capacity()-p.ids.Free()) * p.bytes
	}
	m.Tables = e.tables.Whole().Size
	for _, t := range e.ropes {
		m.Tables += t.Bytes()
	}
	for _, b := range e.buckets {
		steps, hidden := b.bytes()
		m.Steps, m.Hidden = m.Steps+steps, m.Hidden+hidden
	}
	return m
}

// Close ends a step in progress, waits for the device, and frees everything but the
// weights. Whoever uses the engine, a session or a step afterwards gets vk.ErrClosed.
// Closing again does nothing.
func (e *Engine) Close() error {
	if e == nil {
		return nil
	}
	e.run.Lock()
	defer e.run.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed, e.step = true, nil
	close(e.done)
	var err error
	for _, b := range e.buckets {
		err = errors.Join(err, b.close())
	}
	for _, c := range e.caches {
		err = errors.Join(err, c.memory().Close())
	}
	for _, t := range e.ropes {
		err = errors.Join(err, t.Close())
	}
	if e.tables != nil {
		err = errors.Join(err, e.tables.Close())
	}
	return err
}

// enter waits for its turn: no step and nothing else that excludes one is in progress,
// and the device is done with the last. leave ends the turn.
func (e *Engine) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return fmt.Errorf("engine %w", vk.ErrClosed)
	}
	if err := e.land(ctx); err != nil {
		e.leave()
		return err
	}
	return nil
}

func (e *Engine) leave() { <-e.turn }

// land waits for what a step that was given up left on the device.
func (e *Engine) land(ctx context.Context) error {
	e.run.Lock()
	defer e.run.Unlock()
	e.mu.Lock()
	p, err := e.flight, e.usable()
	e.mu.Unlock()
	if err != nil || p == nil {
		return err
	}
	err = p.Wait(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.flight = nil
	}
	return e.note(err)
}

// usable is called, as all below, with e.mu held.
func (e *Engine) usable() error {
	if e.closed {
		return fmt.Errorf("engine %w", vk.ErrClosed)
	}
	return e.failed
}

// note remembers that the device is lost, and ends a step in progress: nobody is to wait
// for it.
func (e *Engine) note(err error) error {
	if errors.Is(err, vk.ErrDeviceLost) && e.failed == nil {
		e.failed = err
		if e.step != nil {
			err = errors.Join(err, e.step.end())
		}
	}
	return err
}
