package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// engineRun is an engine with random weights. Its sessions have tokens, and its caches hold
// rows that the operations could have written. The first session of two engines has the same
// ones: pages that are recycled, whose numbers depend on the other sessions, all hold the same,
// and the numbers of others do not depend on them.
type engineRun struct {
	ctx     context.Context
	dev     *vk.Device
	p       Progress
	seed    uint64
	cfg     model.Config
	weights []*randomLayer // of each layer
	shape   stepShape
	longest int // tokens that a session may come to have
	opts    pipeline.EngineOptions

	engine   *pipeline.Engine
	sessions []*pipeline.Session
	fill     func(st *pipeline.Step) error // the inputs, once for each size of step; nil: they are there
	filled   map[int]bool                  // by size of step
	apart    bool                          // layers are submitted one by one
	aborts   bool                          // steps leave sessions as they were
	drafts   bool                          // after each step the layers that draft run on a block
	rejects  int                           // tokens of each session that are taken back after each step
}

// shapes returns the step, and that of the drafts after it.
func (r *engineRun) shapes() []stepShape {
	list := []stepShape{r.shape}
	if r.drafts {
		list = append(list, r.shape.drafts(r.cfg.DraftBlock))
	}
	return list
}

// mostTokens is T of the largest step.
func (r *engineRun) mostTokens() (n int) {
	for _, x := range r.shapes() {
		n = max(n, x.tokens())
	}
	return n
}

// main returns how many layers do not draft.
func (r *engineRun) main() int {
	n := slices.IndexFunc(r.cfg.Layers, func(l model.Layer) bool { return l.Block })
	if n < 0 {
		return len(r.cfg.Layers)
	}
	return n
}

// first returns the first layer that runs in a step.
func (r *engineRun) first(x stepShape) int {
	if x.draft {
		return r.main()
	}
	return 0
}

// fillBy sets what makes the inputs of steps to come.
func (r *engineRun) fillBy(fill func(st *pipeline.Step) error) {
	r.fill, r.filled = fill, map[int]bool{}
}

// layers returns the weights under the numbers of their layers.
func (r *engineRun) layers() (list []*model.DeviceLayer) {
	for i, w := range r.weights {
		l := *w.DeviceLayer
		l.Layer = i
		list = append(list, &l)
	}
	return list
}

// open makes the engine, its sessions and what is in its caches.
func (r *engineRun) open() (err error) {
	o := r.opts
	o.MaxTokens, o.MaxSessions, o.CacheBytes = r.longest, len(r.shape.lens), 1<<62
	if r.engine, err = pipeline.NewEngine(r.ctx, r.dev, r.cfg, r.layers(), o); err != nil {
		return err
	}
	for i, n := range r.shape.lens {
		x, err := r.engine.Open()
		if err != nil {
			return err
		}
		r.sessions = append(r.sessions, x)
		if err := probe.Advance(r.ctx, x, n-r.shape.news[i]); err != nil {
			return err
		}
	}
	return r.fillCaches()
}

func (r *engineRun) close() error {
	if r.engine == nil {
		return nil
	}
	return r.engine.Close()
}

// fillCaches fills the pools of all layers.
func (r *engineRun) fillCaches() error {
	type pool struct {
		t     tensor.Tensor
		bytes func(rng *rand.Rand) ([]byte, error)
	}
	patterns := map[string][]byte{}
	for i := range r.engine.Layers() {
		c := probe.CachesOf(r.engine, i)
		for j, p := range []pool{
			{c.Window.Pool, func(rng *rand.Rand) ([]byte, error) { return rowPages(rng, c.Window.Layout, 1) }},
			{c.Compressed.Pool, func(rng *rand.Rand) ([]byte, error) {
				return rowPages(rng, c.Compressed.Layout, 2048/c.Compressed.Layout.Page)
			}},
			{c.State.Pool, func(rng *rand.Rand) ([]byte, error) { return statePage(rng, c.State.Layout), nil }},
			{c.IndexState.Pool, func(rng *rand.Rand) ([]byte, error) { return statePage(rng, c.IndexState.Layout), nil }},
			{c.Keys.Pool, func(rng *rand.Rand) ([]byte, error) { return keyPages(rng, c.Keys.Layout), nil }},
		} {
			if p.t.IsZero() || j > 0 && r.cfg.Layers[i].Borrows {
				continue // not there, or another layer's
			}
			key := fmt.Sprint(kindOf(r.cfg.Layers[i].LayerSpec), j)
			if patterns[key] == nil {
				var err error
				if patterns[key], err = p.bytes(rand.New(rand.NewPCG(r.seed, uint64(j)))); err != nil {
					return err
				}
			}
			if err := verify.Fill(r.ctx, r.dev, p.t, patterns[key]); err != nil {
				return err
			}
		}
		r.p.Advance(int64(i+1), int64(r.engine.Layers()))
	}
	return nil
}

// rowPages are pages of random rows.
func rowPages(rng *rand.Rand, l cache.Layout, pages int) ([]byte, error) {
	slots := make([]int64, pages*l.Page)
	for i := range slots {
		slots[i] = int64(i)
	}
	data := make([]byte, l.Stride*pages)
	return data, cache.InsertRef(data, l, normals(rng, len(slots)*cache.D), slots)
}

