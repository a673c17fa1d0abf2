package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// product is a matrix product of a layer.
type product struct {
	op           string
	n, k, groups int
}

// FloorTokens is up to how many tokens products are timed beside launches that only read: with
// more they multiply longer than they wait for their weights.
const FloorTokens = 128

func productsOf(c model.Config) []product {
	return []product{
		{"wq_a_wkv", c.QRank + 512, c.Hidden, 1}, {"wq_b", c.Heads * 512, c.QRank, 1},
		{"wo_a", c.ORank, c.HeadsPerGroup() * 512, c.Groups}, {"wo_b", c.Hidden, c.Groups * c.ORank, 1},
	}
}

func linearCases(o SuiteOptions, cpu bool) (all []opCase) {
	models, weights := o.Models, o.Weights
	if models == nil {
		if models = Models[:2]; cpu {
			models = Models[2:]
		}
	}
	if weights == nil {
		weights = WeightFormats
	}
	for _, model := range models {
		for _, p := range productsOf(modelConfig(model)) {
			for _, w := range weights {
				for _, t := range pickInts(o.Tokens, []int{1, 4, 16, 4096}, []int{1, 5}, cpu) {
					if t > 64 && w == "nvfp4" && o.Tokens == nil {
						continue
					}
					all = append(all, opCase{p.op, fmt.Sprintf("model=%s/weights=%s/tokens=%d", model, w, t),
						func(_ context.Context, r *opRig) error { return r.linear(p, formatNamed(w), t) }})
				}
			}
		}
	}
	return all
}

// linear fills a rig with a product and as many sets of weights as get past the
// last-level cache.
func (r *opRig) linear(p product, format model.Format, t int) error {
	maker := newWeightMaker(r.ctx, r.dev, r.o.Seed)
	defer maker.Close()
	cfg := projection.LinearConfig{N: p.n, K: p.k, Groups: p.groups, Out: tensor.BF16, MaxTokens: t, Variant: r.o.Variant,
		Weights: map[model.Format]projection.WeightFormat{model.FormatBF16: projection.WeightBF16, model.FormatFP8: projection.WeightFP8UE8M0, model.FormatNVFP4: projection.WeightNVFP4}[format]}
	op, err := projection.NewLinear(r.dev, cfg)
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	rows := p.n * p.groups
	r.rotate(cfg.Weights.Bytes(rows, p.k))
	var list []model.DeviceMatrix
	for range r.sets {
		var x model.DeviceMatrix
		plan := layerPlan{m: maker, format: format}
		plan.matrix(&x, format, rows, p.k)
		var need uint64
		for _, v := range plan.wanted {
			need += tensor.Need(v.dt, v.shape...)
		}
		arena, err := tensor.NewArena(r.dev, vk.DeviceLocal, "weights", need)
		if err != nil {
			return err
		}
		r.arenas = append([]*tensor.Arena{arena}, r.arenas...) // the last one is what out cuts from
		if err := plan.fill(arena); err != nil {
			return err
		}
		list = append(list, x)
	}
	a := projection.LinearArgs{X: put(r, tensor.BF16, r.normalBF16(t*p.groups*p.k), t, p.groups*p.k), Out: r.out(tensor.BF16, t, rows)}
	if n := op.ScratchLen(t); n > 0 {
		a.Scratch = r.out(tensor.F32, n)
	}
	var rowScale tensor.Tensor
	if format == model.FormatNVFP4 {
		factors := make([]float32, rows)
		for i := range factors {
			factors[i] = list[0].Global
		}
		rowScale = put(r, tensor.F32, factors, rows)
	}
	record := func(rec *vk.Recorder, i int) error {
		x, m := a, list[i%len(list)]
		x.W = projection.LinearWeights{Data: m.Data, Scale: m.Scales, RowScale: rowScale}
		return op.Record(rec, x)
	}
	r.parts = []opPart{{bytes: matrixBytes(list[0]) + float64(2*t*(p.groups*p.k+rows)), flop: 2 * float64(t) * float64(rows) * float64(p.k), floor: t <= FloorTokens, record: record}}
	r.check = func(context.Context) (verify.Result, error) {
		if err := run(r.ctx, r.dev, func(rec *vk.Recorder) error {
			return errors.Join(rec.Fill(a.Out.View(), 0xffffffff), record(rec, 0))
		}); err != nil {
			return verify.Result{}, err
		}
		c := &layerCheck{layerRig: &layerRig{opRig: r}, tokens: some(checkTokens, t)}
		c.linear(p.op, a.X, a.Out, list[0], p.groups)
		return c.res, c.err
	}
	return r.err
}
