package bench

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/vkmla/vkmla/internal/numfmt"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// promptDefaults fills in defaults for whole prompts. Kinds, Batches and Contexts say nothing of
// them.
func (o LayerOptions) promptDefaults(onSlow bool) LayerOptions {
	o.Batches, o.Contexts = nil, nil
	o.Prefill = pick(o.Prefill, onSlow, []int{4096, 32768}, []int{300})
	o.Reps = cmp.Or(o.Reps, either(onSlow, 5, 2))
	if o.Warmup == 0 {
		o.Warmup = 1
	}
	return o.withDefaults(onSlow)
}

// PrefillRow is a whole prompt.
type PrefillRow struct {
	Model   string `json:"model"`
	Weights string `json:"weights"`
	Tokens  int    `json:"tokens"` // of the prompt
	Chunk   int    `json:"chunk"`  // most tokens of a step
	Layers  int    `json:"layers"`
	Shared  string `json:"shared,omitempty"` // which layers have weights in common, for want of memory
	Variant string `json:"variant"`          // of the attention kernel

	TokensPerS float64     `json:"tokens_per_s"` // Tokens over Time.Median
	Time       Time        `json:"time"`         // of the device, for all chunks
	Latency    Time        `json:"latency"`      // from beginning to end, with what the processor does and the inputs' way to the device
	Chunks     []ChunkTime `json:"chunks"`
	Work       Work        `json:"work"`
	Limit      float64     `json:"limit_us"`
	Share      float64     `json:"share"` // Limit over Time.Median

	Memory map[string]uint64 `json:"memory"`
	Status string            `json:"status"`
	Error  float64           `json:"error"`
	Bound  float64           `json:"bound"`
	Detail string            `json:"detail,omitempty"`

	part *ChunkTime // that this is of the prompt, in CSV
}

// ChunkTime holds the device's time for a chunk of a prompt.
type ChunkTime struct {
	First  int     `json:"first"` // position of its first token
	Tokens int     `json:"tokens"`
	Time   Time    `json:"time"`
	Limit  float64 `json:"limit_us"`
}

// prompts returns those to time, without what is measured.
func (o LayerOptions) prompts() (list []PrefillRow) {
	for _, of := range o.models() {
		for _, tokens := range o.Prefill {
			list = append(list, PrefillRow{Model: of.model, Weights: of.weights, Tokens: tokens, Chunk: o.Chunk})
		}
	}
	return list
}

// Prefills checks one layer of each kind at the end of each prompt as Layers does, and what is
// between layers as Steps does, then times prompts through an engine with all layers of the
// model. A kernel makes the input of a layer from the output of the one before, as in a model.
// Statuses and errors are as with Ops.
func Prefills(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, emit func(PrefillRow)) error {
	if err := o.check("prefill", false); err != nil {
		return err
	}
	o = o.promptDefaults(slow(dev))
	return eachRow(ctx, dev, o, o.prompts(), p, func(t *tally, maker *weightMaker, failed string, row PrefillRow) error {
		row, err := newPrefillRun(ctx, dev, o, l, p, maker, row).run(failed)
		return t.add("prefill: "+row.title(), err, &row.Status, &row.Detail, func() { emit(row) })
	})
}

// prefillRun times one prompt. The row of its stepRun is what steps and prompts have in common.
type prefillRun struct {
	*stepRun
	prompt PrefillRow
	chunks []ChunkTime
	inputs []byte // bf16, from which those of all chunks are cut
}

func newPrefillRun(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, maker *weightMaker,
	row PrefillRow) *prefillRun {
	r := &prefillRun{prompt: row}
	for at := 0; at < row.Tokens; at += o.Chunk {
		r.chunks = append(r.chunks, ChunkTime{First: at, Tokens: min(o.Chunk, row.Tokens-at)})
	}
	r.stepRun = newStepRun(ctx, dev, o, l, p, maker, StepRow{Model: row.Model, Weights: row.Weights})
	r.opts.MaxStep, r.longest = r.chunks[0].Tokens, row.Tokens
	r.shape = r.shapeOf(0)
	return r
}