// statePage returns a page of random states.
func statePage(rng *rand.Rand, l cache.StateLayout) []byte {
	v := make([]float32, l.Stride/4)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return numfmt.Bytes(v)
}

// keyPages are pages of random indexer keys.
func keyPages(rng *rand.Rand, l cache.IndexKeyLayout) []byte {
	const pages = 64
	pattern, x := make([]byte, pages*l.Stride), normals(rng, cache.IndexDim*pages*l.Page)
	for slot := range int64(pages * l.Page) {
		codes, scale := cache.QuantiseKeyRef(x[slot*cache.IndexDim:][:cache.IndexDim], l.Format)
		copy(pattern[l.RowOffset(slot):], codes)
		copy(pattern[l.ScaleOffset(slot):], scale[:])
	}
	return pattern
}

// normals are n bf16 numbers of a normal distribution.
func normals(rng *rand.Rand, n int) []uint16 {
	v := make([]float32, n)
	verify.FillNormal(rng, v)
	return numfmt.BF16EncodeSlice(nil, v)
}

// newRand returns the generator of a run's hidden states.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 9)) }

// begin begins a step of a shape's new tokens, whose inputs are there: fill wrote them once.
func (r *engineRun) begin(shape stepShape) (*pipeline.Step, error) {
	chunks := make([]pipeline.Chunk, len(r.sessions))
	for i, x := range r.sessions {
		chunks[i] = pipeline.Chunk{Session: x, Tokens: shape.news[i], Draft: shape.draft}
	}
	st, err := r.engine.Begin(r.ctx, chunks...)
	switch {
	case err != nil:
	case r.fill == nil || r.filled[st.Size()]:
		err = probe.ReuseInputs(st)
	default:
		if err = r.fill(st); err == nil {
			r.filled[st.Size()] = true
		}
	}
	if err != nil {
		return nil, errors.Join(err, st.Abort())
	}
	return st, nil
}

