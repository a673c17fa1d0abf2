// Package layers checks whole layers, as an engine runs them: random ones against their formula, in
// DeepSeek-V4.1 all roles beside each other, and recorded ones. Importing it adds the operation
// "layer" to those of package verify, which cannot have it: the tests of what an engine is made of
// use that package.
package layers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	verify.Register(verify.Op{
		Name: "layer", Class: verify.ClassTolerance, Variants: opkit.Decodes(),
		Random: randomLayers, Ref: refLayer, Run: runLayer, Make: makeLayer, Compare: compareLayer,
	})
}

// layerKind is a layer to check, or the layers of a model that take from each other. Pages of
// windows are taken again after 193 tokens, and every random layer has a second, shorter session
// that ends meanwhile.
type layerKind struct {
	name    string
	ratio   int
	storage fakemodel.Storage
	keys    cache.IndexKeyFormat // 0: as records have them
	layer   int                  // of the recorded model; -1: random
	records model.Records        // 0: a layer of DeepSeek-V4; else layers of DeepSeek-V4.1
	topK    int                  // of a recorded layer whose top-k chooses; 0: the model's
}

var layerKinds = []layerKind{
	{"window", 0, fakemodel.BF16, cache.IndexKeyFP8, -1, 0, 0},
	{"c4a", 4, fakemodel.FP8, cache.IndexKeyFP8, -1, 0, 0},
	{"c4a_mxfp4", 4, fakemodel.NVFP4, cache.IndexKeyMXFP4, -1, 0, 0},
	{"c128a", 128, fakemodel.FP8, cache.IndexKeyFP8, -1, 0, 0},
	{"recorded_window", 0, fakemodel.BF16, cache.IndexKeyFP8, 0, 0, 0},
	{"recorded_c4a", 4, fakemodel.BF16, cache.IndexKeyFP8, 1, 0, 0},
	{"recorded_c128a", 128, fakemodel.BF16, cache.IndexKeyFP8, 2, 0, 0},
	{"v41", 0, fakemodel.FP8, 0, -1, model.RecordsV41, 0},
	{"v41_v4_records", 0, fakemodel.FP8, 0, -1, model.RecordsV4, 0},
	{"recorded_choice", 4, fakemodel.BF16, cache.IndexKeyFP8, recorded.Chosen, 0, recorded.TopK},
}

// layerStep is the most tokens of a session in a step. A multiple of it are a session's prompt, the
// others, at least 3, come one by one.
const layerStep = 32

func layerPrompt(n int) int { return (n - 3) / layerStep * layerStep }

func randomLayers(seed uint64) []verify.Case {
	var cases []verify.Case
	for i, k := range layerKinds {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		c := verify.Case{Name: k.name, About: k.about(), Params: map[string]any{"kind": i, "seed": int(rng.Uint32())}}
		if k.layer >= 0 {
			c.Source = "recorded"
			if all, err := recorded.Layers(); err == nil {
				c.In = verify.Arrays{"lens": vectors.FromI32([]int32{recorded.Tokens}, 1),
					"hidden": vectors.FromF32(all[k.layer].In, recorded.Tokens, recorded.Config().Hidden)}
			}
		} else {
			lens := k.lens(rng)
			n, width := int(lens[0]+lens[1]), k.config().Hidden
			hidden := make([]float32, n*width)
			for j := range hidden {
				hidden[j] = numfmt.BF16Round(float32(rng.NormFloat64()))
			}
			if k.records != 0 {
				shrink(hidden, width)
			}
			c.In = verify.Arrays{"lens": vectors.FromI32(lens, 2), "hidden": vectors.FromF32(hidden, n, width)}
		}
		cases = append(cases, c)
	}
	return cases
}

// about says what a layer is checked against.
func (k *layerKind) about() string {
	switch {
	case k.topK > 0:
		return "a recorded layer whose top-k chooses, against the formula"
	case k.layer >= 0:
		return "by transformers"
	case k.records != 0:
		return "layers of all roles that take from each other, random weights, against the definition"
	}
	return "random weights, against the formula"
}

