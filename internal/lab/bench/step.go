package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// stepDefaults fills in defaults for whole steps. Kinds, Prefill and Chunk say nothing of them.
func (o LayerOptions) stepDefaults(onSlow bool) LayerOptions {
	o.Batches = pick(o.Batches, onSlow, []int{1, 32}, []int{1, 3})
	o.Contexts = pick(o.Contexts, onSlow, []int{131072}, []int{700})
	o.Prefill = nil
	return o.withDefaults(onSlow)
}

// StepRow is a whole decode step. Of MODEL+N (see drafted) the step of drafts after it is part of
// it.
type StepRow struct {
	Model   string `json:"model"`
	Weights string `json:"weights"`
	Batch   int    `json:"batch"`
	Context int    `json:"context"` // tokens of the first sequence in the last step; it has one fewer in each before
	Layers  int    `json:"layers"`
	Shared  string `json:"shared,omitempty"` // which layers have weights in common, for want of memory
	Variant string `json:"variant"`          // of the attention kernel

	Time      Time `json:"time"`          // of the device
	Apart     Time `json:"apart"`         // every layer submitted by itself, waiting for the one before: the sum
	ApartHost Time `json:"apart_host"`    // of the processor then, with a submission for each layer
	ApartWall Time `json:"apart_latency"` // from beginning to end then, with one wait at the end
	Host      Time `json:"host"`          // of the processor: filling in the step and submitting it, and ending it; without the wait
	Latency   Time `json:"latency"`       // from beginning to end, with the wait
	// The same as Time, Host and Latency where every layer's input is made of the output of
	// the one before, by a kernel in between: residual and norm.
	Chained     Time `json:"chained"`
	ChainedHost Time `json:"chained_host"`
	ChainedWall Time `json:"chained_latency"`
	// Launches that only read: as many as the step has, in the same levels, the first of each
	// operation all bytes that it has to move; 0 where there is no memory left for them.
	Floor             Time    `json:"floor"`
	ChainedFloor      Time    `json:"chained_floor"`
	TimesFloor        float64 `json:"times_floor"` // Time.Median over Floor.Median
	TimesChainedFloor float64 `json:"chained_times_floor"`

	Ops        []OpTime `json:"ops"` // by kind of layer, of all its layers together
	Work       Work     `json:"work"`
	Limit      float64  `json:"limit_us"`
	Times      float64  `json:"times_limit"` // Time.Median over Limit
	GBs        float64  `json:"gbs"`
	Dispatches int      `json:"dispatches"`
	Barriers   int      `json:"barriers"`
	Longest    float64  `json:"longest_submission_us"` // a step is one submission unless the engine's budget divides it

	Memory map[string]uint64 `json:"memory"`
	Status string            `json:"status"`
	Error  float64           `json:"error"`
	Bound  float64           `json:"bound"`
	Detail string            `json:"detail,omitempty"`

	part, kind string // the operation, and of what layers, that this is of the step, in CSV
}

// steps returns those to time, without what is measured.
func (o LayerOptions) steps() (list []StepRow) {
	for _, of := range o.models() {
		for _, context := range o.Contexts {
			for _, batch := range o.Batches {
				list = append(list, StepRow{Model: of.model, Weights: of.weights, Batch: batch, Context: context})
			}
		}
	}
	return list
}

// Steps checks one layer of each kind at each size as Layers does, then times whole
// steps of an engine with all layers of the model, and hands each row to emit as it is
// done. Statuses and errors are as with Ops.
func Steps(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, emit func(StepRow)) error {
	if err := o.check("step", true); err != nil {
		return err
	}
	o = o.stepDefaults(slow(dev))
	return eachRow(ctx, dev, o, o.steps(), p, func(t *tally, maker *weightMaker, failed string, row StepRow) error {
		s := newStepRun(ctx, dev, o, l, p, maker, row)
		err := s.run(failed)
		return t.add("step: "+s.name(), err, &s.row.Status, &s.row.Detail, func() { emit(s.row) })
	})
}

// eachRow checks single operations, unless they are known to be right, and has rows timed one by
// one, unless time says why not to go on.
func eachRow[R any](ctx context.Context, dev *vk.Device, o LayerOptions, rows []R, p Progress,
	time func(t *tally, maker *weightMaker, failed string, row R) error) error {
	failed := ""
	if !o.Checked {
		var err error
		if failed, err = checkOps(ctx, dev, o.Seed, p); err != nil {
			return err
		}
	}
	maker := newWeightMaker(ctx, dev, o.Seed)
	defer maker.Close()
	t := tally{ctx: ctx}
	for i, row := range rows {
		p.Rows(i, len(rows))
		if err := time(&t, maker, failed, row); err != nil {
			return err
		}
	}
	return t.missing
}

// stepRun times one row.
type stepRun struct {
	engineRun
	o        LayerOptions
	limits   Limits
	maker    *weightMaker
	row      StepRow
	distinct []*randomLayer
	chain    chain
}