// shapeOf returns the shape of a chunk's step.
func (r *prefillRun) shapeOf(i int) stepShape {
	c := r.chunks[i]
	return stepShape{lens: []int{c.First + c.Tokens}, news: []int{c.Tokens}, keys: r.shape.keys}
}

func (r *prefillRun) run(failed string) (row PrefillRow, err error) {
	row = r.prompt
	row.Layers = len(r.cfg.Layers)
	defer func() { err = errors.Join(err, r.close()) }()
	ok, err := r.ready(row.title(), failed, r.shapeOf(len(r.chunks)-1))
	if err == nil && ok {
		r.p.Step(row.title() + ": timing")
		err = r.time(&row)
	}
	x := r.row
	row.Shared, row.Variant, row.Memory = x.Shared, x.Variant, x.Memory
	row.Status, row.Error, row.Bound, row.Detail = x.Status, x.Error, x.Bound, x.Detail
	return row, err
}

// time fills in the times of a row.
func (r *prefillRun) time(row *PrefillRow) error {
	r.chain.on = true
	if err := r.engine.SetTiming(r.ctx, pipeline.TimingWhole); err != nil {
		return err
	}
	r.inputs = numfmt.Bytes(normals(newRand(r.seed), r.opts.MaxStep*r.cfg.Hidden+inputShift*inputShifts))
	var whole, walls []float64
	each, warm := make([][]float64, len(r.chunks)), r.warmup()
	for n := range warm + r.o.Reps {
		device, wall, err := r.pass()
		if err != nil {
			return err
		}
		r.p.Advance(int64(n+1), int64(warm+r.o.Reps))
		if n < warm {
			continue
		}
		sum := 0.0
		for i, ns := range device {
			sum += ns
			each[i] = append(each[i], ns)
		}
		whole, walls = append(whole, sum), append(walls, nanoseconds(wall))
	}
	row.Time, row.Latency = summarise(whole), summarise(walls)
	for i, c := range r.chunks {
		c.Time = summarise(each[i])
		r.shape = r.shapeOf(i)
		for layer := range r.weights {
			var work Work
			for _, w := range r.layerWork(r.shape, layer) {
				work = work.plus(w)
			}
			row.Work = row.Work.plus(work)
			c.Limit += work.Limit(r.limits)
		}
		row.Limit += c.Limit
		row.Chunks = append(row.Chunks, c)
	}
	row.TokensPerS, row.Share = float64(row.Tokens)/row.Time.Median*1e6, row.Limit/row.Time.Median
	return nil
}

// warmup returns how many prompts come before those that are timed: each size of a step is measured
// operation by operation first, then recorded anew, and then stays as it is.
func (r *prefillRun) warmup() int {
	same := len(r.chunks)
	if r.chunks[same-1].Tokens < r.chunks[0].Tokens {
		same = 1 // the last one is of a size of its own
	}
	return max(r.o.Warmup, (recordings+same-1)/same)
}

// Inputs of chunks differ, so that their entries do: each begins inputShift values after the one
// before, up to inputShifts times. That is no whole number of rows, nor a multiple of four rows.
const inputShift, inputShifts = 37 * 64, 1021

// pass runs the prompt and says what the device took for each chunk, and what passed meanwhile.
func (r *prefillRun) pass() (device []float64, wall time.Duration, err error) {
	if err := r.sessions[0].Truncate(0); err != nil {
		return nil, 0, err
	}
	for i, c := range r.chunks {
		r.shape = r.shapeOf(i)
		own := r.inputs[2*inputShift*(i%inputShifts):][:2*c.Tokens*r.cfg.Hidden]
		r.fillBy(func(st *pipeline.Step) error {
			return errors.Join(probe.ReuseInputs(st), r.chain.start.Rows(0, c.Tokens).Upload(r.ctx, own))
		})
		ns := 0.0
		_, all, err := r.step(func(lists [][]vk.Section) error {
			ns = took(lists)
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
		device, wall = append(device, ns), wall+all
	}
	return device, wall, nil
}