// config is that of the model that the layer is of.
func (k *layerKind) config() model.Config {
	switch {
	case k.layer >= 0:
		c := recorded.Config()
		if k.topK > 0 {
			c.TopK = k.topK
		}
		return c
	case k.records != 0:
		return v41Config()
	}
	return fakemodel.Config(k.ratio)
}

// lens returns the tokens of two sessions.
func (k *layerKind) lens(rng *rand.Rand) []int32 {
	if k.records != 0 {
		return v41Lens(rng)
	}
	return []int32{295 + rng.Int32N(25), 67 + rng.Int32N(5)}
}

// layerInput is a case: hidden states [T, Hidden] of all sessions, one after the other, the same
// for each layer.
type layerInput struct {
	layerKind
	cfg    model.Config
	model  *fakemodel.Model
	layers []int // of the model, in order
	lens   []int32
	hidden []float32
}

func readLayer(c verify.Case) (l layerInput, err error) {
	switch l, err = layerOf(c); {
	case err != nil:
	case l.layer >= 0:
		l.model = recorded.Model()
	default:
		l.model = fakemodel.New(fakemodel.Options{Config: l.cfg, Storage: l.storage, Seed: uint64(c.Input().Int("seed"))})
	}
	return l, err
}

// layerOf reads a case without making its model.
func layerOf(c verify.Case) (l layerInput, err error) {
	in := c.Input()
	kind := in.Int("kind")
	l.lens = in.Array("lens", vectors.I32, -1).I32()
	hidden := in.Array("hidden", vectors.F32, -1, -1)
	if err := in.Err(); err != nil {
		return l, err
	}
	if kind < 0 || kind >= len(layerKinds) {
		return l, fmt.Errorf("verify: layer: kind %d: %w", kind, vectors.ErrFormat)
	}
	l.layerKind, l.hidden = layerKinds[kind], hidden.F32()
	l.cfg, l.layers = l.config(), []int{max(l.layer, 0)}
	for i := 1; l.layer < 0 && i < len(l.cfg.Layers); i++ {
		l.layers = append(l.layers, i)
	}
	return l, nil
}

// tokens returns how many there are of all sessions.
func (l layerInput) tokens() int { return len(l.hidden) / l.cfg.Hidden }

// picks reports whether a layer attends entries that were picked.
func (l layerInput) picks(layer int) bool { return l.cfg.Layers[layer].Picks != model.PickNone }

// arrays returns what layers gave, one after the other.
func (l layerInput) arrays(out []float32, picks []int32) verify.Arrays {
	t := len(l.layers) * l.tokens()
	a := verify.Arrays{"out": vectors.FromF32(out, t, l.cfg.Hidden)}
	if slices.ContainsFunc(l.layers, l.picks) {
		a["topk"] = vectors.FromI32(picks, t, l.cfg.TopK)
	}
	return a
}

func refLayer(c verify.Case) (verify.Arrays, error) {
	l, err := readLayer(c)
	if err != nil {
		return nil, err
	}
	if l.topK > 0 {
		c, err := recorded.Choose()
		if err != nil {
			return nil, err
		}
		a := l.arrays(c.Out, c.Picks)
		a["scores"] = vectors.FromF32(c.Scores, recorded.Tokens, recorded.Entries)
		return a, nil
	}
	if l.layer >= 0 {
		all, err := recorded.Layers()
		if err != nil {
			return nil, err
		}
		var picks []int32
		for t := range recorded.Tokens { // fewer entries than may be picked: all that are visible
			for e := range int32(l.cfg.TopK) {
				if l.ratio == 0 || int(e) >= (t+1)/l.ratio {
					e = -1
				}
				picks = append(picks, e)
			}
		}
		return l.arrays(all[l.layer].Out, picks), nil
	}
	return l.defined(), nil
}

