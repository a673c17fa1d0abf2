package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// LayerOptions describe the whole layers to time. What is empty or 0 gets its default,
// which is less on a processor.
type LayerOptions struct {
	Common
	Models   []string             // of Models; in the suites layer and step MODEL+N too, see drafted
	Kinds    []string             // of Kinds; a model that has no such layer is left out
	Weights  []string             // of layerFormats
	Batches  []int                // decode: requests of one token each
	Contexts []int                // decode: tokens of a request
	Prefill  []int                // tokens of a prompt; nil: none unless there are no Batches either
	Chunk    int                  // most tokens of a step of a prefill
	Keys     cache.IndexKeyFormat // 0: as Records has them
	Records  model.Records        // in what bytes caches are kept; 0: the model's own

	Invariant bool // see pipeline.EngineOptions

	Checked bool // operations were checked before
}

func (o LayerOptions) withDefaults(onSlow bool) LayerOptions {
	if len(o.Batches)+len(o.Prefill) == 0 {
		o.Batches, o.Prefill = pick(nil, onSlow, []int{1, 8, 32, 64}, []int{1, 3}), pick(nil, onSlow, []int{1024, 4096, 32768}, []int{300})
	}
	o.Models = pick(o.Models, onSlow, usualModels, slowModels)
	o.Kinds = pick(o.Kinds, false, KindsOf(o.Models...), nil)
	o.Weights = pick(o.Weights, onSlow, []string{"fp8"}, []string{"fp8"})
	o.Contexts = pick(o.Contexts, onSlow, []int{4096, 131072, 1 << 20}, []int{700})
	o.Chunk = cmp.Or(o.Chunk, either(onSlow, 4096, 128))
	o.Common = o.Common.withDefaults(onSlow, [2]int{40, 2}, [2]int{5, 1})
	return o
}

// config returns the configuration of a model, with the records that were asked for.
func (o LayerOptions) config(name string) model.Config {
	c := modelConfig(name)
	c.Records = cmp.Or(o.Records, c.Records)
	return c
}

// modelOf is a model with the format of its weights.
type modelOf struct{ model, weights string }

// models returns those to time.
func (o LayerOptions) models() (list []modelOf) {
	for _, model := range o.Models {
		for _, weights := range o.Weights {
			list = append(list, modelOf{model, weights})
		}
	}
	return list
}

// layers returns those to time, without their steps and what is measured.
func (o LayerOptions) layers() (list []LayerRow) {
	for _, name := range o.Models {
		for _, kind := range o.Kinds {
			for _, weights := range o.Weights {
				if slices.Contains(KindsOf(name), kind) {
					list = append(list, LayerRow{Model: name, Kind: kind, Weights: weights})
				}
			}
		}
	}
	return list
}

// keys returns how a model's index keys are kept.
func (o LayerOptions) keys(c model.Config) cache.IndexKeyFormat {
	return cmp.Or(o.Keys, c.Records.Keys())
}

// check looks at the options of a suite, whose models may draft or not.
func (o LayerOptions) check(suite string, drafts bool) error {
	op, models, more := "bench: "+suite, o.Models, []string(nil)
	if drafts {
		models, more = undrafted(models), []string{fmt.Sprintf("or MODEL+N with N from 0 to %d", mostDrafted)}
	}
	attend, _ := verify.Lookup(decodeOp)
	return errors.Join(
		oneOf(op, "model", models, Models, more...), oneOf(op, "kind", o.Kinds, Kinds), oneOf(op, "weights", o.Weights, layerFormats),
		within(op, "batch", o.Batches, 1, 4096), within(op, "context", o.Contexts, 1, 1<<20), within(op, "prefill", o.Prefill, 1, 1<<20),
		within(op, "chunk", []int{o.Chunk}, 0, 1<<16), o.Common.check(op), o.checkVariant(op, []verify.Op{attend}))
}

// checkKinds demands of each kind that one of the models has it.
func (o LayerOptions) checkKinds() error {
	has := KindsOf(o.Models...)
	for _, kind := range o.Kinds {
		if slices.Contains(has, kind) {
			continue
		}
		why := fmt.Sprintf("%s has no layer of kind %s", strings.Join(o.Models, " or "), kind)
		if kind == kindOf(model.DraftBlock) {
			why = kind + " needs MODEL+N, such as " + o.Models[0] + "+5"
		}
		return &vk.ArgumentError{Op: "bench: layer", Arg: "kind", Got: fmt.Sprintf("%q", kind), Want: strings.Join(has, ", ") + ": " + why}
	}
	return nil
}

