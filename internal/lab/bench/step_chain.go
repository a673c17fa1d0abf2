package bench

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// chain is the least that a model has between its layers of attention: the output of a
// layer is added to a residual, and its norm enters the next one. It is recorded while it
// is on; else nothing is, and all layers have the same input, which no other writes.
type chain struct {
	on     bool
	skip   int // a place that is left out, for a test of the check; 0: none
	kernel *vk.Kernel
	main   int // layers that do not draft
	layers int
	width  int

	start tensor.Tensor // [T, width] bf16: what the residual begins with
	x     tensor.Tensor // [T, width] f32: the residual
	final tensor.Tensor // [T, width] bf16: its norm after the last layer
}

type benchResidualPush struct{ Width, First uint32 }

// open makes the kernel and its memory for steps of `tokens` tokens.
func (c *chain) open(dev *vk.Device, main, layers, tokens, width int) error {
	var err error
	if c.kernel, err = kernel(dev, "bench_residual", vk.KernelSpec{
		Bindings: []vk.Access{vk.Read, vk.ReadWrite, vk.Write}, PushSize: 8}); err != nil {
		return err
	}
	c.main, c.layers, c.width = main, layers, width
	for _, t := range []struct {
		to *tensor.Tensor
		dt tensor.DType
	}{{&c.start, tensor.BF16}, {&c.x, tensor.F32}, {&c.final, tensor.BF16}} {
		if *t.to, err = tensor.New(dev, "between layers", t.dt, tokens, width); err != nil {
			return err
		}
	}
	return nil
}

func (c *chain) close() error {
	var err error
	for _, t := range []tensor.Tensor{c.start, c.x, c.final} {
		if !t.IsZero() {
			err = errors.Join(err, t.Close())
		}
	}
	return err
}

// record is EngineOptions.Between.
func (c *chain) record(rec *vk.Recorder, at pipeline.Between) error {
	if !c.on || c.skip > 0 && at.Layer == c.skip || !at.Draft && at.Layer > c.main {
		return nil // all layers that draft have one input of the context
	}
	first := 0
	if at.Draft {
		first = c.main
	}
	from, to, push := at.Output, at.Input, benchResidualPush{Width: uint32(c.width)}
	if at.Layer == first {
		from, push.First = c.start.Rows(0, at.Tokens), 1
	}
	if at.Layer == c.layers {
		to = c.final.Rows(0, at.Tokens)
	}
	return rec.Dispatch(vk.Dispatch{Kernel: c.kernel, Groups: [3]uint32{uint32(at.Tokens), 1, 1},
		Bind: []vk.View{from.View(), c.x.Rows(0, at.Tokens).View(), to.View()}, Push: vk.Bytes(&push)})
}

// checkChain checks what is between the layers of a step, and of the drafts after it.
func (s *stepRun) checkChain() (ok bool, err error) {
	s.chain.on = true
	defer func() { s.chain.on = false }()
	err = s.engine.SetTiming(s.ctx, pipeline.TimingOff) // records anew
	for _, shape := range s.shapes() {
		if err == nil {
			err = s.checkSums(shape)
		}
	}
	return s.row.Status == "ok", err
}

// checkSums demands that the residual of a step in one submission is the sum of what the
// layers give one by one, added up by the host, bit for bit, and that its norm is one.
func (s *stepRun) checkSums(shape stepShape) error {
	c := &s.chain
	st, err := s.begin(shape)
	if err != nil {
		return err
	}
	defer st.Abort()
	n, first, end, last := shape.tokens(), s.first(shape), c.layers, c.final
	if !shape.draft && c.main < c.layers {
		end, last = c.main, st.Input(c.main)
	}
	x, err := s.sumLayers(st, n, first, end)
	if err != nil {
		return err
	}
	if err := st.Run(s.ctx); err != nil {
		return err
	}
	got, err := fetch[float32](s.ctx, c.x.Rows(0, n))
	if err != nil {
		return err
	}
	norm, err := fetch[uint16](s.ctx, last.Rows(0, n))
	if err != nil {
		return err
	}
	different := 0
	for i, v := range x {
		if math.Float32bits(v) != math.Float32bits(got[i]) {
			different++
		}
	}
	const bound = 1.0 / 256 // twice what rounding to bf16 takes away
	switch worst := normError(x, norm, c.width); {
	case different > 0:
		s.judge("between layers", false, float64(different), 0, fmt.Sprintf("%d of %d sums over the layers differ",
			different, len(x)))
	case !(worst <= bound):
		s.judge("between layers", false, worst, bound, fmt.Sprintf("a norm is off by %.3g of it", worst))
	}
	return nil
}

