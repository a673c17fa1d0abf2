package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"unsafe"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// Options say what a GPU is for.
type Options struct {
	MaxStep int                             // tokens of a step
	Reserve uint64                          // bytes of device memory that the rest of the program will take
	Beside  func(ctx context.Context) error // uploads some of it at the same time, once all fits; nil: nothing
	// Matrices: products of many tokens may use cooperative matrices, so a token's bits depend on
	// how many others are in its step.
	Matrices bool
}

// GPU is the weights of everything but attention on a device, and memory that steps work with. One
// step runs at a time.
type GPU struct {
	dev      *vk.Device
	built    built
	cfg      *weights.Config
	most     int // tokens of a step
	halves   uint32
	tiles    tiling
	matrices *matrices // nil: there are none, or bits would depend on steps
	buffers  []*vk.Buffer
	rows     []float32 // of Logits

	embed, head matrix
	norm        vk.View
	headHC      hyper
	layers      []layer
	own         int    // of layers, those of the model itself
	draft       *draft // nil: nothing drafts

	host, results vk.View // mapped: what a step is told, the logits that it gives

	// step is host's content on the device: [0] tokens, [1] wanted, [2] blocks of drafts,
	// [4+t] ids, [wantedAt+i] rows.
	step, streams, mix, parts  vk.View
	x, routedH, sharedH, headX activations
	logits, chosen, v, plan    vk.View // of the router
	routedY, sharedY, headY    vk.View
}

// hyper is a hyper-connection: fn [rows, n*D] f32, base [rows] with scale [3] or [1] after it.
type hyper struct {
	rows     int
	fn, base vk.View
}

// layer holds the parts of a layer around its attention.
type layer struct {
	attnHC, ffnHC             hyper
	attnNorm, ffnNorm         vk.View
	gate                      matrix
	bias, table               vk.View
	w1, w3, w2                matrix // of routed experts
	shared1, shared3, shared2 matrix
	largestNorm               float32 // of ffnNorm's weights
	routedFit, sharedFit      bool    // matrices may multiply these experts
}

// Most of what kernels keep in registers or shared memory.
const (
	mostStreams  = 4
	mostExperts  = 1024
	mostPerToken = 64
)

// check refuses models for which the kernels have no room.
func check(c *weights.Config) error {
	for _, f := range []struct {
		name            string
		got, most, even int
	}{
		{"hc_mult", c.Streams, mostStreams, 1}, {"n_routed_experts", c.Experts, mostExperts, 1},
		{"num_experts_per_tok", c.PerToken, mostPerToken, 1}, {"hidden_size", c.Hidden, 1 << 14, 8},
		{"moe_intermediate_size", c.Width, 1 << 16, 8},
	} {
		if f.got < 1 || f.got > f.most || f.got%f.even != 0 {
			return &model.ConfigError{Field: f.name, Got: fmt.Sprint(f.got),
				Want: fmt.Sprintf("a multiple of %d up to %d; --experts cpu takes others", f.even, f.most)}
		}
	}
	return nil
}

