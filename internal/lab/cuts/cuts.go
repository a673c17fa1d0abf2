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
	"slices"

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

// Suits reports whether a model has what the scenario is about: formats are of checkpoints of
// DeepSeek-V4.
func (s *Scenario) Suits(m Model) bool { return m == V4 || s.Name != nameFormats }

const nameFormats = "formats"

var scenarios = []Scenario{
	{"prompt lengths", []string{"vllm-project/vllm#55927", "GDzhu01/vllm-ascend-deepseekv4#76"},
		"a prompt of any length, cut anywhere and then decoded, gives what one pass gives, its last partial group included", promptLengths},
	{"shared prefixes", []string{"ROCm/ATOM#1417", "ROCm/ATOM#1423", "sgl-project/sglang#30339"},
		"a prefix shared after its window wrapped stays what it is while others write behind it and are closed", sharedPrefixes},
	{"restored sessions", []string{"sgl-project/sglang#28058"},
		"a session restored after its window wrapped goes on as one that never stopped", restores},
	{"reused pages", []string{"ROCm/ATOM#1417"},
		"a session in pages that another has just given back finds only what is its own", reusedPages},
	{"mixed batches", []string{"vllm-project/vllm#51318", "sgl-project/sglang#36174"},
		"sessions of any lengths in one step give what each gives alone, whatever the others are", mixedBatches},
	{"short recordings", []string{"vllm-project/vllm#52492"},
		"steps recorded at a short length give on a long sequence what steps recorded there give", shortRecordings},
	{"repeats", []string{"vllm-project/vllm#53257", "hw-native-sys/pypto-lib#951"},
		"the same tokens in the same steps give the same bits each time", repeats},
	{"long generation", []string{"sgl-project/sglang#33397", "vllm-project/vllm#52109"},
		"tokens decoded one by one, past every reuse of a page, give what one pass gives", longGeneration},
	{"rejected drafts", []string{"antirez/ds4#468"},
		"drafts of 1 to 6 tokens, with any number of them rejected, leave nothing behind, nor does making them", rejectedDrafts},
	{"truncation", []string{"antirez/ds4#698"},
		"a session cut anywhere in a group or a page goes on as if what was cut had never been", truncations},
	{"padding", []string{"GDzhu01/vllm-ascend-deepseekv4#76"},
		"what lies behind a step's last token, NaN for instance, reaches no group and no result", padding},
	{"isolation", []string{"vllm-project/vllm#50283", "nod-ai/amd-shark-ai#665"},
		"NaN, infinities, large and subnormal numbers in one session change no bit of another beside it, or later in its pages", isolation},
	{"equal scores", []string{"sgl-project/sglang#23926", "hw-native-sys/pypto-lib#951"},
		"of entries with equal scores the earliest are picked, in prompts and in decoding", equalScores},
	{"angles", []string{"ml-explore/mlx-lm#1189", "sgl-project/sglang#34788", "hw-native-sys/pypto-lib#951"},
		"each kind of layer turns by its own base and scaling, its indexer too: layers of random weights agree with float64", angles},
	{nameFormats, []string{"modular/modular#6600"},
		"weights with factors that others divide by mean what their makers wrote", formats},
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
	Model   Model
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
	m, err := fakemodel.New(fakemodel.Options{Config: l.o.Model.config(l.o.Size), Storage: fakemodel.FP8, Weights: weights})
	if err != nil {
		return err
	}
	l.values = m.Values
	var all []int
	for i := range l.o.Model.config(l.o.Size).Layers {
		all = append(all, i)
	}
	l.cfg, l.layers, err = upload(ctx, l.dev, m, all...)
	return err
}

// upload puts the weights of some layers of a model on a device, or of all but those that draft.
func upload(ctx context.Context, dev *vk.Device, m *fakemodel.Model, list ...int) (cfg model.Config, layers []*model.DeviceLayer, err error) {
	dir, err := os.MkdirTemp("", "vkmla-cuts")
	if err != nil {
		return cfg, nil, err
	}
	defer os.RemoveAll(dir)
	if err := m.Write(dir, 1); err != nil {
		return cfg, nil, err
	}
	c, err := model.Open(dir, model.CheckpointOptions{Layers: list})
	if err != nil {
		return cfg, nil, err
	}
	defer c.Close()
	layers, err = c.Upload(ctx, dev, nil)
	return c.Config, layers, err
}

// closed closes weights.
func closed(layers []*model.DeviceLayer) (err error) {
	for _, w := range layers {
		err = errors.Join(err, w.Close())
	}
	return err
}

// Close frees what the lab has on the device. Closing again does nothing.
func (l *Lab) Close() (err error) {
	for _, p := range l.passes {
		err = errors.Join(err, p.e.Close())
	}
	err = errors.Join(err, closed(l.layers))
	l.passes, l.layers = nil, nil
	return err
}

// main is how many layers do not draft.
func (l *Lab) main() int {
	n := slices.IndexFunc(l.cfg.Layers, func(l model.Layer) bool { return l.Block })
	if n < 0 {
		return len(l.layers)
	}
	return n
}

// tokens is the length of a story.
func (l *Lab) tokens() int {
	if l.o.Size == Full {
		return 4500
	}
	return models[l.o.Model].small
}

// room is so many tokens, or fewer where a story ends soon after.
func (l *Lab) room(n int) int { return min(n, l.tokens()-80) }

// upTo are those of some lengths that a story has, with room for what follows.
func (l *Lab) upTo(lengths ...int) []int {
	return slices.DeleteFunc(lengths, func(n int) bool { return n+32 > l.tokens() })
}

// engine makes an engine; scenarios set what matters to them.
func (l *Lab) engine(ctx context.Context, o pipeline.EngineOptions) (*pipeline.Engine, error) {
	o.MaxTokens, o.KeepTopK, o.Variant, o.Records = l.tokens(), true, l.o.Variant, models[l.o.Model].records
	return pipeline.NewEngine(ctx, l.dev, l.cfg, l.layers, o)
}