// step runs a step, and the drafts after it, and says what they took; look, unless nil, gets the
// times of each.
func (r *engineRun) step(look func(lists [][]vk.Section) error) (host, all time.Duration, err error) {
	var lists [][]vk.Section
	for _, shape := range r.shapes() {
		h, a, err := r.one(shape, func(st *pipeline.Step) error {
			if look == nil {
				return nil
			}
			list, err := st.Times()
			lists = append(lists, list)
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		host, all = host+h, all+a
		if shape.draft || r.aborts || r.rejects == 0 {
			continue
		}
		begin := time.Now()
		for _, s := range r.sessions {
			if err := s.Truncate(s.Len() - r.rejects); err != nil {
				return 0, 0, err
			}
		}
		took := time.Since(begin)
		host, all = host+took, all+took
	}
	if look != nil {
		err = look(lists)
	}
	return host, all, err
}

// took returns the sum of the times of steps.
func took(lists [][]vk.Section) (ns float64) {
	for _, list := range lists {
		for _, x := range list {
			ns += x.NS
		}
	}
	return ns
}

// one runs a step and says what it took; look is called before it ends.
func (r *engineRun) one(shape stepShape, look func(*pipeline.Step) error) (host, all time.Duration, err error) {
	begin := time.Now()
	st, err := r.begin(shape)
	if err != nil {
		return 0, 0, err
	}
	defer st.Abort()
	if err := r.submit(shape, st); err != nil {
		return 0, 0, err
	}
	submitted := time.Now()
	if err := st.Wait(r.ctx); err != nil {
		return 0, 0, err
	}
	waited := time.Now()
	if err := look(st); err != nil {
		return 0, 0, err
	}
	looked := time.Now()
	if r.aborts {
		err = st.Abort()
	} else {
		err = st.Commit()
	}
	if err != nil {
		return 0, 0, err
	}
	ended := time.Now()
	host = submitted.Sub(begin) + ended.Sub(looked)
	return host, host + waited.Sub(submitted), nil
}

func (r *engineRun) submit(shape stepShape, st *pipeline.Step) error {
	if !r.apart {
		return st.Submit()
	}
	for i := r.first(shape); i < r.engine.Layers(); i++ {
		if err := st.SubmitLayer(i); err != nil {
			return err
		}
	}
	return nil
}

// wakeSteps is the time that steps run before they are timed, once they are recorded. Recording
// leaves the device idle for half a second each time, and an H100 takes 0.3 s of steps of
// a quarter of the speed to come to its full clock again.
const wakeSteps = time.Second

// wakeUp runs steps until they are recorded for good and the device has its full clock. Sessions
// stay as they were.
func (r *engineRun) wakeUp(warmup int) error {
	defer func(aborts bool) { r.aborts = aborts }(r.aborts)
	r.aborts = true
	gpu := !slow(r.dev)
	var start time.Time
	for n := 0; n < max(recordings, warmup) || gpu && time.Since(start) < wakeSteps; n++ {
		if n == recordings-1 {
			start = time.Now()
		}
		if _, _, err := r.step(nil); err != nil {
			return err
		}
		r.p.Advance(int64(n+1), int64(max(recordings, warmup, n+1)))
	}
	return nil
}

// OpTime is the time of one operation of a layer or step, by its section.
type OpTime struct {
	Name       string  `json:"op"`
	Layer      string  `json:"layer,omitempty"` // kind of the layer, in a step
	Time       Time    `json:"time"`
	Dispatches int     `json:"dispatches"`
	Barriers   int     `json:"barriers"`
	Work       Work    `json:"work"`
	Limit      float64 `json:"limit_us"` // what the bytes or the products need at least
	Share      float64 `json:"share"`    // of the limit, of Time.Median
}

// opKey is an operation of layers of a kind.
type opKey struct{ kind, op string }

// outside is the kind of sections that belong to no layer.
const outside = "all"

// sections times the operations, and adds up those of layers of a kind; it
// returns them as they were recorded, too.
func (r *engineRun) sections(reps, warmup int, l Limits) (ops []OpTime, recorded [][]vk.Section, err error) {
	if err := r.engine.SetTiming(r.ctx, pipeline.TimingSections); err != nil {
		return nil, nil, err
	}
	if err := r.wakeUp(warmup); err != nil {
		return nil, nil, err
	}
	var order []opKey
	samples, counts, most := map[opKey][]float64{}, map[opKey]vk.Section{}, -1
	for n := range reps {
		r.p.Advance(int64(n), int64(reps))
		sums, own, barriers := map[opKey]float64{}, map[opKey]vk.Section{}, 0
		if _, _, err := r.step(func(lists [][]vk.Section) error {
			recorded = fewestWaits(recorded, lists)
			order = order[:0]
			for i, list := range lists {
				r.split(r.shapes()[i], list, func(_ int, k opKey, x vk.Section) {
					if !slices.Contains(order, k) {
						order = append(order, k)
					}
					c := own[k]
					own[k] = vk.Section{Dispatches: c.Dispatches + x.Dispatches, Barriers: c.Barriers + x.Barriers}
					sums[k], barriers = sums[k]+x.NS, barriers+x.Barriers
				})
			}
			if barriers > most {
				counts, most = own, barriers
			}
			return nil
		}); err != nil {
			return nil, nil, err
		}
		for k, v := range sums {
			samples[k] = append(samples[k], v)
		}
	}
	works := r.works()
	for _, k := range order {
		w := workOf(k.op, func(op string) Work { return works[opKey{k.kind, op}] })
		ops = append(ops, opTime(k, counts[k], samples[k], w, l))
	}
	return ops, recorded, nil
}

func opTime(k opKey, sec vk.Section, ns []float64, w Work, l Limits) OpTime {
	t := OpTime{Name: k.op, Layer: k.kind, Time: summarise(ns), Dispatches: sec.Dispatches, Barriers: sec.Barriers, Work: w, Limit: w.Limit(l)}
	t.Share = t.Limit / t.Time.Median
	return t
}

// split finds the layer that each section of a step belongs to, -1 for what is in front of the
// first: a layer begins with its first projection, or with another one in front of it. What all
// layers share is recorded in front of the first one and within.
func (r *engineRun) split(shape stepShape, list []vk.Section, f func(layer int, k opKey, x vk.Section)) {
	first := r.first(shape)
	layer, begun := first-1, false
	for i, x := range list {
		if x.Name == "between" && x.Dispatches == 0 {
			continue // after the last layer, where nothing is
		}
		before := i+1 < len(list) && x.Name == gateSection && list[i+1].Name == firstSection
		if before || x.Name == firstSection && !begun {
			layer++
		}
		begun = before
		k := opKey{outside, "lengths, tables, index lists"}
		if layer >= first && layer < len(r.cfg.Layers) && x.Name != sharedSection {
			k = opKey{kindOf(r.cfg.Layers[layer].LayerSpec), x.Name}
		}
		f(layer, k, x)
	}
}

// firstSection is the operation that a layer begins with, gateSection the one that may be
// recorded in front of it, and sharedSection what layers share.
const firstSection, gateSection, sharedSection = "wq_a|wkv", "compressor.wkv|wgate", "step"

// layerWork returns the work of a layer's operations in a step.
func (r *engineRun) layerWork(shape stepShape, layer int) map[string]Work {
	return layerWork(r.cfg, r.cfg.Layers[layer].LayerSpec, r.weights[layer], shape)
}

// works returns the work of all layers by kind and operation.
func (r *engineRun) works() map[opKey]Work {
	sum := map[opKey]Work{}
	for _, shape := range r.shapes() {
		for i := r.first(shape); i < len(r.weights); i++ {
			for op, work := range r.layerWork(shape, i) {
				k := opKey{kindOf(r.cfg.Layers[i].LayerSpec), op}
				sum[k] = sum[k].plus(work)
			}
		}
	}
	return sum
}

// workOf returns the work of a section, which several operations may share: "wo_a, wo_b".
func workOf(section string, of func(op string) Work) (w Work) {
	for _, op := range opsOf(section) {
		w = w.plus(of(op))
	}
	return w
}
