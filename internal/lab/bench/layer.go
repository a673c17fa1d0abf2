package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Models are the names of the models that layers and steps can be timed of; small is
// one with everything that the others have, for a look at a slow device.
var Models = []string{"flash", "pro", "small"}

// modelConfig is the configuration of a model.
func modelConfig(name string) model.Config {
	switch name {
	case "pro":
		return model.ProConfig()
	case "small":
		c := model.FlashConfig()
		c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 256, 8, 128, 64, 2, 8, 64
		c.Layers = model.V4Layers(0, 4, 128)
		return c
	}
	return model.FlashConfig()
}

// Kinds are the kinds of layers, by what they attend.
var Kinds = []string{"window", "c4a", "c128a"}

func ratioOf(kind string) int {
	return map[string]int{"window": pipeline.RatioWindow, "c4a": pipeline.RatioC4A, "c128a": pipeline.RatioC128A}[kind]
}

// layerOf is the first layer of a ratio, or -1.
func layerOf(c model.Config, ratio int) int { return slices.Index(ratios(c), ratio) }

// ratios are those of all layers, of which those of windows are pipeline.RatioWindow.
func ratios(c model.Config) []int {
	var list []int
	for _, l := range c.Layers {
		list = append(list, max(l.Ratio, pipeline.RatioWindow))
	}
	return list
}

// LayerOptions describe the whole layers to time. What is empty or 0 gets its default,
// which is less on a CPU.
type LayerOptions struct {
	Common
	Models   []string // of Models
	Kinds    []string // of Kinds; a model that has no such layer is left out
	Weights  []string // of WeightFormats
	Batches  []int    // decode: requests of one token each
	Contexts []int    // decode: tokens of a request
	Prefill  []int    // tokens of a prompt; nil: none unless there are no Batches either
	Chunk    int      // most tokens of a step of a prefill
	Keys     cache.IndexKeyFormat
	Output   pipeline.OutputPath

	checked bool // compressors were checked before
}

func (o LayerOptions) withDefaults(t vk.DeviceType) LayerOptions {
	cpu := t == vk.TypeCPU
	if len(o.Batches)+len(o.Prefill) == 0 {
		o.Batches, o.Prefill = []int{1, 8, 32, 64}, []int{1024, 4096, 32768}
		if cpu {
			o.Batches, o.Prefill = []int{1, 3}, []int{300}
		}
	}
	choose := func(v *[]string, gpu, slow []string) {
		if len(*v) == 0 {
			*v = gpu
			if cpu {
				*v = slow
			}
		}
	}
	choose(&o.Models, Models[:1], Models[2:])
	choose(&o.Kinds, Kinds, Kinds)
	choose(&o.Weights, []string{"fp8"}, []string{"fp8"})
	if len(o.Contexts) == 0 {
		o.Contexts = []int{4096, 131072, 1 << 20}
		if cpu {
			o.Contexts = []int{700}
		}
	}
	one := func(v *int, gpu, slow int) {
		if *v == 0 {
			*v = gpu
			if cpu {
				*v = slow
			}
		}
	}
	one(&o.Chunk, 4096, 128)
	o.Common = o.Common.withDefaults(t, [2]int{40, 2}, [2]int{5, 1})
	if o.Keys == 0 {
		o.Keys = cache.IndexKeyFP8
	}
	return o
}

func (o LayerOptions) check(op string) error {
	bad := func(arg string, got any, want string) error {
		return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: want}
	}
	for _, c := range []struct {
		arg       string
		got, want []string
	}{{"model", o.Models, Models}, {"kind", o.Kinds, Kinds}, {"weights", o.Weights, WeightFormats}} {
		for _, v := range c.got {
			if !slices.Contains(c.want, v) {
				return bad(c.arg, fmt.Sprintf("%q", v), strings.Join(c.want, ", "))
			}
		}
	}
	for _, c := range []struct {
		arg       string
		v         []int
		low, high int
	}{
		{"batch", o.Batches, 1, 4096}, {"context", o.Contexts, 1, 1 << 20}, {"prefill", o.Prefill, 1, 1 << 20},
		{"chunk", []int{o.Chunk}, 1, 1 << 16},
	} {
		for _, v := range c.v {
			if v < c.low || v > c.high {
				return bad(c.arg, v, fmt.Sprintf("%d to %d", c.low, c.high))
			}
		}
	}
	return errors.Join(o.Common.check(op), o.checkVariant(op, []string{"decode_c4a"}))
}

