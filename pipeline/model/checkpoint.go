package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
)

const opOpen = "model: open checkpoint"

// CheckpointOptions say which part of a checkpoint to read. The zero value means all of it.
type CheckpointOptions struct {
	// Layers are the numbers of the layers, in the order wanted; nil: all of the model's own. The
	// layers that only predict ahead, mtp.0 and on, are numbered on after these: with one of them
	// Checkpoint.Config has all of them, too. See LoadConfigWithDrafts.
	Layers []int
	// Ranks is the number of devices among which heads and groups are divided, a divisor of
	// o_groups; 0 counts as 1. Rank is the number of this one, from 0.
	Rank, Ranks int
	// Config takes the place of config.json, for kinds of layers that config.json cannot name; nil:
	// config.json is read.
	Config *Config
	// Drafts is a GGUF file with a DSpark block, as ds4 or llama.cpp has it, or a folder with one:
	// mtp.0 and on are its layers, and none of the checkpoint. Errors call its tensors mtp.K., with
	// the names of GGUF. "": no such file.
	Drafts string
}

// Checkpoint is the attention weights of a model, in mapped files.
type Checkpoint struct {
	Config Config         // of the whole model
	Layers []LayerWeights // those that were asked for
	Rank   int            // whose part Layers hold
	Ranks  int            // at least 1
	// Widened says which linear layers of the files take more memory than their bytes there.
	Widened Widened
	Images  bool // the model also sees images, by tensors that are not read
	model   source
}

// Open opens a model's folder: config.json (see LoadConfig), and model.safetensors or the files
// that model.safetensors.index.json names; or a GGUF file of DeepSeek-V4 (the first, where there
// are several parts), or a folder with one. It checks that every layer asked for has all of its
// attention tensors and no others, in the shapes that the configuration demands, with scales that
// are numbers. The weights themselves are read when they are needed. Tensors outside of attention
// are ignored. The caller closes the checkpoint.
//
// Tensors may be named as in released checkpoints, as transformers names them, or as converters do
// that rename a part, with or without "model." and "language_model.". A name that could mean two
// things is an error, as is a tensor that is there under two names. A linear layer may be stored as
//
//   - BF16; F16 and F32 are rounded to it;
//   - FP8 with a scale for 128 by 128 (in DeepSeek-V4.1 32 by 32), for a row or for all, UE8M0 or
//     float: .scale, .weight_scale_inv or .weight_scale;
//   - NVFP4 with .weight_scale and .weight_scale_2, or .weight_packed, .weight_scale and
//     .weight_global_scale;
//   - in GGUF any of its floats and blocks. Blocks but those of Q8_0 and Q4_K are decoded to bf16:
//     see Checkpoint.Widened.
//
// Small tensors may be any of the floats, in GGUF blocks, too. Nothing in a file is trusted
// unchecked.
//
// Errors: *ConfigError (ErrConfig); *CheckpointError (ErrCheckpoint), also for malformed files;
// *ForeignError (ErrForeign) for models and ways to store them that are known and not read, such as
// GPTQ; vk.ErrArgument for the options, and for a file in the place of its folder; the file
// system's.
func Open(dir string, o CheckpointOptions) (*Checkpoint, error) {
	cfg, err := o.config(dir)
	if err != nil {
		return nil, err
	}
	ranks := max(o.Ranks, 1)
	switch {
	case o.Ranks < 0 || cfg.Groups%ranks != 0:
		return nil, badArgument(opOpen, "Ranks", o.Ranks, "a divisor of the %d groups", cfg.Groups)
	case o.Rank < 0 || o.Rank >= ranks:
		return nil, badArgument(opOpen, "Rank", o.Rank, "0 to %d", ranks-1)
	}
	layers := o.Layers
	if layers == nil {
		for i := range cfg.mainLayers() {
			layers = append(layers, i)
		}
	}
	for i, n := range layers {
		if n < 0 || n >= len(cfg.Layers) || slices.Contains(layers[:i], n) {
			return nil, badArgument(opOpen, "Layers", n, "each of 0 to %d at most once", len(cfg.Layers)-1)
		}
	}
	m, err := openDrafted(dir, o.Drafts, attentionPart)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Config: cfg, Rank: o.Rank, Ranks: ranks, Images: slices.ContainsFunc(m.Names(), forImages), model: m}
	if err := c.read(layers); err != nil {
		m.Close()
		return nil, err
	}
	return c, nil
}

// config returns the configuration that a checkpoint is read by.
func (o *CheckpointOptions) config(dir string) (Config, error) {
	if o.Config != nil {
		return *o.Config, o.Config.Check()
	}
	if o.Drafts != "" {
		return LoadConfigWithDrafts(dir, o.Drafts)
	}
	cfg, err := LoadConfig(dir)
	if err == nil && slices.ContainsFunc(o.Layers, func(n int) bool { return n >= len(cfg.Layers) }) {
		cfg, err = LoadConfigWithDrafts(dir, "")
	}
	return cfg, err
}

// fileError gives an error about the files as a whole its type.
func fileError(err error) error {
	if errors.Is(err, ErrForeign) {
		return err
	}
	if errors.Is(err, safetensors.ErrFormat) || errors.Is(err, gguf.ErrFormat) {
		return &CheckpointError{Tensor: "model", err: err}
	}
	return fmt.Errorf("%s: %w", opOpen, err)
}

func (c *Checkpoint) read(layers []int) error {
	names, err := layerNamesOf(c.model, &c.Config)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(layers, func(n int) bool { return c.Config.Layers[n].Draft }) {
		if err := checkDrafts(c.model, &c.Config); err != nil {
			return err
		}
	}
	for _, n := range layers {
		if c.Config.Layers[n].Draft && len(names[n]) == 0 {
			return badArgument(opOpen, "Layers", n, "0 to %d: the checkpoint has no tensors %s*",
				c.Config.mainLayers()-1, c.model.spelled(&c.Config, n, ""))
		}
		l := layerReader{model: c.model, cfg: c.Config, layer: n, names: names[n], used: map[string]safetensors.Tensor{},
			rank: c.Rank, ranks: c.Ranks, widened: &c.Widened}
		w, err := l.read()
		if err != nil {
			return err
		}
		c.Layers = append(c.Layers, w)
	}
	return nil
}

// Close unmaps the files: Layers cannot be read afterwards, but what was uploaded stays. Closing
// twice is allowed.
func (c *Checkpoint) Close() error {
	c.Layers = nil
	if c.model == nil {
		return nil // not made by Open
	}
	if err := c.model.Close(); err != nil {
		return fmt.Errorf("model: close checkpoint: %w", err)
	}
	return nil
}
