package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNewRunner = "pipeline: new runner"
)

// RunnerOptions say what a Runner is for.
type RunnerOptions struct {
	MaxTokens int                  // longest sequence, 1 to MaxPositions of the model
	Chunk     int                  // most tokens of a step; 0: 128. No more than MaxTokens is ever used
	Keys      cache.IndexKeyFormat // how indexer keys are stored; 0: cache.IndexKeyFP8
	Hadamard  bool                 // mix indexer queries and keys before they are quantised
	Variant   string               // of the attention kernel; "" picks the best
}

// Runner runs layers one by one for a single sequence, with hidden states in host
// memory, and keeps the caches of each. Every layer has a length of its own, so that a
// caller may run all tokens through a layer before it turns to the next, or a few
// tokens through all of them.
//
// It is safe for use by several goroutines; steps run one after the other.
type Runner struct {
	mu     sync.Mutex
	dev    *vk.Device
	cfg    Config
	opts   RunnerOptions
	kinds  []*runnerKind
	layers []*runnerLayer
	tables map[Rope]tensor.Tensor // cosines and sines
	closed bool
}

// NewRunner makes caches for the layers, which have the whole of a model's heads, and
// records their commands. Windows and compressor states keep no more pages than the
// next step needs; compressed entries and indexer keys have room for MaxTokens. The
// weights have to stay until the Runner is closed.
//
// Errors: *ConfigError (ErrConfig); vk.ErrArgument for options out of range or weights
// that do not fit the configuration; those of vk.Device.NewBuffer and vk.Device.Kernel;
// the context's.
func NewRunner(ctx context.Context, dev *vk.Device, cfg Config, layers []*DeviceLayer, o RunnerOptions) (*Runner, error) {
	if o.Chunk == 0 {
		o.Chunk = 128
	}
	if o.Keys == 0 {
		o.Keys = cache.IndexKeyFP8
	}
	c := checker{op: opNewRunner, dev: dev}
	if dev == nil {
		c.bad("dev", "nil", "a device")
	} else if c.err = cfg.Check(); c.err == nil {
		switch most := min(cfg.MaxPositions, maxPosition); {
		case o.MaxTokens < 1 || o.MaxTokens > most:
			c.bad("MaxTokens", o.MaxTokens, "1 to %d", most)
		case o.Chunk < 1:
			c.bad("Chunk", o.Chunk, "at least 1")
		}
	}
	for i, w := range layers {
		if w == nil || w.Layer < 0 || w.Layer >= cfg.Layers() || w.Ratio != cfg.Ratios[w.Layer] {
			c.bad("layers", fmt.Sprintf("%d: not of the model", i), "weights of layers of the configuration")
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	o.Chunk = min(o.Chunk, o.MaxTokens)
	r := &Runner{dev: dev, cfg: cfg, opts: o, tables: map[Rope]tensor.Tensor{}}
	for _, w := range layers {
		if err := r.add(ctx, w); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: layer %d: %w", opNewRunner, w.Layer, err), r.Close())
		}
	}
	return r, nil
}

// add makes a layer.
func (r *Runner) add(ctx context.Context, w *DeviceLayer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table, err := r.table(ctx, r.cfg.Rope(w.Layer))
	if err != nil {
		return err
	}
	l := &runnerLayer{}
	r.layers = append(r.layers, l)
	if err := l.allocate(r.dev, w, r.opts, r.cfg); err != nil {
		return err
	}
	sizes := []int{1}
	if r.opts.Chunk > 1 {
		sizes = append(sizes, r.opts.Chunk)
	}
	for _, tokens := range sizes {
		k, err := r.kind(w.Ratio, tokens, l)
		if err != nil {
			return err
		}
		if err := l.record(ctx, k, w, table); err != nil {
			return err
		}
	}
	return nil
}

// table returns the cosines and sines of a rotation.
func (r *Runner) table(ctx context.Context, rope Rope) (tensor.Tensor, error) {
	if t, ok := r.tables[rope]; ok {
		return t, nil
	}
	rows, err := rope.Table(r.opts.MaxTokens, 1)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t, err := tensor.New(r.dev, "rope tables", tensor.F32, r.opts.MaxTokens, RopeRow)
	if err != nil {
		return tensor.Tensor{}, err
	}
	r.tables[rope] = t
	data := make([]byte, 0, 4*len(rows))
	for _, v := range rows {
		data = le.AppendUint32(data, math.Float32bits(v))
	}
	return t, t.Upload(ctx, data)
}

// kind returns the kind of layer for steps of so many tokens.
func (r *Runner) kind(ratio, tokens int, like *runnerLayer) (*runnerKind, error) {
	for _, k := range r.kinds {
		if k.ratio == ratio && k.tokens == tokens {
			return k, nil
		}
	}
	k := &runnerKind{ratio: ratio, tokens: tokens}
	r.kinds = append(r.kinds, k)
	return k, k.build(r.dev, LayerKindConfig{Model: r.cfg, Ratio: ratio, Tokens: tokens, MaxLen: r.opts.MaxTokens,
		Caches: like.caches, Variant: r.opts.Variant, Hadamard: r.opts.Hadamard}, like)
}

// TopK is the width of Appended.TopK: index_topk of the model, as far as there are
// kernels for it (indexer.MaxK).
func (r *Runner) TopK() int { return r.cfg.topK() }

// Len returns the tokens of layer i, counted as they were given to NewRunner, or 0 for
// one that there is not.
func (r *Runner) Len(i int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < 0 || i >= len(r.layers) {
		return 0
	}
	return r.layers[i].length
}

// Append runs the next n tokens of layer i, counted as the layers were given to
// NewRunner: hidden is [n, Hidden], rounded to bf16 on the way. It takes them in steps
// of Chunk tokens and a smaller last one; a step of one token is a decode step. How
// tokens are divided among calls does not matter otherwise, but that sums are added in
// another order.
//
// Errors: vk.ErrArgument for a layer that there is not or a length that is no multiple
// of Hidden; ErrSequenceFull, with nothing done; the context's, between steps, and
// those of vk.Commands.Run: then Appended has the steps that were done, which Len
// counts, and the rest may be given again; vk.ErrClosed.
func (r *Runner) Append(ctx context.Context, i int, hidden []float32) (Appended, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var res Appended
	width := r.cfg.Hidden
	switch {
	case r.closed:
		return res, fmt.Errorf("%s: runner %w", opAppend, vk.ErrClosed)
	case i < 0 || i >= len(r.layers):
		return res, &vk.ArgumentError{Op: opAppend, Arg: "i", Got: fmt.Sprint(i), Want: fmt.Sprintf("0 to %d", len(r.layers)-1)}
	case len(hidden)%width != 0:
		return res, &vk.ArgumentError{Op: opAppend, Arg: "hidden", Got: fmt.Sprintf("%d values", len(hidden)), Want: fmt.Sprintf("%d for each token", width)}
	}
	l := r.layers[i]
	n := len(hidden) / width
	if n > r.opts.MaxTokens-l.length {
		return res, fmt.Errorf("%s: %w: %d tokens and %d more, of at most %d", opAppend, ErrSequenceFull, l.length, n, r.opts.MaxTokens)
	}
	for at := 0; at < n; {
		if err := ctx.Err(); err != nil {
			return res, fmt.Errorf("%s: %w", opAppend, err)
		}
		m := min(r.opts.Chunk, n-at)
		if err := l.step(hidden[at*width:(at+m)*width], m, &res); err != nil {
			return res, fmt.Errorf("%s: %w", opAppend, err)
		}
		at += m
	}
	return res, nil
}

// Close frees caches and commands; closing again does nothing.
func (r *Runner) Close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	var err error
	for _, l := range r.layers {
		err = errors.Join(err, l.close())
	}
	for _, k := range r.kinds {
		err = errors.Join(err, k.close())
	}
	for _, t := range r.tables {
		err = errors.Join(err, t.Close())
	}
	return err
}

// appendFloats appends bf16 values.
func appendFloats(to []float32, data []byte) []float32 {
	for ; len(data) > 0; data = data[2:] {
		to = append(to, numfmt.BF16Decode(le.Uint16(data)))
	}
	return to
}
