// Package sequences divides, shares, resumes and takes back sequences, and demands of an engine
// what one pass over the same tokens gives. A scenario does it in one of the ways that gave wrong
// text on other stacks, and names the public reports that it stands for; a walk does it at random,
// from several goroutines.
//
// Both follow scripts. Every token of a script wants something: a row of its window, an entry of an
// earlier group, or the mean of all that it sees. What it has to find follows from the script
// alone. The same tokens in a step of the same size have to give the same bits, in any session.
package sequences

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
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
	play    func(p *player)
}

// Scenarios lists all of them.
func Scenarios() []Scenario { return scenarios }

// Suits reports whether a model has what the scenario is about: the draft block is DeepSeek-V4's.
func (s *Scenario) Suits(m Model) bool { return m == V4 || s.Name != nameDraftBlock }

const nameDraftBlock = "draft block"

var scenarios = []Scenario{
	{"prompt lengths", []string{"vllm-project/vllm#55927", "GDzhu01/vllm-ascend-deepseekv4#76"},
		"a prompt of any length, cut anywhere and then decoded, gives what one pass gives, its last partial group included", promptLengths},
	{"shared prefixes", []string{"ROCm/ATOM#1417", "ROCm/ATOM#1423", "sgl-project/sglang#30339"},
		"a prefix shared after its window wrapped stays what it is while others write after it and are closed", sharedPrefixes},
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
		"what lies after a step's last token, NaN for instance, reaches no group and no result", padding},
	{"isolation", []string{"vllm-project/vllm#50283", "nod-ai/amd-shark-ai#665"},
		"NaN, infinities, large and subnormal numbers in one session change no bit of another beside it, or later in its pages", isolation},
	{"equal scores", []string{"sgl-project/sglang#23926", "hw-native-sys/pypto-lib#951"},
		"of entries with equal scores the earliest are picked, in prompts and in decoding", equalScores},
	{nameDraftBlock, []string{"vllm-project/vllm#46965", "ggml-org/llama.cpp#25784"},
		"a draft block of DeepSeek-V4 attends all of itself and the target's states of earlier tokens", draftBlock},
}

// Run runs the scenario. The error says what was wrong, and at which token; nil: nothing was.
func (s *Scenario) Run(ctx context.Context, l *Lab) error {
	p := &player{l: l, ctx: ctx, rng: rand.New(rand.NewPCG(7, 7))}
	if p.do(l.onePass(ctx)); p.ok() {
		s.play(p)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", s.Name, p.err)
	}
	return nil
}

// Options say how sequences run.
type Options struct {
	Size    Size
	Model   Model
	Random  *fakemodel.Model                 // of random weights, takes the place of Model's
	Engines pipeline.EngineOptions           // Variant, QuantiseActivations, Invariant and Keys of all engines
	Log     func(format string, args ...any) // what was measured; may be nil
	Stepped func()                           // called after every step; may be nil
}

// Lab has what scenarios and walks share: weights on a device, scripts, and what tokens gave.
type Lab struct {
	dev    *vk.Device
	o      Options
	cfg    model.Config
	layers []*model.DeviceLayer
	values map[string][]float32 // of weights, by their names

	mu      sync.Mutex
	scripts map[uint64]*script // by seed
	memory  *memory
	pass    *pass // over the script of seed 1
	spoil   mistakes
}