// makeLayer makes an engine of the layers without their weights.
func makeLayer(dev *vk.Device, variant string, c verify.Case) error {
	l, err := layerOf(c)
	if err != nil {
		return err
	}
	layers, err := l.cfg.Plan(projection.FormatFP8, 1, l.layers...)
	if err != nil {
		return err
	}
	e, err := l.engine(context.Background(), dev, layers, variant)
	if err != nil {
		return err
	}
	return e.Close()
}

func (l layerInput) engine(ctx context.Context, dev *vk.Device, layers []*model.DeviceLayer, variant string) (*pipeline.Engine, error) {
	return pipeline.NewEngine(ctx, dev, l.cfg, layers, pipeline.EngineOptions{
		MaxTokens: int(slices.Max(l.lens)), MaxSessions: len(l.lens), MaxStep: layerStep * len(l.lens),
		Keys: l.keys, Records: l.records, KeepTopK: true, Variant: variant})
}

func runLayer(ctx context.Context, dev *vk.Device, variant string, c verify.Case) (_ verify.Arrays, err error) {
	l, err := readLayer(c)
	if err != nil {
		return nil, err
	}
	weights, err := l.upload(ctx, dev)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.CloseLayers(weights)) }()
	e, err := l.engine(ctx, dev, weights, variant)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(e.Close(), err) }()
	x := layerRun{layerInput: l, e: e, out: make([]float32, len(l.layers)*len(l.hidden)),
		chosen: slices.Repeat([]int32{-1}, len(l.layers)*l.tokens()*l.cfg.TopK)}
	first := 0
	for _, n := range l.lens {
		s, err := e.Open()
		if err != nil {
			return nil, err
		}
		x.sessions = append(x.sessions, layerSession{Session: s, first: first, len: int(n)})
		first += int(n)
	}
	for err == nil && len(x.sessions) > 0 {
		err = x.next(ctx)
	}
	return l.arrays(x.out, x.chosen), err
}

// upload puts the layers' weights on the device, by way of a checkpoint.
func (l layerInput) upload(ctx context.Context, dev *vk.Device) (_ []*model.DeviceLayer, err error) {
	dir, err := os.MkdirTemp("", "vkmla-layer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := l.model.Write(dir, 1); err != nil {
		return nil, err
	}
	cp, err := model.Open(dir, model.CheckpointOptions{Layers: l.layers})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	return cp.Upload(ctx, dev, nil)
}

// layerRun is an engine on its way through the sessions of a case: all of them take part in every
// step, so that prompts and single tokens are mixed. A session that has all its tokens is closed.
type layerRun struct {
	layerInput
	e        *pipeline.Engine
	sessions []layerSession
	out      []float32 // of layers one after the other, as arrays has them
	chosen   []int32
}

type layerSession struct {
	*pipeline.Session
	first, len int // rows of the case
}

// next runs a step.
func (x *layerRun) next(ctx context.Context) error {
	var chunks []pipeline.Chunk
	for _, s := range x.sessions {
		chunks = append(chunks, pipeline.Chunk{Session: s.Session, Tokens: max(min(layerStep, layerPrompt(s.len)-s.Len()), 1)})
	}
	st, err := x.e.Begin(ctx, chunks...)
	if err != nil {
		return err
	}
	err = x.run(ctx, st, chunks)
	if err != nil {
		return errors.Join(err, st.Abort())
	}
	if err := st.Commit(); err != nil {
		return err
	}
	x.sessions = slices.DeleteFunc(x.sessions, func(s layerSession) bool {
		done := s.Len() == s.len
		if done {
			err = errors.Join(err, s.Close())
		}
		return done
	})
	return err
}