// New uploads weights, which may be closed afterwards. The caller closes the GPU before the device,
// and an engine that records with it before that.
//
// Errors: *MemoryError, before anything is uploaded, if the weights do not fit; *model.ConfigError
// and *model.CheckpointError for sizes and formats that the kernels do not take;
// vk.ErrMissingFeature without integer dot products; those of vk.Device.NewBuffer,
// vk.Device.UploadFrom, vk.Device.Stream and Options.Beside.
func New(ctx context.Context, dev *vk.Device, w *weights.Model, o Options) (*GPU, error) {
	g := newGPU(dev, w, o.MaxStep)
	err := g.open(ctx, w, o, func(l *loader) {
		g.weights(l, w)
		g.memory(l)
		g.drafts(l, w)
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

func newGPU(dev *vk.Device, w *weights.Model, most int) *GPU {
	return &GPU{dev: dev, built: built{dev: dev}, cfg: &w.Config, most: most, tiles: usual, layers: make([]layer, len(w.Layers)),
		own: w.Own()}
}

// open uploads what is asked for, and closes the GPU if it cannot.
func (g *GPU) open(ctx context.Context, w *weights.Model, o Options, ask func(l *loader)) error {
	if err := check(g.cfg); err != nil {
		return err
	}
	l := &loader{w: w, bounds: o.Matrices}
	ask(l)
	if err := l.check(g.dev); err != nil {
		return err
	}
	if need, free := l.need(vk.DeviceLocal)+o.Reserve, Free(g.dev); need > free {
		return &MemoryError{Need: need, Free: free}
	}
	if lacks := g.dev.Caps().Missing([]string{"shaderIntegerDotProduct"}); lacks != nil {
		return fmt.Errorf("gpu: %w: %s, which --experts cpu does without", vk.ErrMissingFeature, lacks[0])
	}
	halves, err := keepsHalves(g.dev)
	if err != nil {
		return err
	}
	g.halves = flag(halves)
	if o.Matrices && halves { // numbers below 2^-14 have to stay
		g.matrices = fitMatrices(g.dev.Caps())
	}
	if g.buffers, err = l.load(ctx, g.dev, o.Beside); err != nil {
		return errors.Join(err, g.Close())
	}
	for i := range g.layers {
		if g.matrices != nil {
			g.layers[i].fit(g.cfg)
		}
	}
	clear(g.host.Buffer.Mapped())
	return nil
}

// weights asks for memory with everything that is read.
func (g *GPU) weights(l *loader, w *weights.Model) {
	l.embedding(&g.embed, &w.Embed)
	l.matrix(&g.head, &w.Head)
	l.floats(&g.norm, "norms", w.Norm)
	l.hyper(&g.headHC, &w.HeadHC)
	for i := range w.Layers {
		from, to := &w.Layers[i], &g.layers[i]
		l.hyper(&to.attnHC, &from.AttnHC)
		l.hyper(&to.ffnHC, &from.FFNHC)
		l.floats(&to.attnNorm, "norms", from.AttnNorm)
		l.floats(&to.ffnNorm, "norms", from.FFNNorm)
		g.shared(l, w, i)
		g.routed(l, w, i)
	}
}

// shared asks for memory with the shared expert of a layer.
func (g *GPU) shared(l *loader, w *weights.Model, layer int) {
	from, to := &w.Layers[layer].Shared, &g.layers[layer]
	for _, v := range w.Layers[layer].FFNNorm {
		to.largestNorm = max(to.largestNorm, float32(math.Abs(float64(v))))
	}
	l.twins(&to.shared1, &to.shared3, []*weights.Matrix{&from.W1}, []*weights.Matrix{&from.W3})
	l.matrix(&to.shared2, &from.W2)
}

// routed asks for memory with the router and the routed experts of a layer.
func (g *GPU) routed(l *loader, w *weights.Model, layer int) {
	from, to := &w.Layers[layer], &g.layers[layer]
	l.matrix(&to.gate, &from.Gate)
	if from.Table != nil {
		l.data(&to.table, "router", 4*len(from.Table), words(from.Table))
	} else {
		l.floats(&to.bias, "router", from.Bias)
	}
	of := func(m func(*weights.Expert) *weights.Matrix) (list []*weights.Matrix) {
		for e := range from.Experts {
			list = append(list, m(&from.Experts[e]))
		}
		return list
	}
	l.twins(&to.w1, &to.w3, of(func(e *weights.Expert) *weights.Matrix { return &e.W1 }),
		of(func(e *weights.Expert) *weights.Matrix { return &e.W3 }))
	l.matrix(&to.w2, of(func(e *weights.Expert) *weights.Matrix { return &e.W2 })...)
}

// words reads 32-bit numbers as bytes.
func words(list []int32) *strings.Reader {
	data := make([]byte, 4*len(list))
	for i, v := range list {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(v))
	}
	return strings.NewReader(string(data))
}

// embedding asks for memory with rows that are read alone. They enter the streams as bf16.
func (l *loader) embedding(to *matrix, m *weights.Matrix) {
	switch m.Format {
	case weights.BF16, weights.F32:
		l.matrix(to, m)
	case weights.Blocks:
		*to = matrix{format: bf16, n: m.N, k: m.K, side: 1, experts: 1}
		l.decoded(&to.codes, "weights", bf16, m)
	default:
		l.fail(&model.CheckpointError{Tensor: m.Name, Got: m.Format.String(), Want: "BF16 or F32"})
	}
}

func (l *loader) hyper(to *hyper, h *weights.Hyper) {
	to.rows = h.Fn.N
	l.decoded(&to.fn, "hyper-connections", f32, &h.Fn)
	l.floats(&to.base, "hyper-connections", h.Base, h.Scale)
}

// Places in step and plan.
func (g *GPU) wantedAt() int { return 4 + g.most }
func (g *GPU) orderAt() int  { return 4 + 3*g.mostItems() }

// mostItems returns the most groups of pairs of a plan.
func (g *GPU) mostItems() int { return g.most * g.cfg.PerToken }

// memory asks for what steps work with.
func (g *GPU) memory(l *loader) {
	c, T := g.cfg, g.most
	n, d, pairs := c.Streams, c.Hidden, T*c.PerToken
	words := 4 + 2*T
	l.host(&g.host, "step", vk.Upload, 4*words)
	l.host(&g.results, "logits", vk.Readback, 4*T*c.Vocab)
	l.scratch(&g.step, "step", 4*words)
	l.scratch(&g.streams, "streams", 2*T*n*d)
	l.scratch(&g.mix, "streams", 4*T*(n+n*n))
	l.scratch(&g.parts, "streams", 4*T*opkit.CeilDiv(d, slice)*((2+n)*n+1))
	l.activations(&g.x, "hidden states", T, d)
	l.scratch(&g.logits, "router", 4*T*c.Experts)
	l.scratch(&g.chosen, "router", 4*pairs)
	l.scratch(&g.v, "router", 4*pairs)
	l.scratch(&g.plan, "router", 4*(g.orderAt()+pairs))
	l.activations(&g.routedH, "hidden states", pairs, c.Width)
	l.activations(&g.sharedH, "hidden states", T, c.Width)
	l.scratch(&g.routedY, "hidden states", 4*pairs*d)
	l.scratch(&g.sharedY, "hidden states", 4*T*d)
	l.activations(&g.headX, "hidden states", T, d)
	l.scratch(&g.headY, "logits", 4*T*c.Vocab)
}

// Set gives the next step its rows and their tokens, and those whose logits are wanted, in that
// order. It may be called while no step is with the device.
func (g *GPU) Set(rows, ids []int32, wanted []int) error {
	if len(ids) > g.most || len(wanted) > g.most || len(rows) != len(ids) {
		return fmt.Errorf("gpu: set: got %d tokens in %d rows, %d wanted, want at most %d", len(ids), len(rows), len(wanted), g.most)
	}
	to := g.host.Buffer.Mapped()
	put := func(at int, v int32) { binary.LittleEndian.PutUint32(to[4*at:], uint32(v)) }
	for i, id := range ids {
		if rows[i] < 0 || int(rows[i]) >= g.most || id < 0 || int(id) >= g.cfg.Vocab {
			return fmt.Errorf("gpu: set: got token %d in row %d, want 0 to %d in 0 to %d", id, rows[i], g.cfg.Vocab-1, g.most-1)
		}
		put(4+int(rows[i]), id)
	}
	put(0, int32(len(ids)))
	put(1, int32(len(wanted)))
	put(2, int32(len(ids)/max(g.cfg.DraftBlock, 1))) // in steps of drafts
	for i, k := range wanted {
		if k < 0 || k >= len(rows) {
			return fmt.Errorf("gpu: set: got wanted token %d, want 0 to %d", k, len(rows)-1)
		}
		put(g.wantedAt()+i, rows[k])
	}
	return nil
}

// Logits are the first n rows that the last step gave, [V] each. They stay until Logits is called
// again.
func (g *GPU) Logits(n int) [][]float32 {
	v, list := g.cfg.Vocab, make([][]float32, n)
	if cap(g.rows) < n*v {
		g.rows = make([]float32, n*v)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(g.results.Buffer.Mapped()))), n*v)
	var group sync.WaitGroup
	for i := range list {
		list[i] = g.rows[i*v:][:v:v]
		if i < n-1 {
			group.Go(func() { copy(list[i], all[i*v:]) })
		} else {
			copy(list[i], all[i*v:])
		}
	}
	group.Wait()
	return list
}

// Close frees the memory. Closing twice is allowed.
func (g *GPU) Close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, b := range g.buffers {
		errs = append(errs, b.Close())
	}
	g.buffers = nil
	return errors.Join(errs...)
}
