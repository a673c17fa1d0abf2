package model

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// Placement says which parts of a model lie on the device. Bytes are of its memory, but for Host.
type Placement struct {
	Free      uint64 // for all of it
	Attention uint64 // with caches and steps, at any rate
	Whole     bool   // everything is there
	Apart     bool   // head and shared experts are there, and
	Layers    int    // the routed experts of the first Layers
	Of        int    // layers of the model
	Rest      uint64 // what is not attention
	Host      uint64 // bytes of experts that the processor reads
	Token     uint64 // of these, for one token
}

// String reads "attention, caches, head, shared experts and the experts of 12 of 43 layers ...".
func (p Placement) String() string {
	gib := func(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
	sizes := fmt.Sprintf("of %s free: attention and caches %s", gib(p.Free), gib(p.Attention))
	switch {
	case p.Attention > p.Free:
		return fmt.Sprintf("not even attention fits on the device, %s; fewer --max-tokens, --max-sessions or --cache-mib "+
			"take less", sizes)
	case p.Whole:
		return fmt.Sprintf("everything on the device, %s, the rest %s", sizes, gib(p.Rest))
	case p.Apart:
		return fmt.Sprintf("head, shared experts and the experts of %d of %d layers on the device, %s, these %s; "+
			"%s of experts on the processor, which reads %.2f GB of them for a token", p.Layers, p.Of, sizes, gib(p.Rest),
			gib(p.Host), float64(p.Token)/1e9)
	}
	return fmt.Sprintf("only attention on the device, %s; %s of experts on the processor, which reads %.2f GB of them for a token",
		sizes, gib(p.Host), float64(p.Token)/1e9)
}

// engine are the options of the engine before it is known where the experts are.
func (o *Options) engine() pipeline.EngineOptions {
	// Invariant: a request's answer depends on its prompt alone, not on who asks at the same time.
	e := pipeline.EngineOptions{MaxTokens: o.MaxTokens, MaxSessions: o.MaxSessions, MaxStep: o.MaxStep, MaxCacheBytes: o.MaxCacheBytes,
		Invariant: !o.Varies, Logger: o.Log}
	if o.Prefixes {
		e.MaxSessions, e.Rewind = e.MaxSessions+mostKeeping, prefix.Block // the state at the last block's end stays
	}
	e.Rewind += o.Drafts // what is not accepted is taken back
	return e
}

// Plan says where the parts of a checkpoint would lie, with Options.Offload and Options.Memory. It
// reads no weights.
func Plan(ctx context.Context, dev *vk.Device, dir string, o Options) (p Placement, err error) {
	w, err := o.weights(dir)
	if err != nil {
		return p, err
	}
	defer w.Close()
	attention, err := o.attention(dir, w)
	if err != nil {
		return p, err
	}
	defer attention.Close()
	return place(ctx, dev, w, attention, o.engine(), o)
}

// place decides what lies on the device: attention and caches; then shared experts and head, then
// the experts of as many layers as fit; everything if that fits, or without Offload.
//
// Errors: those of pipeline.EngineOptions.Estimate.
func place(ctx context.Context, dev *vk.Device, w *weights.Model, attention *model.Checkpoint, e pipeline.EngineOptions,
	o Options) (p Placement, err error) {
	layers, err := attention.Plan()
	if err != nil {
		return p, err
	}
	m, err := e.Estimate(ctx, dev, attention.Config, layers)
	if err != nil {
		return p, err
	}
	p = Placement{Free: o.Memory, Attention: m.Total() - m.Host, Of: len(w.Layers)}
	if p.Free == 0 {
		p.Free = gpu.Free(dev)
	}
	needs, err := gpu.NeedsOf(w, e.MaxStep)
	if err != nil {
		return p, err
	}
	left := p.Free - min(p.Attention, p.Free)
	if !o.Offload || needs.Whole <= left {
		p.Whole, p.Layers, p.Rest = true, p.Of, needs.Whole
		return p, nil
	}
	if n := needs.Fit(left); n >= 0 {
		p.Apart, p.Layers, p.Rest = true, n, needs.Rest
		for _, bytes := range needs.Layers[:n] {
			p.Rest += bytes
		}
	}
	p.onHost(w)
	return p, nil
}

// onHost counts the bytes of experts that the processor has.
func (p *Placement) onHost(w *weights.Model) {
	one := func(e *weights.Expert) uint64 { return uint64(e.W1.Bytes() + e.W3.Bytes() + e.W2.Bytes()) }
	for _, l := range w.Layers[p.Layers:] {
		each := one(&l.Experts[0])
		p.Host, p.Token = p.Host+each*uint64(len(l.Experts)), p.Token+each*uint64(w.Config.PerToken)
		if !p.Apart {
			p.Host, p.Token = p.Host+one(&l.Shared), p.Token+one(&l.Shared)
		}
	}
}

// fromDisk says once that the host's memory does not hold the experts, and reports whether that is
// so. What is used often stays there; a token that finds nothing reads as much as it says.
func (p *Placement) fromDisk(log *slog.Logger) bool {
	has := hostMemory()
	if has == 0 || p.Host <= has {
		return false
	}
	log.Warn("experts are larger than the host's memory: they are read from the files as they are chosen",
		"GiB", float64(p.Host)/(1<<30), "memory_GiB", float64(has)/(1<<30), "bytes_of_a_token", p.Token)
	return true
}

// hostMemory returns the bytes of the host's memory, 0 where the system does not say.
var hostMemory = func() uint64 {
	data, _ := os.ReadFile("/proc/meminfo")
	var kib uint64
	if _, err := fmt.Sscanf(string(data), "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib << 10
}

// experts computes the experts of a layer: f [T, D] from x [T, D]. What the device has of it runs
// beside the processor.
func (m *Model) experts(ctx context.Context, layer int, x, f []float32) error {
	s, a := &m.streams, m.apart
	switch {
	case a == nil:
		m.cpu.Experts(layer, s, x, f, nil)
		return nil
	case layer < a.Layers():
		return a.Experts(ctx, layer, s.IDs, x, f)
	}
	shared, done := make([]float32, len(x)), make(chan error, 1)
	go func() { done <- a.Shared(ctx, layer, x, shared) }()
	wait := sync.OnceValue(func() error { return <-done })
	defer wait() // also where a file became shorter
	m.cpu.Experts(layer, s, x, f, func() []float32 { _ = wait(); return shared })
	return wait()
}

// head computes logits [len(wanted), V] after the model's own layers or after those that draft.
func (m *Model) head(ctx context.Context, drafts bool, wanted []int, logits []float32) error {
	if m.apart == nil || len(wanted) == 0 {
		m.cpu.Head(&m.streams, drafts, wanted, logits)
		return nil
	}
	x := make([]float32, len(wanted)*m.Config.Hidden)
	m.cpu.HeadInput(&m.streams, drafts, wanted, x)
	return m.apart.Head(ctx, x, logits)
}
