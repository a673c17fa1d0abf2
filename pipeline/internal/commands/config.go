// Package commands holds what steps of some number of tokens need: kernels, memory, and commands
// that are recorded once and submitted by every such step. It is handed layers, and the caches and
// block tables that these read and write; it knows no sessions.
//
// Calls exclude each other. Some call Config.Wait, which may let others in meanwhile.
package commands

import (
	"context"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Config describes steps and their sizes.
type Config struct {
	Dev    *vk.Device
	Model  *model.Config
	Layers []Layer
	Drafts int // the first layer that drafts; as many as there are without any
	Ranks  int // among which the heads of the weights are divided

	MaxTokens, MaxSessions, MaxStep             int
	Variant                                     string // of the attention kernel; "" picks the best
	Invariant, Quantise, KeepTopK, LayerByLayer bool
	Workspace                                   uint64 // most memory of gathered rows; 0: attention.DefaultWorkspace

	Pages   Pages
	Ropes   func(model.Rope) tensor.Tensor         // the table of cosines and sines
	Between func(rec *vk.Recorder, at Place) error // records the caller's commands; nil without any
	Time    func(*vk.Recorder) error               // makes commands measure what was asked for
	Wait    func(wait func() error) error          // calls what waits for the device
	Record  func(func(*vk.Recorder) error) (*vk.Commands, error)
	Op      string // of errors of options

	Count *Counts // counts what is else allocated; nothing can be recorded then
}

// Layer is a layer with its weights. What it takes of others is given by their indices in
// Config.Layers.
type Layer struct {
	W              *model.DeviceLayer
	Spec           *model.Layer
	Entries, Picks int // of itself, or an earlier one
	Blocks         int // whose candidates its indexer scores, or itself if it makes them; -1 without
	Rope           model.Rope
}

// Pages are the caches and block tables that commands read and write.
type Pages interface {
	Caches(layer int) layer.Caches
	Greatest(layer int) layer.Caches // at their final size, without memory
	Table(layer int, s model.Store) tensor.Tensor
	Tables() tensor.Tensor  // all of them
	Entries(tokens int) int // the most entries of tables that steps of T tokens change
	Updates(ctx context.Context, list []byte) (n int, err error)
}

// Place is a place in the commands of a step: in front of a layer, or after the last one.
type Place struct {
	Layer         int
	Tokens        int
	Output, Input tensor.Tensor

	QueryStart, SeqLens, TokenToReq, Positions, IsValid tensor.Tensor

	Draft bool
}

// Part is a chunk of a step: N tokens of the session in a seat, a row of the block tables, after
// Length.
type Part struct {
	Seat     int
	First, N int // rows of the step; First is what Fill gives it
	Length   int
}

// Counts is memory that is counted instead of allocated.
type Counts struct{ device, host purposes }

// purposes has a count for each use of memory; those of nil Counts allocate.
type purposes struct{ steps, hidden, workspace *memory.Count }

// NewCounts makes counts of nothing yet.
func NewCounts() *Counts {
	purpose := func() purposes { return purposes{&memory.Count{}, &memory.Count{}, &memory.Count{}} }
	return &Counts{purpose(), purpose()}
}

// Bytes returns what was counted: for steps, for hidden states, what of both is host memory, and
// for gathered rows.
func (c *Counts) Bytes() (steps, hidden, host, workspace uint64) {
	d, h := &c.device, &c.host
	return d.steps.Bytes + h.steps.Bytes, d.hidden.Bytes + h.hidden.Bytes, h.steps.Bytes + h.hidden.Bytes, d.workspace.Bytes
}

func (c *Counts) in(mem vk.Memory) purposes {
	switch {
	case c == nil:
		return purposes{}
	case mem == vk.DeviceLocal:
		return c.device
	}
	return c.host
}

// Chained reports whether the caller's commands make a layer's input from the output before it.
func (z *Sizes) Chained() bool { return z.cfg.Between != nil }

// OneTensor reports whether all layers share one tensor of inputs and one of outputs, because no
// other layer's is needed while a layer runs.
func (z *Sizes) OneTensor() bool { return z.cfg.LayerByLayer || z.Chained() }

// Given returns the layers from first on, before end, that get their inputs from outside. first is
// the first that runs.
func (z *Sizes) Given(draft bool) (first, end int) {
	if draft {
		first = z.cfg.Drafts
	}
	if z.Chained() {
		return first, first + 1
	}
	return first, len(z.cfg.Layers)
}

// MapsHidden reports whether the host reaches hidden states where layers read and write them, so
// that none are copied. Where the caller's commands overwrite the input of layer 0, its copy in
// host memory stays, for a step that is submitted again.
func (z *Sizes) MapsHidden() bool { return z.cfg.Dev.Unified() && !z.Chained() }

// Begins reports whether the caller's commands in front of the first layer write all of its input,
// as commands that were recorded say.
func (b *Size) Begins(draft bool) bool { return b.begins[draft] }

func ceilDiv(a, b int) int { return (a + b - 1) / b }