// LayerRow is a layer in a step: its time, and that of its operations.
type LayerRow struct {
	Model   string `json:"model"`
	Kind    string `json:"kind"`
	Weights string `json:"weights"`
	Mode    string `json:"mode"` // decode or prefill
	Tokens  int    `json:"tokens"`
	Batch   int    `json:"batch"`   // requests
	Context int    `json:"context"` // tokens of the first request, this step's included
	Variant string `json:"variant"` // of the attention kernel

	Time  Time     `json:"time"` // of the layer without timestamps inside
	Ops   []OpTime `json:"ops"`
	Work  Work     `json:"work"`
	Limit float64  `json:"limit_us"`
	Share float64  `json:"share"` // Limit over Time.Median
	GBs   float64  `json:"gbs"`

	Sets   int               `json:"sets"`   // layers with weights of their own, in turn
	Memory map[string]uint64 `json:"memory"` // bytes by purpose while it ran
	Status string            `json:"status"`
	Error  float64           `json:"error"`
	Bound  float64           `json:"bound"`
	Detail string            `json:"detail,omitempty"`

	part string // the operation that this is of the layer, in CSV
}

// stepShapes returns the steps to time of a layer of a model: decode steps, and the chunks of
// prefills. Those of a layer that drafts are blocks.
func (o LayerOptions) stepShapes(name string, c model.Config, spec model.LayerSpec) (shapes []stepShape) {
	_, n := drafted(name)
	tokens := 1 + max(n, 0)
	if spec.Block {
		tokens = c.DraftBlock
	}
	for _, context := range o.Contexts {
		for _, batch := range o.Batches {
			x := decodeShape(batch, context, tokens)
			x.draft = spec.Block
			shapes = append(shapes, x)
		}
	}
	if spec.Block {
		return shapes
	}
	for _, prompt := range o.Prefill {
		for at := 0; at < prompt; at += o.Chunk {
			n := min(o.Chunk, prompt-at)
			shapes = append(shapes, stepShape{lens: []int{at + n}, news: []int{n}, prefill: true})
		}
	}
	return shapes
}

// decodeShape has tokens for each of batch requests of context tokens, each a token
// shorter than the one before, so that compressors have as much to do as on average;
// of one request the last token completes an entry.
func decodeShape(batch, context, tokens int) (s stepShape) {
	for i := range batch {
		s.lens, s.news = append(s.lens, max(tokens, context-i)), append(s.news, tokens)
	}
	return s
}

// Layers checks and times the layers that the options ask for and hands each row to
// emit as it is done. A layer is timed as one of an engine's layers of its kind, each
// submitted by itself. Statuses and errors are as with Ops.
func Layers(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, emit func(LayerRow)) error {
	if err := o.check("layer", true); err != nil {
		return err
	}
	o = o.withDefaults(slow(dev))
	if err := o.checkKinds(); err != nil {
		return err
	}
	return eachRow(ctx, dev, o, o.layers(), p, func(t *tally, maker *weightMaker, failed string, of LayerRow) error {
		s := &layerSuite{ctx: ctx, dev: dev, o: o, limits: l, p: p, maker: maker, failed: failed}
		return s.layer(of, func(row LayerRow, err error) error {
			return t.add("layer: "+describeRow(row), err, &row.Status, &row.Detail, func() { emit(row) })
		})
	})
}

type layerSuite struct {
	ctx    context.Context
	dev    *vk.Device
	o      LayerOptions
	limits Limits
	p      Progress
	maker  *weightMaker
	failed string // what is wrong with operations, if anything
}

// layer times all steps of a layer with the same weights: as many layers of them as get past the
// last-level cache together, after those that they take from.
func (s *layerSuite) layer(of LayerRow, add func(row LayerRow, err error) error) (err error) {
	c := s.o.config(of.Model)
	i := layerOf(c, of.Kind)
	sets, list, noWeights := s.sets(c, i, of.Weights)
	defer func() {
		for _, w := range sets {
			err = errors.Join(err, w.Close())
		}
	}()
	before := len(sourcesOf(c, i))
	c = onlyLayers(c, list...)
	for _, shape := range s.o.stepShapes(of.Model, c, c.Layers[before].LayerSpec) {
		shape.keys = s.o.keys(c)
		row := of.of(shape)
		err := noWeights
		if err == nil {
			row.Sets = len(sets) - before
			err = s.row(&row, c, shape, sets, before)
		}
		if err := add(row, err); err != nil {
			return err
		}
	}
	return nil
}

// of returns the row of a step.
func (x LayerRow) of(shape stepShape) LayerRow {
	x.Mode, x.Tokens, x.Batch, x.Context = "decode", shape.tokens(), len(shape.lens), shape.lens[0]
	if shape.prefill {
		x.Mode = "prefill"
	}
	return x
}

