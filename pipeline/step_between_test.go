package pipeline_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// residual stands for the rest of a model: a kernel of its own that adds a layer's output to x and
// norms the sum for the next layer.
type residual struct {
	kernel *vk.Kernel
	width  int
	x      tensor.Tensor    // [MaxStep, width] f32
	final  tensor.Tensor    // [MaxStep, width] bf16: normed, after the last layer
	fail   map[int]error    // by place
	places []int            // where it was asked to record
	last   pipeline.Between // the place that it was asked for last
	device *vk.Device       // of all that
}

func (x *sessions) residual(t testing.TB) *residual {
	t.Helper()
	code := must[shaders.Kernel](t)(kernels.Get("bench_residual"))
	r := &residual{width: x.cfg.Hidden, device: x.dev}
	r.kernel = must[*vk.Kernel](t)(x.dev.Kernel(vk.KernelSpec{Name: code.Name, SPIRV: code.SPIRV,
		Bindings: []vk.Access{vk.Read, vk.ReadWrite, vk.Write}, PushSize: 8, Divisible: true}))
	r.x = must[tensor.Tensor](t)(tensor.New(x.dev, "residual", tensor.F32, sessionOptions().MaxStep, r.width))
	r.final = must[tensor.Tensor](t)(tensor.New(x.dev, "residual", tensor.BF16, sessionOptions().MaxStep, r.width))
	t.Cleanup(func() {
		assert.NoError(t, errors.Join(r.x.Close(), r.final.Close()))
	})
	return r
}

func (r *residual) record(rec *vk.Recorder, at pipeline.Between) error {
	r.places, r.last = append(r.places, at.Layer), at
	if err := r.fail[at.Layer]; err != nil {
		return err
	}
	from, to := at.Output, at.Input
	push := struct{ Width, First uint32 }{Width: uint32(r.width)}
	if from.IsZero() {
		from, push.First = at.Input, 1
	}
	if to.IsZero() {
		to = r.final.Rows(0, at.Tokens)
	}
	return rec.Dispatch(vk.Dispatch{Kernel: r.kernel, Groups: [3]uint32{uint32(at.Tokens), 1, 1},
		Bind: []vk.View{from.View(), r.x.Rows(0, at.Tokens).View(), to.View()}, Push: vk.Bytes(&push)})
}

// submit runs the kernel at a place, in a submission of its own.
func (r *residual) submit(t testing.TB, at pipeline.Between) {
	t.Helper()
	rec := must[*vk.Recorder](t)(r.device.NewRecorder())
	defer rec.Close()
	require.NoError(t, r.record(rec, at))
	c := must[*vk.Commands](t)(rec.End())
	require.NoError(t, errors.Join(c.Run(t.Context()), c.Close()))
}

// results returns what the kernel left of a number of tokens.
func (r *residual) results(t testing.TB, n int) chainResult {
	t.Helper()
	return chainResult{x: testkit.Download[float32](t, r.x.Rows(0, n)), final: testkit.Download[uint16](t, r.final.Rows(0, n))}
}

// chainSteps are steps of two sessions: chunks of prompts, single tokens, drafts, and
// steps with tokens of both.
var chainSteps = [][2]int{{40, 0}, {0, 33}, {1, 0}, {40, 0}, {1, 3}, {0, 1}, {30, 1}}

// chainResult holds the results of a step, and the picks of each layer that has an indexer.
type chainResult struct {
	x     []float32
	final []uint16
	picks [][]int32
}

// picks returns those of a layer for the first n tokens of a step; none without an indexer.
func picks(t testing.TB, st *pipeline.Step, layer, n int) (list [][]int32) {
	t.Helper()
	if x := st.TopK(layer); !x.IsZero() {
		list = append(list, testkit.Download[int32](t, x.Rows(0, n)))
	}
	return list
}

// chain takes the steps through an engine: run is given each, with the hidden states that
// enter layer 0, row by row, and returns the layers' picks.
func (x *sessions) chain(t testing.TB, e *pipeline.Engine, r *residual, run func(*pipeline.Step, []float32) [][]int32) (all []chainResult) {
	t.Helper()
	s := []*pipeline.Session{must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())}
	for _, step := range chainSteps {
		var chunks []pipeline.Chunk
		var in []float32
		for k, n := range step {
			if n > 0 {
				chunks = append(chunks, pipeline.Chunk{Session: s[k], Tokens: n})
				in = append(in, x.tokens(s[k].Len(), s[k].Len()+n)...)
			}
		}
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
		defer st.Abort() // does nothing after Commit
		picks := run(st, in)
		require.NoError(t, st.Commit())
		all = append(all, r.results(t, step[0]+step[1]))
		all[len(all)-1].picks = picks
	}
	for _, s := range s {
		assert.NoError(t, s.Close())
	}
	return all
}

