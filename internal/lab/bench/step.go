package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// StepOptions describe the whole steps to time: decode steps through all layers of a
// model. What is empty or 0 gets its default, which is less on a CPU. Of LayerOptions,
// Kinds, Prefill, Chunk and Output have no meaning.
type StepOptions struct{ LayerOptions }

func (o StepOptions) withDefaults(t vk.DeviceType) StepOptions {
	cpu := t == vk.TypeCPU
	list := func(v *[]int, gpu, slow []int) {
		if len(*v) == 0 {
			*v = gpu
			if cpu {
				*v = slow
			}
		}
	}
	list(&o.Batches, []int{1, 32}, []int{1, 3})
	list(&o.Contexts, []int{131072}, []int{700})
	o.Prefill = nil
	o.LayerOptions = o.LayerOptions.withDefaults(t)
	return o
}

// StepRow is a whole decode step.
type StepRow struct {
	Model   string `json:"model"`
	Weights string `json:"weights"`
	Batch   int    `json:"batch"`
	Context int    `json:"context"`
	Layers  int    `json:"layers"`
	Shared  string `json:"shared,omitempty"` // which layers have weights in common, for want of memory
	Variant string `json:"variant"`          // of the attention kernel

	Time      Time `json:"time"`          // of the device
	Apart     Time `json:"apart"`         // the same with every layer submitted by itself, as in a model, in which it waits for the one before: the sum
	ApartHost Time `json:"apart_host"`    // of the processor then, with a submission for each layer
	ApartWall Time `json:"apart_latency"` // from beginning to end then, with one wait at the end
	Host      Time `json:"host"`          // of the processor: filling in the step and submitting it, and ending it; without the wait
	Latency   Time `json:"latency"`       // from beginning to end, with the wait
	// The same as Time, Host and Latency where every layer's input is made of the output of
	// the one before, by a kernel in between: residual and norm.
	Chained         Time `json:"chained"`
	ChainedHost     Time `json:"chained_host"`
	ChainedWall     Time `json:"chained_latency"`
	ChainedBarriers int  `json:"chained_barriers"`
	// Launches that only read: as many as the step has, in the same levels, the first of each
	// operation all bytes that it has to move; 0 where there is no memory left for them.
	Floor             Time    `json:"floor"`
	ChainedFloor      Time    `json:"chained_floor"`
	EmptyFloor        Time    `json:"floor_without_bytes"` // the launches of Floor, reading nothing
	TimesFloor        float64 `json:"times_floor"`         // Time.Median over Floor.Median
	TimesChainedFloor float64 `json:"chained_times_floor"`

	Ops        []OpTime `json:"ops"` // by kind of layer, of all its layers together
	Work       Work     `json:"work"`
	Limit      float64  `json:"limit_us"`
	Times      float64  `json:"times_limit"` // Time.Median over Limit
	GBs        float64  `json:"gbs"`
	Dispatches int      `json:"dispatches"`
	Barriers   int      `json:"barriers"`
	Longest    float64  `json:"longest_submission_us"` // of the device's submissions; a step is one unless it is longer than the engine's budget

	Memory map[string]uint64 `json:"memory"`
	Status string            `json:"status"`
	Error  float64           `json:"error"`
	Bound  float64           `json:"bound"`
	Detail string            `json:"detail,omitempty"`
}