// recordings counts the runs of a step until it is recorded for good: measured operation by
// operation, recorded anew, and as it stays.
const recordings = 3

// newStepRun returns a run whose sessions are so much shorter at first that the last of its steps,
// or the block of drafts after it, ends at the context that was asked for.
func newStepRun(ctx context.Context, dev *vk.Device, o LayerOptions, l Limits, p Progress, maker *weightMaker, row StepRow) *stepRun {
	row.Status = "ok"
	_, n := drafted(row.Model)
	rejects := max(n, 0)
	s := &stepRun{o: o, limits: l, maker: maker, row: row, engineRun: engineRun{ctx: ctx, dev: dev, p: p, seed: o.Seed,
		cfg: o.config(row.Model), rejects: rejects,
		opts: pipeline.EngineOptions{Keys: o.Keys, Variant: o.Variant, Invariant: o.Invariant, Rewind: rejects}}}
	s.drafts = s.main() < len(s.cfg.Layers)
	steps := 4*o.Reps + recordings // that keep a token: whole, apart, chained, by sections; chainedSections
	beyond := 0                    // where a block of drafts ends after the tokens that it comes after
	if s.drafts {
		beyond = max(0, s.cfg.DraftBlock-rejects)
	}
	first := max(1+rejects, row.Context-beyond-steps+1)
	s.shape, s.longest = decodeShape(row.Batch, first, 1+rejects), first+steps-1+beyond
	s.opts.MaxStep, s.opts.Between = max(s.mostTokens(), 128), s.chain.record
	s.fillBy(s.fillInputs)
	s.shape.keys = o.keys(s.cfg)
	return s
}

func (s *stepRun) name() string {
	return fmt.Sprintf("%s %s, batch %d, context %d", s.row.Model, s.row.Weights, s.row.Batch, s.row.Context)
}

func (s *stepRun) run(failed string) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	s.row.Layers = len(s.cfg.Layers)
	if ok, err := s.ready(s.name(), failed, s.shape); err != nil || !ok {
		return err
	}
	s.p.Step(s.name() + ": timing")
	return s.time()
}

// ready makes the weights, checks a layer of each kind in a step of a shape, and opens the engine
// with what is between its layers, checked too. It says whether all was right.
func (s *stepRun) ready(name, failed string, checked stepShape) (ok bool, err error) {
	if err := s.fits(); err != nil {
		return false, err
	}
	s.p.Step(name + ": making weights")
	if err := s.makeWeights(); err != nil {
		return false, err
	}
	s.p.Step(name + ": checking a layer of each kind")
	opened := s.shape
	s.shape = checked
	if ok, err := s.check(failed); err != nil || !ok {
		return false, err
	}
	s.shape = opened
	s.p.Step(name + ": filling caches")
	if err := s.open(); err != nil {
		return false, err
	}
	s.row.Memory = s.dev.MemoryInUse()
	s.p.Step(name + ": checking what is between layers")
	return s.checkChain()
}

func (s *stepRun) close() error {
	err := errors.Join(s.engineRun.close(), s.chain.close())
	for _, w := range s.distinct {
		err = errors.Join(err, w.Close())
	}
	return err
}

// cacheBytes returns what the caches of all sessions take at least: the rows of their tokens.
func (s *stepRun) cacheBytes() uint64 {
	sum := 0
	for _, l := range s.cfg.Layers {
		sum += min(s.longest, s.cfg.Window) * s.cfg.Records.Record(model.StoreWindow).SlotBytes()
		if !l.Compresses() {
			continue
		}
		entry := s.cfg.Records.Record(model.StoreEntries).SlotBytes()
		if l.Pool(model.StoreKeys) != nil {
			entry += s.shape.keyBytes()
		}
		sum += s.longest / l.Ratio * entry
		if l.Gated() {
			c := l.Compression(cache.D)
			sum += c.Window() * 8 * c.Channels()
		}
	}
	return uint64(sum) * uint64(len(s.shape.lens))
}

// fits reports whether the caches may fit, before anything is made for them.
func (s *stepRun) fits() error {
	need, heap := s.cacheBytes(), s.dev.Caps().HeapBytes
	if need > heap {
		return fmt.Errorf("%w: the caches of %d sequences of %d tokens need at least %d MB, the device has %d",
			vk.ErrOutOfDeviceMemory, len(s.shape.lens), s.longest, need/1e6, heap/1e6)
	}
	return nil
}