// sumLayers runs layers of a step one by one and returns what the residual of its n tokens has to
// be.
func (s *stepRun) sumLayers(st *pipeline.Step, n, first, end int) ([]float32, error) {
	v, err := fetch[uint16](s.ctx, s.chain.start.Rows(0, n))
	if err != nil {
		return nil, err
	}
	x := make([]float32, len(v))
	for layer := first; ; layer++ {
		for i := range x {
			x[i] += numfmt.BF16Decode(v[i])
		}
		if layer == end {
			return x, nil
		}
		if err := st.RunLayer(s.ctx, layer); err != nil {
			return nil, err
		}
		if v, err = fetch[uint16](s.ctx, st.Output(layer).Rows(0, n)); err != nil {
			return nil, err
		}
	}
}

// normError returns how far a value is from the norm of its row at most, relative to it or to a
// thousandth. A row of zeros, or with what is no number, is far off.
func normError(x []float32, norm []uint16, width int) (worst float64) {
	for at := 0; at < len(x); at += width {
		sum := 0.0
		for _, v := range x[at : at+width] {
			sum += float64(v) * float64(v)
		}
		if !(sum > 0) || math.IsInf(sum, 0) {
			return math.Inf(1)
		}
		scale := 1 / math.Sqrt(sum/float64(width)+1e-6)
		for i := at; i < at+width; i++ {
			want := float64(x[i]) * scale
			if e := math.Abs(float64(numfmt.BF16Decode(norm[i]))-want) / max(math.Abs(want), 1e-3); !(e <= worst) {
				worst = e
			}
		}
	}
	return worst
}

// fillInputs gives the step hidden states, which stay for all steps: those that enter the
// first layer of a chain, and all layers where there is none.
func (s *stepRun) fillInputs(st *pipeline.Step) error {
	v := normals(newRand(s.o.Seed), st.Input(0).Len())
	return errors.Join(st.Input(0).Upload(s.ctx, numfmt.Bytes(v)), s.chain.start.Rows(0, st.Size()).Upload(s.ctx, numfmt.Bytes(v)))
}

// timeChained fills in what a step takes whose layers depend on each other, in one
// submission.
func (s *stepRun) timeChained() error {
	s.chain.on = true
	defer func() { s.chain.on = false }()
	if err := s.engine.SetTiming(s.ctx, pipeline.TimingWhole); err != nil {
		return err
	}
	return s.timeWhole(&s.row.Chained, &s.row.ChainedHost, &s.row.ChainedWall, func(vk.Section) {})
}

// timeWhole wakes the device and times steps, by the sum of what their sections take. look gets the
// launches and barriers of the first of them, of all layers.
func (s *stepRun) timeWhole(device, host, latency *Time, look func(steps vk.Section)) error {
	if err := s.wakeUp(s.o.Warmup); err != nil {
		return err
	}
	var sums, hosts, walls []float64
	for range s.o.Reps {
		var sum float64
		h, l, err := s.step(func(lists [][]vk.Section) error {
			sum = took(lists)
			var steps vk.Section
			for _, list := range lists {
				steps.Dispatches, steps.Barriers = steps.Dispatches+list[0].Dispatches, steps.Barriers+list[0].Barriers
			}
			look(steps)
			return nil
		})
		if err != nil {
			return err
		}
		sums, hosts, walls = append(sums, sum), append(hosts, nanoseconds(h)), append(walls, nanoseconds(l))
	}
	those := awake(hosts, sums)
	*device, *host, *latency = summariseThose(sums, those), summariseThose(hosts, those), summariseThose(walls, those)
	return nil
}

// awake says which steps are as a server's that decodes without a pause: all but those that began
// after a pause of the host, as where it records a step anew. Meanwhile the clocks of a GPU fall
// asleep, and its next steps are slow until one is as fast as most are.
func awake(host, device []float64) []bool {
	const pause, slow = 10, 1.25 // times the median
	usual, fast := pause*quantile(host, 0.5), slow*quantile(device, 0.5)
	list, asleep := make([]bool, len(host)), false
	for i := range list {
		paused := host[i] > usual
		asleep = paused || asleep && device[i] > fast
		list[i] = !asleep
	}
	return list
}

func nanoseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) }