// Open makes a small model with a layer of each kind and puts its weights on a device. The caller
// closes the lab before the device. It needs a folder for temporary files.
//
// Errors: those of the file system, of model.Open and of model.Checkpoint.Upload.
func Open(ctx context.Context, dev *vk.Device, o Options) (*Lab, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	l := &Lab{dev: dev, o: o, scripts: map[uint64]*script{}, memory: newMemory()}
	if err := l.upload(ctx); err != nil {
		return nil, fmt.Errorf("sequences: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

func (l *Lab) upload(ctx context.Context) (err error) {
	m, cfg := l.o.Random, l.o.Model.config(l.o.Size)
	if m == nil {
		m = fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8, Weights: weights})
		l.values = m.Values
	}
	dir, err := os.MkdirTemp("", "vkmla-sequences")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := m.Write(dir, 1); err != nil {
		return err
	}
	if l.cfg, err = model.LoadConfigWithDrafts(dir, ""); err != nil {
		return err
	}
	var all []int
	for i, x := range l.cfg.Layers {
		if !x.Draft || x.Block { // not MTP's
			all = append(all, i)
		}
	}
	c, err := model.Open(dir, model.CheckpointOptions{Layers: all})
	if err != nil {
		return err
	}
	defer c.Close()
	l.cfg = c.Config
	l.layers, err = c.Upload(ctx, l.dev, nil)
	return err
}

// Close frees what the lab has on the device. Closing again does nothing.
func (l *Lab) Close() (err error) {
	if l.pass != nil {
		err = l.pass.e.Close()
	}
	err = errors.Join(err, model.CloseLayers(l.layers))
	l.pass, l.layers = nil, nil
	return err
}

// main returns the number of layers that do not draft.
func (l *Lab) main() int {
	n := slices.IndexFunc(l.cfg.Layers, func(l model.Layer) bool { return l.Block })
	if n < 0 {
		return len(l.layers)
	}
	return n
}

// picks reports whether a layer has an indexer.
func (l *Lab) picks(layer int) bool {
	return l.cfg.Layers[l.layers[layer].Layer].Picks == model.PickOwn
}

// tokens returns the length of a script.
func (l *Lab) tokens() int {
	switch {
	case l.o.Size == Full:
		return 4500
	case l.o.Random != nil:
		return 320
	}
	return models[l.o.Model].small
}

// room returns n, or less where a script ends soon after n tokens.
func (l *Lab) room(n int) int { return min(n, l.tokens()-80) }

// upTo returns those of some lengths that a script has, with room for what follows.
func (l *Lab) upTo(lengths ...int) []int {
	return slices.DeleteFunc(lengths, func(n int) bool { return n+32 > l.tokens() })
}

// engine makes an engine; scenarios set what matters to them.
func (l *Lab) engine(ctx context.Context, o pipeline.EngineOptions) (*engine, error) {
	return l.paged(ctx, nil, o)
}

// paged makes an engine with slots of a page by the names of pools; nil: the model's.
func (l *Lab) paged(ctx context.Context, pages map[string]int, o pipeline.EngineOptions) (*engine, error) {
	all := &l.o.Engines
	o.KeepTopK, o.Variant, o.QuantiseActivations, o.Keys = true, all.Variant, all.QuantiseActivations, all.Keys
	o.Invariant = o.Invariant || all.Invariant
	if o.Records = models[l.o.Model].records; o.MaxTokens == 0 {
		o.MaxTokens = l.tokens()
	}
	e, err := pipeline.NewEngine(ctx, l.dev, fakemodel.Paged(l.cfg, pages), l.layers, o)
	return &engine{e, o}, err
}

// pass holds what one step over a whole script gives.
type pass struct {
	*session
	given []gave
}

// onePass takes one step over the script of seed 1, once.
func (l *Lab) onePass(ctx context.Context) error {
	if l.pass != nil {
		return nil
	}
	n := l.tokens()
	e, err := l.engine(ctx, pipeline.EngineOptions{MaxSessions: 2, MaxStep: n, Rewind: n})
	if err != nil {
		return err
	}
	p := &pass{session: &session{e: e, sc: l.script(1, 0), past: newHistory()}}
	if p.s, err = e.Open(); err == nil {
		err = l.step(ctx, manner{}, chunk{session: p.session, n: n, keep: &p.given})
	}
	if err == nil && l.o.Random == nil {
		err = p.sc.far()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("one pass: %w", err), e.Close())
	}
	l.pass = p
	return nil
}

// passWithin bounds the distance of a token's output from that of one pass, by the length of the
// latter. Caches are the same bytes, so all that differs is the order of sums in attention and
// where its weights are rounded to bf16 (2^-9), beside the rounding of outputs to bf16 on the way
// through two products. A row more or less among 144 of equal weight changes 0.08.
const passWithin = 0.01

// likePass demands of a token what one pass gave for it, if its script is that of the pass.
func (l *Lab) likePass(sc *script, layer, t int, out []float32, picks []int32) error {
	if l.pass == nil || l.pass.sc != sc {
		return nil
	}
	want := l.pass.given[layer]
	if d := formula.Apart(out, want.out[t*l.cfg.Hidden:][:l.cfg.Hidden]); !(d < passWithin) {
		return fmt.Errorf("layer %d, token %d: %.4f from one pass, want less than %g", layer, t, d, passWithin)
	}
	if k := l.cfg.TopK; l.picks(layer) && !slices.Equal(picks, want.picks[t*k:][:k]) {
		return fmt.Errorf("layer %d, token %d: picks %v, one pass %v", layer, t, picks, want.picks[t*k:][:k])
	}
	return nil
}