// Steps checks one layer of each kind at each size as Layers does, then times whole
// steps of an engine with all layers of the model, and hands each row to emit as it is
// done. Rows whose check failed have status "wrong" and no times; the error is then
// ErrWrong. A row for which the device has not enough memory has status "skipped".
func Steps(ctx context.Context, dev *vk.Device, o StepOptions, l Limits, p Progress, emit func(StepRow)) error {
	o = o.withDefaults(dev.Adapter().Type)
	if err := o.check("bench: step"); err != nil {
		return err
	}
	var failed string
	if !o.checked {
		var err error
		if failed, err = checkCompressors(ctx, dev, o.Seed, p); err != nil {
			return err
		}
	}
	maker := newWeightMaker(ctx, dev, o.Seed)
	defer maker.Close()
	var wrong error
	for _, model := range o.Models {
		for _, weights := range o.Weights {
			for _, context := range o.Contexts {
				for _, batch := range o.Batches {
					s := &stepRun{ctx: ctx, dev: dev, o: o, limits: l, p: p, maker: maker, cfg: modelConfig(model),
						row: StepRow{Model: model, Weights: weights, Batch: batch, Context: context, Status: "ok"}}
					if err := s.run(failed); errors.Is(err, vk.ErrOutOfDeviceMemory) {
						s.row.Status, s.row.Detail = "skipped", err.Error()
					} else if err != nil {
						return fmt.Errorf("bench: step: %s %s, batch %d, context %d: %w", model, weights, batch, context, err)
					}
					emit(s.row)
					if s.row.Status == "wrong" {
						wrong = ErrWrong
					}
				}
			}
		}
	}
	return wrong
}

// stepRun times one row.
type stepRun struct {
	ctx      context.Context
	dev      *vk.Device
	o        StepOptions
	limits   Limits
	p        Progress
	maker    *weightMaker
	cfg      model.Config
	row      StepRow
	weights  []*randomLayer // of each layer
	distinct []*randomLayer
	engine   *pipeline.Engine
	sessions []*pipeline.Session
	filled   bool // the inputs
	apart    bool // layers are submitted one by one
	chain    chain
}

func (s *stepRun) name() string {
	return fmt.Sprintf("%s %s, batch %d, context %d", s.row.Model, s.row.Weights, s.row.Batch, s.row.Context)
}

// tokens is how long a session may become: steps lengthen it.
func (s *stepRun) tokens() int { return s.row.Context + 4*(s.o.Reps+s.o.Warmup) + 4*mostWake }

func (s *stepRun) run(compressors string) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	s.row.Layers = len(s.cfg.Layers)
	if err := s.fits(); err != nil {
		return err
	}
	s.p.Step(s.name() + ": making weights")
	if err := s.makeWeights(); err != nil {
		return err
	}
	if ok, err := s.check(compressors); err != nil || !ok {
		return err
	}
	s.p.Step(s.name() + ": filling caches")
	if err := s.open(); err != nil {
		return err
	}
	s.row.Memory = s.dev.MemoryInUse()
	s.p.Step(s.name() + ": checking what is between layers")
	if ok, err := s.checkChain(); err != nil || !ok {
		return err
	}
	s.p.Step(s.name() + ": timing")
	return s.time()
}

func (s *stepRun) close() error {
	err := errors.Join(s.engine.Close(), s.chain.close())
	for _, w := range s.distinct {
		err = errors.Join(err, w.Close())
	}
	return err
}

// cacheBytes is about what the caches of all layers take, with a quarter more for what
// else there is.
func (s *stepRun) cacheBytes() uint64 {
	sum := 0
	for _, r := range ratios(s.cfg) {
		sum += 512 * cache.SlotBytes
		switch r {
		case pipeline.RatioC4A:
			sum += s.tokens()/4*(cache.SlotBytes+s.o.Keys.RowBytes()+8) + 64*8*1280
		case pipeline.RatioC128A:
			sum += s.tokens()/128*cache.SlotBytes*2 + 256*8*512
		}
	}
	return uint64(sum) * uint64(s.row.Batch) * 5 / 4
}

// fits reports whether the caches may fit, before anything is made for them: the rows of
// the sessions' tokens alone have to.
func (s *stepRun) fits() error {
	sum := 0
	for _, r := range ratios(s.cfg) {
		sum += min(s.tokens(), s.cfg.Window) * cache.SlotBytes
		switch r {
		case pipeline.RatioC4A:
			sum += s.tokens() / 4 * (cache.SlotBytes + s.o.Keys.RowBytes())
		case pipeline.RatioC128A:
			sum += s.tokens() / 128 * cache.SlotBytes
		}
	}
	need, heap := uint64(sum)*uint64(s.row.Batch), s.dev.Caps().HeapBytes
	if need > heap {
		return fmt.Errorf("%w: the caches of %d sequences of %d tokens (--context and what the steps add) need at least %d MB, the device has %d",
			vk.ErrOutOfDeviceMemory, s.row.Batch, s.tokens(), need/1e6, heap/1e6)
	}
	return nil
}