func (x *layerRun) run(ctx context.Context, st *pipeline.Step, chunks []pipeline.Chunk) error {
	rows := func(i int) (first, end int) {
		first = x.sessions[i].first + x.sessions[i].Len()
		return first, first + chunks[i].Tokens
	}
	width, k := x.cfg.Hidden, x.cfg.TopK
	for i := range chunks {
		first, end := rows(i)
		for layer := range x.layers {
			if err := st.SetInput(layer, i, x.hidden[first*width:end*width]); err != nil {
				return err
			}
		}
	}
	if err := st.Run(ctx); err != nil {
		return err
	}
	for i := range chunks {
		for layer, n := range x.layers {
			first, end := rows(i)
			first, end = first+layer*x.tokens(), end+layer*x.tokens()
			if err := st.ReadOutput(layer, i, x.out[first*width:end*width]); err != nil {
				return err
			}
			if !x.picks(n) {
				continue
			}
			source := slices.Index(x.layers, x.cfg.Layers[n].PicksOf)
			if err := st.ReadTopK(source, i, x.chosen[first*k:end*k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Bounds of a layer's outputs, as 1 - cos: of all tokens that attend the same entries, and of each.
// Against the formula, which quantises nothing, it is about 5.5e-4 and 1.4e-3; against a recording,
// whose caches are rounded as ours, below 1e-4 and 2e-4. Where a recorded layer's top-k chooses,
// 0.7% of the picks are others, and what they leave out has a score larger by up to 0.029 of their
// token's largest.
const (
	layerDiff, layerWorst       = 1.5e-3, 4e-3
	recordedDiff, recordedWorst = 4e-4, 1e-3
	layerMissed, recordedMissed = 0.1, 0.02
	recordedFar                 = 0.05
)

func compareLayer(c verify.Case, got, want verify.Arrays) verify.Result {
	r := verify.NewComparison(verify.ClassTolerance)
	l, err := layerOf(c)
	if err != nil {
		return r.Fail("%v", err).Result()
	}
	for _, name := range []string{"out", "topk"} {
		if !want[name].IsZero() && !r.Same(name, got[name], want[name]) {
			return r.Result()
		}
	}
	diff, worst, missed := layerDiff, layerWorst, layerMissed
	switch {
	case l.layer >= 0:
		diff, worst, missed = recordedDiff, recordedWorst, recordedMissed
	case l.records != 0:
		diff, worst, missed = v41Diff, v41Worst, v41Missed
	}
	for i, n := range l.layers {
		name := ""
		if len(l.layers) > 1 {
			name = fmt.Sprintf("layer %d, %s: ", n, l.cfg.Layers[n].Name)
		}
		l.agreement(i, got, want).judge(r, name, diff, worst, missed)
	}
	if l.topK > 0 {
		far, at := l.farthest(got["topk"].I32(), want["scores"].F32())
		r.Criterion(far < recordedFar, far, recordedFar,
			fmt.Sprintf("topk: token %d leaves a score out that is larger by %.3g of the largest", at, far))
	}
	return r.Result()
}

// farthest returns by how much a score that was left out exceeds one that was picked, at most and
// as a part of its token's largest, and the token. A token that has not as many entries as it may
// is infinitely far off.
func (l layerInput) farthest(picks []int32, scores []float32) (far float64, at int) {
	k := l.cfg.TopK
	for t := range l.tokens() {
		n, left := (t+1)/l.ratio, 0
		most, out, in := 0.0, math.Inf(-1), math.Inf(1)
		for e, s := range scores[t*recorded.Entries:][:n] {
			x := float64(s)
			most = max(most, math.Abs(x))
			if slices.Contains(picks[t*k:(t+1)*k], int32(e)) {
				in = min(in, x)
			} else {
				out, left = max(out, x), left+1
			}
		}
		apart := (out - in) / most
		if left != max(n-k, 0) {
			apart = math.Inf(1)
		}
		if apart > far {
			far, at = apart, t
		}
	}
	return far, at
}

// agreement compares what the layer with index i gave.
func (l layerInput) agreement(i int, got, want verify.Arrays) agreement {
	n, k := l.tokens(), l.cfg.TopK
	outs := func(a verify.Arrays) []float32 { return a["out"].F32()[i*len(l.hidden) : (i+1)*len(l.hidden)] }
	picks := func(a verify.Arrays) []int32 {
		if !l.picks(l.layers[i]) {
			return nil
		}
		return a["topk"].I32()[i*n*k : (i+1)*n*k]
	}
	return compare(outs(got), outs(want), picks(got), picks(want), n)
}
