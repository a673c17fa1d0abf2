package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// checkOps holds some random cases of the timed operations against their references, each as
// the variant that runs on the device. It returns what is wrong with them, if anything.
func checkOps(ctx context.Context, dev *vk.Device, seed uint64, p Progress) (failed string, err error) {
	p.Step("checking operations")
	_, err = verify.Run(ctx, dev, verify.Options{Ops: names(SuiteOps(compareSuite)), Seed: seed, Best: true, Most: 3}, func(r verify.Row) {
		if r.Status == verify.Fail && failed == "" {
			failed = fmt.Sprintf("%s %s, variant %s: %s", r.Op, r.Case, r.Variant, r.Detail)
		}
	})
	return failed, err
}

// How far apart outputs of a layer may be that other kernels computed, by calc_diff. Where an
// indexer picks, rounding decides about entries at the edge, and each that changes sides changes
// a row in some hundred.
const (
	sameKernels = 2e-3
	samePicks   = 6e-2
)

// otherTokens is most tokens of a step that a check computes once more.
const otherTokens = 48

// checkLayers runs a step of one layer of each kind, and again what the first session's last
// tokens are made of: with the base variant of attention, or da, and in steps of another size, for
// which other kernels are chosen. Outputs have to agree. The weights are those of the first
// layer of each kind; again are those of the second run, nil for the same.
func checkLayers(r engineRun, weights, again []*randomLayer) (verify.Result, error) {
	if again == nil {
		again = weights
	}
	r.opts.LayerByLayer, r.opts.Between = true, nil
	n := r.shape.news[0]
	main, other := r, r
	main.weights, main.opts.MaxStep = weights, main.mostTokens()
	other.weights, other.opts.Variant = again, opkit.Base
	pieces := []int{n}
	switch {
	case n > 1:
		pieces = nil
		for at := 0; at < n; at += otherTokens {
			pieces = append(pieces, min(otherTokens, n-at))
		}
		other.shape.lens, other.shape.news = r.shape.lens[:1], r.shape.news[:1]
	case len(r.shape.lens) > 1:
		other.shape.lens, other.shape.news = r.shape.lens[:1], r.shape.news[:1]
	default:
		// As many tokens in all as two of the longest sequences have, where those are many.
		sessions := max(2, min(16, 2*r.cfg.MaxPositions/r.longest))
		other.shape.lens, other.shape.news = slices.Repeat(r.shape.lens, sessions), slices.Repeat(r.shape.news, sessions)
	}
	other.opts.MaxStep = max(len(other.shape.lens), slices.Max(pieces))
	if r.drafts {
		other.opts.MaxStep = max(other.opts.MaxStep, len(other.shape.lens)*r.cfg.DraftBlock)
	}
	got, err := main.outputs([]int{n}, pieces[len(pieces)-1])
	if err != nil {
		return verify.Result{}, err
	}
	want, err := other.outputs(pieces, pieces[len(pieces)-1])
	if errors.Is(err, vk.ErrArgument) { // its caches are beyond a descriptor
		other.opts.Variant = opkit.DA
		want, err = other.outputs(pieces, pieces[len(pieces)-1])
	}
	if err != nil {
		return verify.Result{}, err
	}
	c := verify.NewComparison(verify.ClassTolerance)
	for i, l := range r.cfg.Layers {
		bound := sameKernels
		if l.Picks != model.PickNone {
			bound = samePicks
		}
		c.CalcDiff("output of a layer of kind "+kindOf(l.LayerSpec), got[i], want[i], bound)
	}
	return c.Result(), nil
}

// outputs runs the first session's tokens in steps of these sizes, and returns what each layer
// gave for the last of them.
func (r engineRun) outputs(steps []int, last int) (out []verify.Array, err error) {
	r.aborts = false
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	defer func() { err = errors.Join(err, r.close()) }()
	hidden := r.cfg.Hidden
	inputs := normals(newRand(r.seed), r.shape.news[0]*hidden)
	out = make([]verify.Array, r.engine.Layers())
	for _, n := range steps {
		own := inputs[:n*hidden]
		inputs = inputs[n*hidden:]
		r.shape.news = append([]int{n}, r.shape.news[1:]...)
		if err := r.output(r.shape, own, last, out); err != nil {
			return nil, err
		}
	}
	if r.drafts {
		x := r.shapes()[1]
		err = r.output(x, normals(rand.New(rand.NewPCG(r.seed, 11)), x.news[0]*hidden), x.news[0], out)
	}
	return out, err
}

// output runs a step, and sets what the layers gave for the last of the first session's tokens.
func (r *engineRun) output(shape stepShape, own []uint16, last int, out []verify.Array) error {
	hidden := r.cfg.Hidden
	r.fillBy(func(st *pipeline.Step) error {
		v := normals(rand.New(rand.NewPCG(r.seed, 10)), st.Input(0).Len())
		first, _ := st.Rows(0)
		copy(v[first*hidden:], own)
		return st.Input(0).Upload(r.ctx, numfmt.Bytes(v))
	})
	st, err := r.begin(shape)
	if err != nil {
		return err
	}
	for i := r.first(shape); i < len(out); i++ {
		if err := st.RunLayer(r.ctx, i); err != nil {
			return errors.Join(err, st.Abort())
		}
		r.p.Advance(int64(i+1), int64(len(out)))
		if r.cfg.Layers[i].Block && !shape.draft {
			continue
		}
		_, end := st.Rows(0)
		v, err := fetch[uint16](r.ctx, st.Output(i).Rows(end-min(shape.news[0], last), end))
		if err != nil {
			return errors.Join(err, st.Abort())
		}
		out[i] = vectors.FromU16(v, len(v)/hidden, hidden)
	}
	return st.Commit()
}

// attentionVariant returns the variant of attention that an engine of a model runs.
func attentionVariant(dev *vk.Device, c model.Config, variant string) (string, error) {
	op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: c.Heads,
		WindowPage: model.Window.Pool(model.StoreWindow).Page, WindowRecord: c.Records.Record(model.StoreWindow), Variant: variant})
	if err != nil {
		return "", err
	}
	return op.Variant(), nil
}