// makeWeights makes weights of all layers, as long as the caches have room beside them;
// then layers of a ratio use those of others, in turn.
func (s *stepRun) makeWeights() error {
	const spare = 2 << 30 // what passes between operations, tables, the driver
	heap := s.dev.Caps().HeapBytes
	room := int64(heap) - int64(s.cacheBytes()) - spare
	if s.dev.Adapter().Type == vk.TypeCPU {
		room = int64(heap) / 2
	}
	byRatio, turn := map[int][]*randomLayer{}, map[int]int{}
	for i, ratio := range ratios(s.cfg) {
		have := byRatio[ratio]
		if len(have) > 0 && room < int64(have[0].bytes()) {
			s.weights = append(s.weights, have[turn[ratio]%len(have)])
			turn[ratio]++
			continue
		}
		w, err := s.maker.layer(s.cfg, i, formatNamed(s.row.Weights))
		if err != nil {
			return err
		}
		room -= int64(w.bytes())
		s.weights, s.distinct, byRatio[ratio] = append(s.weights, w), append(s.distinct, w), append(have, w)
	}
	if n := len(s.distinct); n < len(s.weights) {
		s.row.Shared = fmt.Sprintf("%d layers have the weights of %d", len(s.weights), n)
	}
	return nil
}

// check checks a layer of each kind, at the step's size and with weights of the step.
func (s *stepRun) check(compressors string) (bool, error) {
	ropes := newRopeTables(s.dev, s.row.Context)
	defer ropes.Close()
	shape := decodeShape(s.row.Batch, s.row.Context, s.o.Keys)
	for _, kind := range Kinds {
		i := layerOf(s.cfg, ratioOf(kind))
		if i < 0 {
			continue
		}
		s.p.Step(s.name() + ": checking a layer of kind " + kind)
		r, err := newLayerRig(s.ctx, s.dev, pipeline.LayerKindConfig{Model: s.cfg, Ratio: ratioOf(kind), Tokens: s.row.Batch,
			MaxLen: s.tokens(), Variant: s.o.Variant}, shape, ropes, s.o.Seed, s.p)
		if err != nil {
			return false, err
		}
		err = r.use(s.weights[i : i+1])
		if err == nil {
			s.row.Variant, _ = r.kind.Variants()
			res, e := r.check(s.weights[i])
			if err = e; err == nil {
				s.judge(kind, res.Pass, res.Error, res.Bound, res.Detail)
			}
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return false, err
		}
	}
	if compressors != "" {
		s.judge("compressors", false, 1, 0, compressors)
	}
	return s.row.Status == "ok", nil
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

// open makes the engine with its sessions, and caches that hold valid rows.
func (s *stepRun) open() (err error) {
	var layers []*model.DeviceLayer
	for i, w := range s.weights {
		l := *w.DeviceLayer
		l.Layer = i
		layers = append(layers, &l)
	}
	most := max(s.row.Batch, 128)
	if err := s.chain.open(s.dev, len(layers), most, s.cfg.Hidden); err != nil {
		return err
	}
	if s.engine, err = pipeline.NewEngine(s.ctx, s.dev, s.cfg, layers, pipeline.EngineOptions{MaxTokens: s.tokens(), MaxSessions: s.row.Batch,
		MaxStep: most, CacheBytes: 1 << 62, Keys: s.o.Keys, Variant: s.o.Variant, Between: s.chain.record}); err != nil {
		return err
	}
	for i := range s.row.Batch {
		x, err := s.engine.Open()
		if err != nil {
			return err
		}
		s.sessions = append(s.sessions, x)
		if err := x.Advance(s.ctx, max(0, s.row.Context-1-i)); err != nil {
			return err
		}
	}
	r := &layerRig{opRig: newOpRig(s.ctx, s.dev, IndexerOptions{Common: Common{Seed: s.o.Seed}}, s.p), shape: stepShape{keys: s.o.Keys}}
	for i := range layers {
		if err := r.fillCaches(s.engine.Caches(i)); err != nil {
			return err
		}
		s.p.Advance(int64(i+1), int64(len(layers)))
	}
	return s.engine.Prepare(s.ctx, s.row.Batch)
}

// fillCaches fills the pools of a layer with rows that the operations could have written.
func (r *layerRig) fillCaches(c pipeline.LayerCaches) error {
	for _, k := range []cache.KVCache{c.Window, c.Compressed} {
		if k.Pool.IsZero() {
			continue
		}
		pattern, err := r.kvPattern(k.Layout)
		if err == nil {
			err = r.fill(k.Pool, pattern)
		}
		if err != nil {
			return err
		}
	}
	for _, k := range []cache.StateCache{c.State, c.IndexState} {
		if k.Pool.IsZero() {
			continue
		}
		if err := r.fill(k.Pool, r.statePattern(k.Layout)); err != nil {
			return err
		}
	}
	if c.Keys.Pool.IsZero() {
		return nil
	}
	return r.fill(c.Keys.Pool, r.keyPattern(c.Keys.Layout))
}

// layerByLayer submits the layers of a step one by one.
func layerByLayer(st *pipeline.Step, layers int) error {
	for i := range layers {
		if err := st.SubmitLayer(i); err != nil {
			return err
		}
	}
	return nil
}

// begin begins a step of one token a session, whose inputs are there.
func (s *stepRun) begin() (*pipeline.Step, error) {
	chunks := make([]pipeline.Chunk, len(s.sessions))
	for i, x := range s.sessions {
		chunks[i] = pipeline.Chunk{Session: x, Tokens: 1}
	}
	st, err := s.engine.Begin(s.ctx, chunks...)
	if err == nil && !s.filled {
		err = s.fillInputs(st)
	}
	if err != nil {
		return nil, errors.Join(err, st.Abort())
	}
	return st, nil
}

// step runs a step of one token a session and says what it took; look, unless nil, is
// called before the step ends.
func (s *stepRun) step(look func(*pipeline.Step) error) (host, all time.Duration, err error) {
	begin := time.Now()
	st, err := s.begin()
	if err != nil {
		return 0, 0, err
	}
	defer st.Abort()
	if s.apart {
		err = layerByLayer(st, s.engine.Layers())
	} else {
		err = st.Submit()
	}
	if err != nil {
		return 0, 0, err
	}
	submitted := time.Now()
	if err := st.Wait(s.ctx); err != nil {
		return 0, 0, err
	}
	waited := time.Now()
	if look != nil {
		if err := look(st); err != nil {
			return 0, 0, err
		}
	}
	looked := time.Now()
	if err := st.Commit(); err != nil {
		return 0, 0, err
	}
	ended := time.Now()
	host = submitted.Sub(begin) + ended.Sub(looked)
	return host, host + waited.Sub(submitted), nil
}

// wakeSteps is how long steps run before they are timed, once they are recorded. Recording
// leaves the device idle for half a second each time, and an H100 takes 0.3 s of steps of
// a quarter of the speed to come to its full clock again.
const wakeSteps = time.Second

// mostWake bounds the steps of one wakeUp, for every step lengthens the sessions.
const mostWake = 1350

// wakeUp runs steps until they are recorded for good (the first is measured operation by
// operation, the second recorded anew) and the device has its full clock.
func (s *stepRun) wakeUp() error {
	gpu := s.dev.Adapter().Type != vk.TypeCPU
	var start time.Time
	for n := 0; n < max(3, s.o.Warmup) || gpu && time.Since(start) < wakeSteps && n < mostWake; n++ {
		if n == 2 {
			start = time.Now()
		}
		if _, _, err := s.step(nil); err != nil {
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
	if err := s.timeWhole(&s.row.Time, &s.row.Host, &s.row.Latency, func(list []vk.Section) {
		// Where a submission begins there is no barrier to be derived: those of the
		// recording with the fewest submissions count.
		s.row.Dispatches, s.row.Barriers = list[0].Dispatches, max(s.row.Barriers, list[0].Barriers)
	}); err != nil {
		return err
	}
	if err := s.timeApart(); err != nil {
		return err
	}
	if err := s.timeChained(); err != nil {
		return err
	}
	list, err := s.sections()
	if err != nil {
		return err
	}
	chained, err := s.chainedSections()
	if err == nil {
		err = s.timeFloors(list, chained)
	}
	if err != nil {
		return err
	}
	s.row.Longest = float64(s.engine.Longest()) / 1e3
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
	return s.timeWhole(&s.row.Apart, &s.row.ApartHost, &s.row.ApartWall, func([]vk.Section) {})
}

// opKey is an operation of layers of a kind.
type opKey struct{ kind, op string }

// sections times the operations, and adds up those of layers of a kind; it
// returns them as they were recorded.
func (s *stepRun) sections() (recorded []vk.Section, err error) {
	if err := s.engine.SetTiming(s.ctx, pipeline.TimingSections); err != nil {
		return nil, err
	}
	if err := s.wakeUp(); err != nil {
		return nil, err
	}
	var order []opKey
	samples, counts, most := map[opKey][]float64{}, map[opKey]vk.Section{}, -1
	for range s.o.Reps {
		sums, own, barriers := map[opKey]float64{}, map[opKey]vk.Section{}, 0
		if _, _, err := s.step(func(st *pipeline.Step) error {
			list, err := st.Times()
			if err != nil {
				return err
			}
			recorded = fewestWaits(recorded, list)
			order = order[:0]
			s.split(list, func(_ int, k opKey, x vk.Section) {
				if !slices.Contains(order, k) {
					order = append(order, k)
				}
				c := own[k]
				own[k] = vk.Section{Dispatches: c.Dispatches + x.Dispatches, Barriers: c.Barriers + x.Barriers}
				sums[k], barriers = sums[k]+x.NS, barriers+x.Barriers
			})
			if barriers > most {
				counts, most = own, barriers
			}
			return nil
		}); err != nil {
			return nil, err
		}
		for k, v := range sums {
			samples[k] = append(samples[k], v)
		}
	}
	works := s.works()
	for _, k := range order {
		s.row.Ops = append(s.row.Ops, opTime(k.op, k.kind, counts[k], samples[k], workOf(k.op, func(op string) Work { return works[opKey{k.kind, op}] }), s.limits))
	}
	for _, w := range works {
		s.row.Work = s.row.Work.plus(w)
	}
	return recorded, nil
}

// split finds the layer that each section of a step belongs to, -1 for what is in front of the
// first: a layer begins with its first projection, or with another one in front of it. What all
// layers share is recorded in front of the first one and within.
func (s *stepRun) split(list []vk.Section, f func(layer int, k opKey, x vk.Section)) {
	layer, begun := -1, false
	for i, x := range list {
		if x.Name == "between" && x.Dispatches == 0 {
			continue // behind the last layer, where nothing is
		}
		before := i+1 < len(list) && x.Name == gateSection && list[i+1].Name == firstSection
		if before || x.Name == firstSection && !begun {
			layer++
		}
		begun = before
		k := opKey{"all", "lengths, tables, index lists"}
		if layer >= 0 && layer < len(s.cfg.Layers) && x.Name != sharedSection {
			k = opKey{s.kind(layer), x.Name}
		}
		f(layer, k, x)
	}
}

// firstSection is the operation that a layer begins with, gateSection the one that may be
// recorded in front of it, and sharedSection what layers share.
const firstSection, gateSection, sharedSection = "wq_a|wkv", "compressor.wkv|wgate", "step"

func (s *stepRun) kind(layer int) string {
	i := slices.IndexFunc(Kinds, func(kind string) bool { return ratioOf(kind) == ratios(s.cfg)[layer] })
	return Kinds[i]
}

// works is the work of all layers by kind and operation.
func (s *stepRun) works() map[opKey]Work {
	shape, sum := decodeShape(s.row.Batch, s.row.Context, s.o.Keys), map[opKey]Work{}
	for i, w := range s.weights {
		for op, work := range layerWork(s.cfg, w, shape) {
			k := opKey{s.kind(i), op}
			sum[k] = sum[k].plus(work)
		}
	}
	return sum
}