// setChain gives layer 0 of a step its hidden states from host memory.
func setChain(t testing.TB, st *pipeline.Step, in []float32, width int) {
	t.Helper()
	for chunk := 0; ; chunk++ {
		first, end := st.Rows(chunk)
		if end == 0 {
			return
		}
		require.NoError(t, st.SetInput(0, chunk, in[first*width:end*width]))
	}
}

func sameChain(t testing.TB, got, want []chainResult) {
	t.Helper()
	for i := range want {
		assert.True(t, slices.Equal(got[i].x, want[i].x) && slices.Equal(got[i].final, want[i].final), "step %d: other bits", i)
		assert.True(t, slices.EqualFunc(got[i].picks, want[i].picks, slices.Equal), "step %d: other picks", i)
	}
}

// TestStepBetween demands that a whole model in one submission, with a kernel of the
// caller's between the layers, gives the bits of the same layers and kernels submitted
// one by one, and leaves the picks of each layer.
func TestStepBetween(t *testing.T) {
	v4 := sessionModel{"v4", func() model.Config { return fakemodel.Config(4, 0, 128, 4) }, model.RecordsV4}
	for _, of := range []*sessionModel{&v4, &v41Sessions} {
		t.Run(of.name, func(t *testing.T) {
			if of != &v4 && os.Getenv("VKMLA_TEST_FULL") != "1" {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			newModel(t, testkit.Device(t), of).between(t)
		})
	}
}

func (x *sessions) between(t *testing.T) {
	own := x.residual(t)
	o := sessionOptions()
	o.LayerByLayer = true
	want := x.chain(t, x.engine(t, o), own, func(st *pipeline.Step, in []float32) (list [][]int32) {
		testkit.Put(t, st.Input(0).Rows(0, len(in)/x.cfg.Hidden), numfmt.BF16EncodeSlice(nil, in))
		own.submit(t, pipeline.Between{Tokens: st.Size(), Input: st.Input(0)})
		for i := range x.layers {
			require.NoError(t, st.RunLayer(t.Context(), i))
			own.submit(t, pipeline.Between{Layer: i + 1, Tokens: st.Size(), Output: st.Output(i), Input: st.Input(i + 1)})
			list = append(list, picks(t, st, i, len(in)/x.cfg.Hidden)...)
		}
		return list
	})
	last := want[len(want)-1].picks
	require.NotEqual(t, last[0], last[1], "layers with the same picks")
	for i := range want[1:] {
		require.False(t, slices.Equal(want[i].final, want[i+1].final), "steps that are alike")
	}
	for name, budget := range map[string]time.Duration{"one": -1, "budget": 0, "tiny": 1, "growth": -1, "layers": -1} {
		t.Run(name, func(t *testing.T) {
			r, o := x.residual(t), sessionOptions()
			if o.Between = r.record; name == "growth" {
				o.CacheBytes = 3 << 19
			}
			e := x.engine(t, o)
			if budget != 0 {
				e.SetBudget(budget)
			}
			before, _ := e.Pages()
			sameChain(t, x.chain(t, e, r, func(st *pipeline.Step, in []float32) (list [][]int32) {
				if name == "budget" { // inputs on the device
					testkit.Put(t, st.Input(0).Rows(0, len(in)/x.cfg.Hidden), numfmt.BF16EncodeSlice(nil, in))
				} else {
					setChain(t, st, in, x.cfg.Hidden)
				}
				if name != "layers" {
					require.NoError(t, st.Run(t.Context()))
				}
				for i := range x.layers {
					if name == "layers" {
						require.NoError(t, st.RunLayer(t.Context(), i))
					}
					list = append(list, picks(t, st, i, len(in)/x.cfg.Hidden)...)
				}
				return list
			}), want)
			x.checkRecorded(t, name, e, r, before)
		})
	}
}

// checkRecorded demands that steps were divided, recorded and grown as a case of
// TestStepBetween is meant to.
func (x *sessions) checkRecorded(t *testing.T, name string, e *pipeline.Engine, r *residual, before any) {
	t.Helper()
	const sizes = 4 // of steps: 40, 1, 4 and 32
	places := len(x.layers) + 1
	want := places * sizes
	assert.False(t, len(r.places) < want || (name == "one" || name == "layers") && len(r.places) != want,
		"recorded at %d places, want %d", len(r.places), want)
	for i, place := range r.places {
		if name != "layers" && place != i%places {
			t.Errorf("places %v", r.places)
			break
		}
	}
	parts, _ := e.Submissions(1)
	switch name {
	case "one":
		assert.Equal(t, 1, parts, "submissions")
	case "tiny":
		assert.GreaterOrEqual(t, parts, 40)
		assert.NotEqual(t, 0, e.Divided())
	case "growth":
		after, _ := e.Pages()
		assert.False(t, before == any(after) || len(r.places) <= sizes*places,
			"pages %v, then %v; recorded at %d places", before, after, len(r.places))
	}
}

// TestStepBetweenEnds demands that a step gives the same after anything that may end it or its
// recording.
func TestStepBetweenEnds(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	r, o := x.residual(t), sessionOptions()
	o.Between = r.record
	e := x.engine(t, o)
	e.SetBudget(-1)
	const n = 3
	in := x.tokens(0, n)
	start := func(t *testing.T, s *pipeline.Session) *pipeline.Step {
		t.Helper()
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
		setChain(t, st, in, x.cfg.Hidden)
		return st
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("nothing to be recorded")
	var want []chainResult
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, *pipeline.Step)
	}{
		{"nothing", func(*testing.T, *pipeline.Step) {}},
		{"run before", func(t *testing.T, st *pipeline.Step) {
			assert.NoError(t, st.Run(t.Context()))
		}},
		{"begun one by one", func(t *testing.T, st *pipeline.Step) {
			assert.NoError(t, errors.Join(st.RunLayer(t.Context(), 0), st.RunLayer(t.Context(), 1)))
		}},
		{"aborted", func(t *testing.T, st *pipeline.Step) {
			assert.NoError(t, errors.Join(st.Submit(), st.Abort()))
		}},
		{"cancelled", func(t *testing.T, st *pipeline.Step) {
			assert.ErrorIs(t, interrupted(st, cancelled), context.Canceled)
		}},
		{"refused", func(t *testing.T, st *pipeline.Step) {
			for place, where := range []string{"in front of layer 0", "in front of layer 1", "in front of layer 2", "behind layer 2"} {
				r.fail = map[int]error{place: broken}
				err := errors.Join(e.Untear(), st.Submit())
				require.ErrorIs(t, err, broken)
				require.Equal(t, "pipeline: submit step: EngineOptions.Between, "+where+": nothing to be recorded", err.Error())
				assert.ErrorIs(t, st.Commit(), vk.ErrArgument)
			}
			r.fail = nil
		}},
		{"torn", func(t *testing.T, st *pipeline.Step) {
			require.NoError(t, errors.Join(st.Run(t.Context()), e.Tear(t.Context())))
			require.Error(t, st.Run(t.Context()), "a torn step ran")
			assert.Error(t, st.Commit(), "a torn step ran")
			assert.NoError(t, e.Untear())
		}},
		{"torn at a layer", func(t *testing.T, st *pipeline.Step) {
			for _, layer := range []int{0, 1, 2, 0, 1} {
				require.NoError(t, st.RunLayer(t.Context(), layer))
			}
			err := e.Tear(t.Context())
			require.NoError(t, err, "a torn layer ran")
			require.Error(t, st.SubmitLayer(2), "a torn layer ran")
			assert.NoError(t, e.Untear())
			// What is in front of it may have been added already.
			says(t, st.SubmitLayer(2), "pipeline: submit step: layer: got 2, want 0")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := must[*pipeline.Session](t)(e.Open())
			st := start(t, s)
			defer func() { st.Abort() }() // does nothing but after a failure: the next case waits for it
			c.spoil(t, st)
			err := st.Run(t.Context())
			if errors.Is(err, vk.ErrClosed) { // it has ended
				st = start(t, s)
				err = st.Run(t.Context())
			}
			require.NoError(t, errors.Join(err, st.Commit(), s.Close()))
			got := []chainResult{r.results(t, n)}
			if want == nil {
				want = got
			}
			sameChain(t, got, want)
		})
	}
}