// makeWeights makes weights of all layers, as long as the caches have room beside them;
// then layers of a kind use those of others, in turn.
func (s *stepRun) makeWeights() error {
	const spare = 2 << 30 // what passes between operations, tables, the driver
	heap := s.dev.Caps().HeapBytes
	hidden := 4 * int64(len(s.cfg.Layers)) * int64(s.opts.MaxStep) * int64(s.cfg.Hidden) // into and out of each layer
	room := int64(heap) - int64(s.cacheBytes()*3/2) - spare - hidden
	if slow(s.dev) {
		room = int64(heap) / 2
	}
	byKind, turn := map[string][]*randomLayer{}, map[string]int{}
	for i, l := range s.cfg.Layers {
		kind := kindOf(l.LayerSpec)
		have := byKind[kind]
		if len(have) > 0 && room < int64(have[0].bytes()) {
			s.weights = append(s.weights, have[turn[kind]%len(have)])
			turn[kind]++
			continue
		}
		w, err := s.maker.layer(s.cfg, i, verify.TimedFormats[s.row.Weights])
		if err != nil {
			return err
		}
		room -= int64(w.bytes())
		s.weights, s.distinct, byKind[kind] = append(s.weights, w), append(s.distinct, w), append(have, w)
	}
	if n := len(s.distinct); n < len(s.weights) {
		s.row.Shared = fmt.Sprintf("%d layers have the weights of %d", len(s.weights), n)
	}
	return nil
}

// check checks a layer of each kind, at the step's size and with weights of the step.
func (s *stepRun) check(failed string) (ok bool, err error) {
	if s.row.Variant, err = attentionVariant(s.dev, s.cfg, s.o.Variant); err != nil {
		return false, err
	}
	r, weights := s.kinds()
	res, err := checkLayers(r, weights, nil)
	if err != nil {
		return false, err
	}
	s.judge("layers", res.Pass, res.Error, res.Bound, res.Detail)
	if failed != "" {
		s.judge("operations", false, 1, 0, failed)
	}
	return s.row.Status == "ok", nil
}

// kinds returns the run with a layer of each kind and those that they take from, and their weights.
func (s *stepRun) kinds() (r engineRun, weights []*randomLayer) {
	r = s.engineRun
	layers := firstOfKinds(s.cfg)
	for _, i := range layers {
		weights = append(weights, s.weights[i])
	}
	r.cfg = onlyLayers(s.cfg, layers...)
	return r, weights
}

// judge keeps what is nearest to its bound, and what is beyond it.
func (s *stepRun) judge(what string, pass bool, value, bound float64, detail string) {
	if !pass {
		s.row.Status, s.row.Detail = "wrong", what+": "+detail
	}
	if s.row.Bound == 0 || value*s.row.Bound > s.row.Error*bound || !pass {
		s.row.Error, s.row.Bound = value, bound
	}
}

// open makes the engine with its sessions, and what is between its layers.
func (s *stepRun) open() error {
	if err := s.chain.open(s.dev, s.main(), len(s.weights), s.opts.MaxStep, s.cfg.Hidden); err != nil {
		return err
	}
	if err := s.engineRun.open(); err != nil {
		return err
	}
	for _, x := range s.shapes() {
		if err := s.engine.Prepare(s.ctx, x.tokens()); err != nil {
			return err
		}
	}
	return nil
}

// time fills in the times of the row.
func (s *stepRun) time() error {
	if err := s.engine.SetTiming(s.ctx, pipeline.TimingWhole); err != nil {
		return err
	}
	if err := s.timeWhole(&s.row.Time, &s.row.Host, &s.row.Latency, func(steps vk.Section) {
		// Where a submission begins there is no barrier to be derived: those of the
		// recording with the fewest submissions count.
		s.row.Dispatches, s.row.Barriers = steps.Dispatches, max(s.row.Barriers, steps.Barriers)
	}); err != nil {
		return err
	}
	if err := s.timeApart(); err != nil {
		return err
	}
	if err := s.timeChained(); err != nil {
		return err
	}
	ops, list, err := s.sections(s.o.Reps, s.o.Warmup, s.limits)
	if err != nil {
		return err
	}
	s.row.Ops = ops
	for _, w := range s.works() {
		s.row.Work = s.row.Work.plus(w)
	}
	chained, err := s.chainedSections()
	if err == nil {
		err = s.timeFloors(list, chained)
	}
	if err != nil {
		return err
	}
	s.row.Longest = float64(s.engine.Stats().Longest) / 1e3
	s.row.Limit = s.row.Work.Limit(s.limits)
	s.row.Times, s.row.GBs = s.row.Time.Median/s.row.Limit, s.row.Work.Bytes()/s.row.Time.Median/1e3
	if s.row.Floor.Median > 0 {
		s.row.TimesFloor, s.row.TimesChainedFloor = s.row.Time.Median/s.row.Floor.Median, s.row.Chained.Median/s.row.ChainedFloor.Median
	}
	return nil
}

// timeApart fills in what the layers take one by one.
func (s *stepRun) timeApart() error {
	s.apart = true
	defer func() { s.apart = false }()
	return s.timeWhole(&s.row.Apart, &s.row.ApartHost, &s.row.ApartWall, func(vk.Section) {})
}
