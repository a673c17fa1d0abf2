// Package cuts divides, shares, resumes and takes back sequences in the ways that gave wrong text
// on other stacks, and demands of an engine what one pass over the same tokens gives. Each
// scenario names the public reports that it stands for.
//
// Every token of a sequence asks for something: a row of its window, an entry of an earlier group,
// or the mean of all that it sees. What it has to find follows from the sequence alone, see story.
package cuts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Size says how long sequences are.
type Size int

// Sizes. Small takes a software driver some seconds for each scenario and is past all reuse of
// pages; Full has sequences of more than 4000 tokens and is for GPUs.
const (
	Small Size = iota
	Full
)

// Scenario is one way to treat sequences.
type Scenario struct {
	Name    string
	Reports []string // public threads that it stands for: OWNER/REPOSITORY#NUMBER
	Proves  string   // in one sentence
	run     func(ctx context.Context, l *Lab) error
}

// Scenarios lists all of them.
func Scenarios() []Scenario { return scenarios }

var scenarios = []Scenario{
	{"prompt lengths", []string{"vllm-project/vllm#55927", "GDzhu01/vllm-ascend-deepseekv4#76"},
		"a prompt of any length, cut anywhere and then decoded, gives what one pass gives, its last partial group included", promptLengths},
}

// Run runs the scenario. The error says what was wrong, and at which token; nil: nothing was.
func (s *Scenario) Run(ctx context.Context, l *Lab) error {
	if err := s.run(ctx, l); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Options say how scenarios run.
type Options struct {
	Size    Size
	Variant string                           // of the attention kernel, as pipeline.EngineOptions has it
	Log     func(format string, args ...any) // what was measured; nil: nobody asks
	Stepped func()                           // called behind every step; nil: nobody asks
}

// Lab has what scenarios share: weights on a device, and what one pass over a sequence gave.
type Lab struct {
	dev    *vk.Device
	o      Options
	cfg    model.Config
	layers []*model.DeviceLayer
	values map[string][]float32 // of weights, by their names
	passes map[uint64]*pass     // by seed
}

// Open makes a small model with a layer of each kind and puts its weights on a device. The caller
// closes the lab before the device. It needs a folder for temporary files.
//
// Errors: those of the file system, of model.Open and of model.Checkpoint.Upload.
func Open(ctx context.Context, dev *vk.Device, o Options) (*Lab, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	l := &Lab{dev: dev, o: o, passes: map[uint64]*pass{}}
	if err := l.upload(ctx); err != nil {
		return nil, fmt.Errorf("cuts: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

func (l *Lab) upload(ctx context.Context) error {
	m, err := fakemodel.New(fakemodel.Options{Config: config(l.o.Size), Storage: fakemodel.FP8, Weights: weights})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "vkmla-cuts")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := m.Write(dir, 1); err != nil {
		return err
	}
	c, err := model.Open(dir, model.CheckpointOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	l.cfg, l.values = c.Config, m.Values
	l.layers, err = c.Upload(ctx, l.dev, nil)
	return err
}

// Close frees what the lab has on the device. Closing again does nothing.
func (l *Lab) Close() (err error) {
	for _, p := range l.passes {
		err = errors.Join(err, p.e.Close())
	}
	for _, w := range l.layers {
		err = errors.Join(err, w.Close())
	}
	l.passes, l.layers = nil, nil
	return err
}

// tokens is the length of a story.
func (l *Lab) tokens() int {
	if l.o.Size == Full {
		return 4500
	}
	return 1040
}

// engine makes an engine; scenarios set what matters to them.
func (l *Lab) engine(ctx context.Context, o pipeline.EngineOptions) (*pipeline.Engine, error) {
	o.MaxTokens, o.KeepTopK, o.Variant = l.tokens(), true, l.o.Variant
	return pipeline.NewEngine(ctx, l.dev, l.cfg, l.layers, o)
}
