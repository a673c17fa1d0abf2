package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// EngineOptions say what an Engine is for.
type EngineOptions struct {
	// MaxTokens is the longest sequence, 1 to the model's MaxPositions. A device may hold fewer:
	// a descriptor (vk.Caps.MaxStorageBufferRange) needs 256 bytes for each token, so 128 MiB,
	// the least that Vulkan guarantees, are for 524288 tokens.
	MaxTokens   int
	MaxSessions int // most open sessions, forks included; 0: 1
	MaxStep     int // most tokens of a step, of all its sessions; 0: 128

	// CacheBytes is the cache memory of all layers at first; 0: about what one session of 4096
	// tokens needs. It grows by doubling up to MaxCacheBytes; 0: as far as sessions can use it.
	// A step that makes it grow takes much longer, for the caches are copied and commands
	// recorded again. At MaxCacheBytes, free pages of one pool become pages of another if that
	// frees a sixteenth of all.
	CacheBytes, MaxCacheBytes uint64

	// Rewind is the most tokens below its greatest length that a session can be truncated to; 0:
	// only to none. Pages of windows and compressor states are kept for as many tokens more.
	Rewind int

	Records model.Records        // in what bytes caches are kept; 0: as Config.Records says
	Keys    cache.IndexKeyFormat // how indexer keys are stored; 0: as Records.Keys says, in V4 cache.IndexKeyFP8
	Variant string               // of the attention kernel; "" picks the best

	// Invariant makes the bits of a session's outputs, picks and caches depend on its tokens alone:
	// not on what else is in a step, how a prompt is cut into steps, or when the session is saved,
	// restored, forked or truncated. Otherwise kernels, and with them the order of sums, are chosen
	// by the size that a step is padded to. MaxStep, MaxSessions and the sizes of caches decide
	// nothing either; another device, driver or profile may. It excludes a Variant of two passes,
	// and costs time: see docs/design/invariant.md.
	Invariant bool

	// Identity names, in any words, the other sources of the bytes of sessions. It is part of the
	// engine's Fingerprint. It is for what the engine cannot know: a hash or version of the rest of
	// the model, whose outputs enter the layers, and of weights that model.Open did not read.
	Identity string

	// QuantiseActivations gives products inputs with as few bits as their weights have, as servers
	// with matrix units for such numbers do; without it inputs are bf16. Products of FP8 weights
	// then take E4M3 with a power of two for every 128 numbers of a token, in blocks of 32 for
	// every 32 (wo_a then stays with bf16, as in DeepSeek-V4.1's own code), those of NVFP4 weights
	// E2M1 with an E4M3 scale for every 16 and the checkpoint's input_scale; wo_a takes E4M3
	// if its weights are FP8 in blocks of 128. Weights of bf16, and of
	// FP8 with a scale for each row, stay with bf16. A layer with NVFP4 weights and no input_scale
	// is an error. See projection.Quantise.
	QuantiseActivations bool

	// KeepTopK keeps the indexer's picks of every layer, for Step.TopK.
	KeepTopK bool

	// Logger gets rare events: caches that grow, find no memory to do so or pass on pages,
	// workgroups that starved, a device that was lost or hangs; nil: no logging. The engine is
	// locked meanwhile: handlers must not call it. What happens often is in Engine.Stats.
	Logger *slog.Logger

	// LayerByLayer is for callers that compute what enters a layer from the output of the one
	// before by other means than Between. Layers are then submitted one by one: all share one
	// tensor of inputs and one of outputs, and there is no Step.Run.
	LayerByLayer bool

	// Between records what the rest of a model does between its layers of attention. A step then
	// goes through the whole model in one submission. The type Between has the rules.
	Between func(rec *vk.Recorder, at Between) error
}

// fill fills in defaults.
func (o *EngineOptions) fill(cfg *model.Config) {
	o.Records = cmp.Or(o.Records, cfg.Records, model.RecordsV4)
	o.Keys = cmp.Or(o.Keys, o.Records.Keys())
	o.MaxSessions = cmp.Or(o.MaxSessions, 1)
	o.MaxStep = cmp.Or(o.MaxStep, 128)
}