// TestStepBetweenSides checks what a step with the caller's kernels takes from the host and gives
// to it, what those kernels are told, and the errors.
func TestStepBetweenSides(t *testing.T) {
	x := newModel(t, testkit.Device(t), &v4Sessions)
	r, o := x.residual(t), sessionOptions()
	o.Between, o.LayerByLayer = r.record, true
	_, err := pipeline.NewEngine(t.Context(), x.dev, x.cfg, x.layers, o)
	says(t, err, "pipeline: new engine: LayerByLayer: got true, and Between, want only one of them")
	o.LayerByLayer = false
	e := x.engine(t, o)
	e.SetBudget(-1)
	r.fail = map[int]error{1: errors.New("not now")}
	err = e.Prepare(t.Context(), 3)
	assert.EqualError(t, err, "pipeline: prepare: EngineOptions.Between, in front of layer 1: not now")
	r.fail = nil
	other, s := must[*pipeline.Session](t)(e.Open()), must[*pipeline.Session](t)(e.Open())
	require.NotEqual(t, s.Number(), other.Number())
	assert.Equal(t, 1, s.Number())
	const n = 3
	hidden, width := x.tokens(0, n), x.cfg.Hidden
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
	defer st.Abort()
	says(t, st.SetInput(1, 0, hidden), "pipeline: set input: layer: got 1, want 0: EngineOptions.Between makes the inputs of the others")
	setChain(t, st, hidden, width)
	says(t, st.SubmitLayer(1), "pipeline: submit step: layer: got 1, want 0")
	require.NoError(t, errors.Join(st.RunLayer(t.Context(), 0), st.ReadOutput(0, 0, make([]float32, n*width))))
	says(t, st.SubmitLayer(2), "pipeline: submit step: layer: got 2, want 0 or 1, the next one")
	require.NoError(t, st.Run(t.Context()))
	says(t, st.SubmitLayer(1), "pipeline: submit step: layer: got 1, want 0")
	says(t, st.ReadOutput(0, 0, make([]float32, n*width)), "pipeline: read output: layer: got 0, whose result is not in host memory, want one that just ran with inputs from there")
	out, picks := make([]float32, n*width), make([]int32, n*e.TopK())
	require.NoError(t, errors.Join(st.ReadOutput(2, 0, out), st.ReadTopK(0, 0, picks)))
	at := r.last
	assert.True(t, at.Layer == 3 && at.Tokens == st.Size() && at.Input.IsZero() &&
		at.Output.View() == st.Output(2).View(), "behind the last layer: %+v", at)
	for name, c := range map[string]struct {
		x    tensor.Tensor
		want []int32
	}{
		"QueryStart": {at.QueryStart, []int32{0, 0, n, n, n}}, "SeqLens": {at.SeqLens, []int32{0, n, 0, 0}},
		"TokenToReq": {at.TokenToReq, []int32{1, 1, 1, 0}}, "Positions": {at.Positions, []int32{0, 1, 2, 0}},
	} {
		got := testkit.Download[int32](t, c.x)
		assert.True(t, slices.Equal(got, c.want), "%s %v, want %v", name, got, c.want)
	}
	assert.Equal(t, []byte{1, 1, 1, 0}, testkit.Download[byte](t, at.IsValid), "IsValid")
	assert.NoError(t, st.Abort())
	_, err = s.Append(t.Context(), [][]float32{hidden, hidden, hidden})
	assert.ErrorIs(t, err, vk.ErrArgument)
	places := len(r.places)
	got := must[[]pipeline.Appended](t)(s.Append(t.Context(), [][]float32{hidden}))
	require.Len(t, got, 3, "appended tokens give something else")
	assert.True(t, got[0].Out == nil && slices.Equal(got[2].Out, out) && slices.Equal(got[0].TopK, picks) &&
		len(r.places) == places, "appended tokens give something else")
	require.NoError(t, errors.Join(s.Truncate(0), e.SetTiming(t.Context(), pipeline.TimingOff),
		failure(s.Append(t.Context(), [][]float32{hidden}))),
		"places after %d", places)
	assert.Equal(t, places+4, len(r.places), "places after %d", places)
	x.betweenTimes(t, e, s, hidden)
}

// betweenTimes demands that what is recorded between layers is timed, under its name.
func (x *sessions) betweenTimes(t *testing.T, e *pipeline.Engine, s *pipeline.Session, hidden []float32) {
	t.Helper()
	require.NoError(t, e.SetTiming(t.Context(), pipeline.TimingSections))
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: len(hidden) / x.cfg.Hidden}))
	defer st.Abort()
	setChain(t, st, hidden, x.cfg.Hidden)
	require.NoError(t, st.Run(t.Context()))
	launches := 0
	for _, section := range must[[]vk.Section](t)(st.Times()) {
		if section.Name == "between" {
			launches += section.Dispatches
		}
	}
	assert.Equal(t, len(x.layers)+1, launches, "launches between layers")
}