// sets makes the weights of a layer's sources and of copies of itself, and names the layer of
// each. What was made has to be closed, whatever the error.
func (s *layerSuite) sets(c model.Config, layer int, weights string) (sets []*randomLayer, list []int, err error) {
	list = sourcesOf(c, layer)
	before := len(list)
	for n := 2; len(sets) < before+n; {
		if len(sets) >= before {
			list = append(list, layer)
		}
		w, err := s.maker.layer(c, list[len(sets)], verify.TimedFormats[weights])
		if err != nil {
			return sets, list, err
		}
		if sets = append(sets, w); len(sets) > before && !slow(s.dev) {
			n = min(16, max(2, int(verify.RotateBytes/w.bytes())))
		}
	}
	return sets, list, nil
}

// row checks and times one step. So many layers are there only to be taken from.
func (s *layerSuite) row(row *LayerRow, c model.Config, shape stepShape, sets []*randomLayer, before int) (err error) {
	name := fmt.Sprintf("%s %s %s, %d tokens of %d", row.Model, row.Kind, row.Weights, row.Tokens, row.Context)
	if row.Variant, err = attentionVariant(s.dev, c, s.o.Variant); err != nil {
		return err
	}
	r := engineRun{ctx: s.ctx, dev: s.dev, p: s.p, seed: s.o.Seed, cfg: c, weights: sets, shape: shape,
		longest: slices.Max(shape.lens), aborts: true, apart: true,
		opts: pipeline.EngineOptions{MaxStep: shape.tokens(), Keys: s.o.Keys, Variant: s.o.Variant,
			Invariant: s.o.Invariant, LayerByLayer: true}}
	s.p.Step(name + ": checking")
	one := r
	one.cfg.Layers = c.Layers[:before+1]
	res, err := checkLayers(one, sets[:before+1], nil)
	if err != nil {
		return err
	}
	row.Status, row.Error, row.Bound = "ok", res.Error, res.Bound
	if !res.Pass || s.failed != "" {
		row.Status, row.Detail = "wrong", s.failed
		if !res.Pass {
			row.Detail = res.Detail
		}
		return nil
	}
	s.p.Step(name + ": filling caches")
	r.fillBy(func(st *pipeline.Step) error {
		return st.Input(0).Upload(s.ctx, numfmt.Bytes(normals(newRand(s.o.Seed), st.Input(0).Len())))
	})
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(); err != nil {
		return err
	}
	row.Memory = maps.Clone(s.dev.MemoryInUse())
	s.p.Step(name + ": timing")
	return s.time(row, &r, before)
}

// time fills in the times of a row: those of a layer, on average over all of the engine after
// those that are there to be taken from.
func (s *layerSuite) time(row *LayerRow, r *engineRun, before int) error {
	if err := r.engine.SetTiming(s.ctx, pipeline.TimingWhole); err != nil {
		return err
	}
	if err := r.wakeUp(s.o.Warmup); err != nil {
		return err
	}
	n := r.engine.Layers() - before
	var ns []float64
	for i := range s.o.Reps {
		r.p.Advance(int64(i), int64(s.o.Reps))
		if _, _, err := r.step(func(lists [][]vk.Section) error {
			list, sum := lists[0], 0.0
			for _, x := range list[max(len(list)-n, 0):] { // in front of them is what all layers share
				sum += x.NS
			}
			ns = append(ns, sum/float64(n))
			return nil
		}); err != nil {
			return err
		}
	}
	row.Time = summarise(ns)
	ops, _, err := r.sections(s.o.Reps, s.o.Warmup, s.limits)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if op.Layer == row.Kind {
			op.Layer = ""
			row.Ops = append(row.Ops, op.over(n))
		}
	}
	for _, w := range r.layerWork(r.shape, before) {
		row.Work = row.Work.plus(w)
	}
	row.Limit = row.Work.Limit(s.limits)
	row.Share, row.GBs = row.Limit/row.Time.Median, row.Work.Bytes()/row.Time.Median/1e3
	return nil
}

// over returns an operation of one of n layers.
func (t OpTime) over(n int) OpTime {
	each := float64(n)
	for i := range t.Time.Samples {
		t.Time.Samples[i] /= each
	}
	t.Time.Median, t.Time.P95, t.Limit = t.Time.Median/each, t.Time.P95/each, t.Limit/each
	t.Work = Work{t.Work.Weights / each, t.Work.Cache / each, t.Work.Activations / each, t.Work.Flop / each}
	t.Dispatches, t.Barriers = t.Dispatches/n, t.Barriers/n
	return t
}