// LayerRow is a layer in a step: its time, and that of its operations.
type LayerRow struct {
	Model   string `json:"model"`
	Kind    string `json:"kind"`
	Weights string `json:"weights"`
	Mode    string `json:"mode"` // decode or prefill
	Tokens  int    `json:"tokens"`
	Batch   int    `json:"batch"`   // requests
	Context int    `json:"context"` // tokens of a request, this step's included
	Variant string `json:"variant"` // of the attention kernel

	Time  Time     `json:"time"` // of the layer without timestamps inside
	Ops   []OpTime `json:"ops"`
	Work  Work     `json:"work"`
	Limit float64  `json:"limit_us"`
	Share float64  `json:"share"` // Limit over Time.Median
	GBs   float64  `json:"gbs"`

	Sets   int               `json:"sets"`   // layers with weights of their own, in turn
	Memory map[string]uint64 `json:"memory"` // bytes by purpose while it ran
	Status string            `json:"status"` // ok, wrong, or skipped for want of memory
	Error  float64           `json:"error"`
	Bound  float64           `json:"bound"`
	Detail string            `json:"detail,omitempty"`
}

// stepShapes are the steps to time of a layer: decode steps, and the chunks of
// prefills.
func (o LayerOptions) stepShapes() (shapes []stepShape) {
	for _, context := range o.Contexts {
		for _, batch := range o.Batches {
			shapes = append(shapes, decodeShape(batch, context, o.Keys))
		}
	}
	for _, prompt := range o.Prefill {
		for at := 0; at < prompt; at += o.Chunk {
			n := min(o.Chunk, prompt-at)
			shapes = append(shapes, stepShape{lens: []int{at + n}, news: []int{n}, keys: o.Keys})
		}
	}
	return shapes
}

// decodeShape is a token for each of some requests of context tokens, each a token
// shorter than the one before, so that compressors have as much to do as on average;
// of one request the last token completes an entry.
func decodeShape(batch, context int, keys cache.IndexKeyFormat) stepShape {
	s := stepShape{keys: keys}
	for i := range batch {
		s.lens, s.news = append(s.lens, max(1, context-i)), append(s.news, 1)
	}
	return s
}

// Layers checks and times the layers that the options ask for and hands each row to
// emit as it is done. Rows whose check failed have status "wrong" and no times; the
// error is then ErrWrong. A row for whose caches the device has not enough memory has
// status "skipped".
func Layers(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, emit func(LayerRow)) error {
	o = o.withDefaults(dev.Adapter().Type)
	if err := o.check("bench: layer"); err != nil {
		return err
	}
	var failed string
	if !o.checked && (slices.Contains(o.Kinds, "c4a") || slices.Contains(o.Kinds, "c128a")) {
		var err error
		if failed, err = checkCompressors(ctx, dev, o.Seed, p); err != nil {
			return err
		}
	}
	ropes := newRopeTables(dev, max(slices.Max(append([]int{1}, o.Contexts...)), slices.Max(append([]int{1}, o.Prefill...))))
	defer ropes.Close()
	maker := newWeightMaker(ctx, dev, o.Seed)
	defer maker.Close()
	s := &layerSuite{ctx: ctx, dev: dev, o: o, limits: l, p: p, ropes: ropes, maker: maker, emit: emit, compressors: failed}
	for _, model := range o.Models {
		for _, kind := range o.Kinds {
			for _, weights := range o.Weights {
				if err := s.kind(model, kind, weights); err != nil {
					return fmt.Errorf("bench: layer: %s %s %s: %w", model, kind, weights, err)
				}
			}
		}
	}
	return s.wrong
}

type layerSuite struct {
	ctx         context.Context
	dev         *vk.Device
	o           LayerOptions
	limits      Limits
	p           Progress
	ropes       *ropeTables
	maker       *weightMaker
	emit        func(LayerRow)
	compressors string // what is wrong with them, if anything
	wrong       error
}

func formatNamed(weights string) model.Format {
	return map[string]model.Format{"bf16": model.FormatBF16, "fp8": model.FormatFP8, "nvfp4": model.FormatNVFP4}[weights]
}