// complete fills in defaults and checks the options.
func (o *EngineOptions) complete(ctx context.Context, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer) error {
	o.fill(&cfg)
	c := argumentCheck{op: opNewEngine}
	if ctx == nil {
		c.bad("ctx", "nil", "a context")
	} else if dev == nil {
		c.bad("dev", "nil", "a device")
	} else if c.err = cfg.Check(); c.err == nil {
		o.checkRun(&c, &cfg, layers)
		o.check(&c, dev, &cfg)
		checkLayers(&c, &cfg, layers)
	}
	o.MaxStep = min(o.MaxStep, o.MaxTokens*o.MaxSessions)
	o.Rewind = min(o.Rewind, o.MaxTokens)
	return c.err
}

func (o *EngineOptions) check(c *argumentCheck, dev *vk.Device, cfg *model.Config) {
	switch most := min(cfg.MaxPositions, model.MaxPosition, ropeRows(dev)); {
	case o.MaxTokens < 1 || o.MaxTokens > most:
		c.bad("MaxTokens", o.MaxTokens, "1 to %d", most)
	case o.MaxSessions < 0 || o.MaxSessions > 1<<16:
		c.bad("MaxSessions", o.MaxSessions, "0 to %d", 1<<16)
	case o.MaxStep < 1:
		c.bad("MaxStep", o.MaxStep, "at least 1")
	case o.Rewind < 0:
		c.bad("Rewind", o.Rewind, "at least 0")
	case o.LayerByLayer && o.Between != nil:
		c.bad("LayerByLayer", "true, and Between", "only one of them")
	case o.Invariant && strings.HasPrefix(o.Variant, opkit.TwoPass):
		c.bad("Variant", o.Variant, "one that reads pages in place, for Invariant")
	}
}

// checkRun rejects options that no operation supports or the model does not use.
func (o *EngineOptions) checkRun(c *argumentCheck, cfg *model.Config, layers []*model.DeviceLayer) {
	if o.Records > model.RecordsV41 {
		c.bad("Records", o.Records, "%v or %v", model.RecordsV4, model.RecordsV41)
	}
	for _, w := range layers {
		if w == nil || w.Layer < 0 || w.Layer >= len(cfg.Layers) {
			return // checkLayers says so
		}
		l := &cfg.Layers[w.Layer]
		if l.LatentKeys && cfg.Hadamard {
			c.bad("cfg.Hadamard", cfg.Hadamard, "false: keys of layer %d, of kind %s, are not mixed", w.Layer, l.Name)
		}
		if l.Compresses() && !l.Latent && o.Records == model.RecordsV41 {
			c.bad("Records", o.Records, "%v: entries of layer %d, of kind %s, have no other", model.RecordsV4, w.Layer, l.Name)
		}
	}
}

// checkLayers demands layers of the model, each after those that it takes from.
func checkLayers(c *argumentCheck, cfg *model.Config, layers []*model.DeviceLayer) {
	if len(layers) == 0 {
		c.bad("layers", "none", "at least one")
	}
	before, drafts := map[int]bool{}, false
	for i, w := range layers {
		arg, n := fmt.Sprintf("layers[%d]", i), len(cfg.Layers)
		switch {
		case w == nil:
			c.bad(arg, "nil", "the weights of a layer")
			return
		case w.Layer < 0 || w.Layer >= n:
			c.bad(arg+".Layer", w.Layer, "0 to %d, of a model of %d layers", n-1, n)
			return
		}
		before[w.Layer] = true
		if l := &cfg.Layers[w.Layer]; drafts && !l.Block {
			c.bad(arg, fmt.Sprintf("%d, of kind %s", w.Layer, l.Name), "layers that draft, behind one that does")
		}
		drafts = drafts || cfg.Layers[w.Layer].Block
		for _, from := range cfg.Layers[w.Layer].From() {
			if !before[from] {
				c.bad(arg, w.Layer, "layer %d in front of it, from which it takes entries, picks or candidates", from)
			}
		}
	}
}

// ropeRows returns the most rows of cosines and sines that can be bound.
func ropeRows(dev *vk.Device) int {
	return int(min(memory.Bound(dev)/(4*model.RopeRow), math.MaxInt32))
}
