package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/vk"
)

const opOpen = "model: open checkpoint"

// CheckpointOptions say what of a checkpoint is wanted. The zero value is all of it.
type CheckpointOptions struct {
	Layers []int // numbers of the layers, in the order wanted; nil: all
	// Ranks divides heads and groups among as many devices, of which this is number
	// Rank: 0, 0 (or 0, 1) is everything. Ranks has to divide o_groups.
	Rank, Ranks int
	// Config describes the model in place of config.json, for layers that no config.json can
	// describe; nil: config.json does.
	Config *Config
}

// Checkpoint is the attention weights of a model, in mapped files.
type Checkpoint struct {
	Config Config         // of the whole model
	Layers []LayerWeights // those that were asked for
	Rank   int            // whose part Layers hold
	Ranks  int            // at least 1
	model  *safetensors.Model
}

// Open opens a model's folder: config.json (see ParseConfig), and
// model.safetensors or the files that model.safetensors.index.json names. It checks
// that every layer asked for has all of its attention tensors and no others, in the
// shapes that the configuration demands, with scales that are numbers. Weights
// themselves are only read when they are needed; what does not belong to attention is
// not looked at. Whoever opens the checkpoint closes it.
//
// Tensors may be named as in released checkpoints, with or without "model.", or as
// transformers names them. A linear layer may be stored as BF16 (F16 and F32 are
// rounded to it), as FP8 with scales .scale or .weight_scale_inv (or .weight_scale)
// per 128 by 128 (UE8M0 or float), or as NVFP4 with .weight_scale and
// .weight_scale_2, or .weight_packed, .weight_scale and .weight_global_scale. Small
// tensors may be any of the floats.
//
// Errors: *ConfigError (ErrConfig); *CheckpointError (ErrCheckpoint), also for
// malformed files; *vk.ArgumentError (vk.ErrArgument) for the options; the file
// system's.
func Open(dir string, o CheckpointOptions) (*Checkpoint, error) {
	cfg, err := o.config(dir)
	if err != nil {
		return nil, err
	}
	ranks := max(o.Ranks, 1)
	switch {
	case o.Ranks < 0 || cfg.Groups%ranks != 0:
		return nil, &vk.ArgumentError{Op: opOpen, Arg: "Ranks", Got: fmt.Sprint(o.Ranks), Want: fmt.Sprintf("a divisor of the %d groups", cfg.Groups)}
	case o.Rank < 0 || o.Rank >= ranks:
		return nil, &vk.ArgumentError{Op: opOpen, Arg: "Rank", Got: fmt.Sprint(o.Rank), Want: fmt.Sprintf("0 to %d", ranks-1)}
	}
	layers := o.Layers
	if layers == nil {
		for i := range cfg.Layers {
			layers = append(layers, i)
		}
	}
	for i, n := range layers {
		if n < 0 || n >= len(cfg.Layers) || slices.Contains(layers[:i], n) {
			return nil, &vk.ArgumentError{Op: opOpen, Arg: "Layers", Got: fmt.Sprint(n), Want: fmt.Sprintf("each of 0 to %d at most once", len(cfg.Layers)-1)}
		}
	}
	m, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, fileError(err)
	}
	c := &Checkpoint{Config: cfg, Rank: o.Rank, Ranks: ranks, model: m}
	if err := c.read(layers); err != nil {
		m.Close()
		return nil, err
	}
	return c, nil
}

// config returns the configuration that a checkpoint is read by.
func (o *CheckpointOptions) config(dir string) (Config, error) {
	if o.Config == nil {
		return LoadConfig(dir)
	}
	return *o.Config, o.Config.Check()
}

// fileError types what is wrong with the files as a whole.
func fileError(err error) error {
	if errors.Is(err, safetensors.ErrFormat) {
		return &CheckpointError{Tensor: "model", err: err}
	}
	return fmt.Errorf("%s: %w", opOpen, err)
}

func (c *Checkpoint) read(layers []int) error {
	names, err := layerNamesOf(c.model)
	if err != nil {
		return err
	}
	for _, n := range layers {
		l := layerReader{model: c.model, cfg: c.Config, layer: n, names: names[n], used: map[string]bool{}, rank: c.Rank, ranks: c.Ranks}
		w, err := l.read()
		if err != nil {
			return err
		}
		c.Layers = append(c.Layers, w)
	}
	return nil
}

// Bytes returns the bytes of all tensors of the layers, which is what they take on a
// device but for some padding.
func (c *Checkpoint) Bytes() int64 {
	n := int64(0)
	for i := range c.Layers {
		n += c.Layers[i].Bytes()
	}
	return n
}

// Close unmaps the files. Nothing of Layers can be read afterwards; what was uploaded
// stays. Closing twice is allowed.
func (c *Checkpoint) Close() error {
	c.Layers = nil
	if c.model == nil {
		return nil // made by nobody
	}
	if err := c.model.Close(); err != nil {
		return fmt.Errorf("model: close checkpoint: %w", err)
	}
	return nil
}