// kind times all steps of a kind of layer with the same weights: as many layers of them
// as get past the last-level cache together.
func (s *layerSuite) kind(model, kind, weights string) (err error) {
	c := modelConfig(model)
	i := layerOf(c, ratioOf(kind))
	if i < 0 {
		return nil
	}
	var sets []*randomLayer
	defer func() {
		for _, w := range sets {
			err = errors.Join(err, w.Close())
		}
	}()
	for n := 2; len(sets) < n; {
		w, err := s.maker.layer(c, i, formatNamed(weights))
		if err != nil {
			return err
		}
		if sets = append(sets, w); s.dev.Adapter().Type != vk.TypeCPU {
			n = min(16, max(2, int(rotateBytes/w.bytes())))
		}
	}
	for _, shape := range s.o.stepShapes() {
		shape.output = s.o.Output
		row := LayerRow{Model: model, Kind: kind, Weights: weights, Mode: "decode", Tokens: shape.tokens(), Batch: len(shape.lens), Context: shape.lens[0], Sets: len(sets)}
		if shape.news[0] > 1 {
			row.Mode = "prefill"
		}
		if err := s.row(&row, c, i, shape, sets); err != nil {
			return err
		}
		s.emit(row)
		if row.Status == "wrong" {
			s.wrong = ErrWrong
		}
	}
	return nil
}

// row checks and times one step.
func (s *layerSuite) row(row *LayerRow, c model.Config, layer int, shape stepShape, sets []*randomLayer) (err error) {
	name := fmt.Sprintf("%s %s %s, %d tokens of %d", row.Model, row.Kind, row.Weights, row.Tokens, row.Context)
	cfg := pipeline.LayerKindConfig{Model: c, Ratio: ratios(c)[layer], Tokens: row.Tokens, MaxLen: slices.Max(shape.lens), Variant: s.o.Variant, Output: s.o.Output}
	if row.Mode == "prefill" {
		cfg.Group = row.Tokens
	}
	s.p.Step(name + ": filling caches")
	r, err := newLayerRig(s.ctx, s.dev, cfg, shape, s.ropes, s.o.Seed, s.p)
	if err == nil {
		defer func() { err = errors.Join(err, r.Close()) }()
		err = r.use(sets)
	}
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		row.Status, row.Detail = "skipped", err.Error()
		return nil
	} else if err != nil {
		return err
	}
	row.Memory = maps.Clone(s.dev.MemoryInUse())
	row.Variant, _ = r.kind.Variants()
	s.p.Step(name + ": checking")
	res, err := r.check(sets[0])
	if err != nil {
		return err
	}
	row.Status, row.Error, row.Bound = "ok", res.Error, res.Bound
	if !res.Pass || s.compressors != "" && row.Kind != "window" {
		row.Status, row.Detail = "wrong", res.Detail
		if res.Pass {
			row.Detail = s.compressors
		}
		return nil
	}
	s.p.Step(name + ": timing")
	return s.time(row, r, layerWork(c, sets[0], shape))
}

// time fills in the times of a row.
func (s *layerSuite) time(row *LayerRow, r *layerRig, work map[string]Work) error {
	x := repeatedRun{s.ctx, s.dev, r.record}
	fit, _, err := x.probe()
	if err != nil {
		return err
	}
	if s.dev.Adapter().Type != vk.TypeCPU { // a processor takes as long as it took
		if err := x.wakeUp(fit); err != nil {
			return err
		}
		if fit, _, err = x.probe(); err != nil {
			return err
		}
	}
	ns, err := x.times(s.o.Warmup, s.o.Reps, fit)
	if err != nil {
		return err
	}
	row.Time = summarise(ns)
	list, samples, err := x.sections(s.o.Reps, fit)
	if err != nil {
		return err
	}
	for i, sec := range list {
		row.Ops = append(row.Ops, opTime(sec.Name, "", sec, samples[i], workOf(sec.Name, func(op string) Work { return work[op] }), s.limits))
	}
	for _, w := range work {
		row.Work = row.Work.plus(w)
	}
	row.Limit = row.Work.Limit(s.limits)
	row.Share, row.GBs = row.Limit/row.Time.Median, row.Work.Bytes()/row.Time.Median/1e3
	return nil
}

// workOf is the work of a section, which several operations may share: "wo_a, wo_b".
func workOf(section string, of func(op string) Work) (w Work) {
	for op := range strings.SplitSeq(section, ", ") {
		w = w.plus(of(op))
	}
	return w
}

func opTime(name, layer string, sec vk.Section, ns []float64, w Work, l Limits) OpTime {
	t := OpTime{Name: name, Layer: layer, Time: summarise(ns), Dispatches: sec.Dispatches, Barriers: sec.Barriers, Work: w, Limit: w.Limit(l)}
	t.Share = t.Limit / t.Time.Median
	return t
}
