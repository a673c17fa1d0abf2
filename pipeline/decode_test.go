package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// decodeCase is a recording and the steps that it is submitted for.
type decodeCase struct {
	name                            string
	ratio, tokens, requests, maxLen int
	layers                          int
	bare                            bool // neither sink nor LSE
	resize                          func(s *shape)
	steps                           [][]request
}

var decodeCases = []decodeCase{
	{name: "C4A, one token", ratio: 4, tokens: 1, requests: 1, maxLen: 700, layers: 1,
		steps: [][]request{{{300, 1}}, {{1, 1}}, {{641, 1}}}},
	{name: "C4A, two tokens", ratio: 4, tokens: 2, requests: 2, maxLen: 300, layers: 2, bare: true,
		steps: [][]request{{{260, 2}, {9, 0}}, {{64, 1}, {3, 1}}}},
	{name: "C4A, padding and several tokens of a request", ratio: 4, tokens: 17, requests: 5, maxLen: 700, layers: 2,
		steps: [][]request{{{2, 2}, {129, 1}, {500, 5}, {65, 3}, {128, 1}}, {{1, 1}, {0, 0}, {17, 17 - 5}, {255, 3}, {131, 1}}}},
	{name: "C128A, one token", ratio: 128, tokens: 1, requests: 1, maxLen: 17000, layers: 1,
		steps: [][]request{{{1290, 1}}, {{127, 1}}, {{16896, 1}}}},
	{name: "C128A, padding and several tokens of a request", ratio: 128, tokens: 17, requests: 4, maxLen: 1700, layers: 2,
		steps: [][]request{{{128, 3}, {1, 1}, {1281, 5}, {400, 1}}, {{513, 4}, {130, 9}, {127, 2}, {257, 2}}}},
	{name: "window only", ratio: 1, tokens: 17, requests: 3, maxLen: 300, layers: 2,
		steps: [][]request{{{290, 4}, {1, 1}, {130, 7}}, {{8, 8}, {192, 1}, {0, 0}}}},
	{name: "only padding", ratio: 4, tokens: 2, requests: 2, maxLen: 300, layers: 1,
		steps: [][]request{{{100, 0}, {5, 0}}, {{0, 0}, {200, 1}}}},
	{name: "odd window and pages", ratio: 4, tokens: 17, requests: 3, maxLen: 100, layers: 1,
		resize: func(s *shape) {
			s.window, s.topK, s.win, s.comp = 5, 3, cache.Layout{Page: 3, Stride: 3*584 + 8}, cache.Layout{Page: 7, Stride: 7 * 584}
		},
		steps: [][]request{{{99, 9}, {4, 1}, {50, 2}}, {{5, 5}, {6, 6}, {64, 6}}}},
}

func (c decodeCase) shape(t testing.TB) shape {
	s := newShape(t, c.ratio, c.tokens, 5, c.requests, c.maxLen)
	if c.resize != nil {
		c.resize(&s)
		s.size()
	}
	return s
}

// A step is recorded once and submitted again and again with nothing changed but
// the content of buffers, for layers that share a Decode.
func TestDecode(t *testing.T) {
	dev, seed := testkit.Device(t), testkit.Seed(t)
	all := variants(t, dev, 5)
	for i, c := range decodeCases {
		s := c.shape(t)
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		var runs []stepRun
		for _, reqs := range c.steps {
			runs = append(runs, newRun(t, rng, s, reqs, c.layers, !c.bare))
		}
		for _, variant := range all {
			t.Run(c.name+"/"+variant, func(t *testing.T) {
				d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config(variant)))
				defer d.Close()
				if d.Variant() != variant {
					t.Fatalf("variant %s, want %s", d.Variant(), variant)
				}
				g := newGPU(t, dev, s, c.layers)
				if c.bare {
					for i := range g.layers {
						g.layers[i].Sink, g.layers[i].LSE = tensor.Tensor{}, tensor.Tensor{}
					}
				}
				cmd := g.record(dev, d)
				for _, r := range runs {
					g.run(d, cmd, r)
				}
			})
		}
	}
}

// stepRun is a step with its layers and what they have to give.
type stepRun struct {
	x      step
	layers []layer
	want   []result
}

func newRun(t *testing.T, rng *rand.Rand, s shape, reqs []request, layers int, sink bool) stepRun {
	t.Helper()
	r := stepRun{x: newStep(rng, s, reqs)}
	for range layers {
		l := newLayer(t, rng, s, r.x)
		if !sink {
			l.sink = nil
		}
		r.layers, r.want = append(r.layers, l), append(r.want, expect(t, s, r.x, l))
	}
	return r
}

// run submits a recording for a step and checks all results.
func (g *gpu) run(d *pipeline.Decode, cmd *vk.Commands, r stepRun) {
	g.t.Helper()
	g.upload(r.x, r.layers...)
	if err := cmd.Run(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	for i, want := range r.want {
		g.check(d.Variant(), i, r.x, want)
	}
	g.checkIndices(d, r.x, r.want[len(r.want)-1])
}

// The default configuration picks the best variant and a window of 128.
func TestDecodeDefaults(t *testing.T) {
	dev := testkit.Device(t)
	s := newShape(t, pipeline.RatioWindow, 1, 5, 1, 200)
	cfg := s.config("")
	cfg.Window = 0
	d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, cfg))
	defer d.Close()
	if want := variants(t, dev, 5)[0]; d.Variant() != want {
		t.Errorf("variant %s, want the best, %s", d.Variant(), want)
	}
	if win, _, _, _ := d.Indices(); !slices.Equal(win.Shape, []int{1, 128}) {
		t.Errorf("window lists %v, want [1, 128]", win.Shape)
	}
	g := newGPU(t, dev, s, 1)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 20))
	g.run(d, g.record(dev, d), newRun(t, rng, s, []request{{150, 1}}, 1, true))
}

// Two recordings that share a Decode, submitted without a wait in between.
func TestDecodeInFlight(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 23))
	s := newShape(t, pipeline.RatioC4A, 2, 5, 1, 700)
	d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
	defer d.Close()
	var gpus []*gpu
	var runs []stepRun
	var pending []*vk.Pending
	for i := range 2 {
		g, r := newGPU(t, dev, s, 2), newRun(t, rng, s, []request{{650 - 600*i, 2}}, 2, true)
		g.upload(r.x, r.layers...)
		gpus, runs = append(gpus, g), append(runs, r)
	}
	for _, g := range gpus {
		pending = append(pending, must[*vk.Pending](t)(g.record(dev, d).Submit()))
	}
	for i, p := range pending {
		if err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for j, want := range runs[i].want {
			gpus[i].check(d.Variant(), j, runs[i].x, want)
		}
	}
}

// The parts of RecordLayer, recorded one by one and in submissions of their own,
// do what it does.
func TestDecodeParts(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 21))
	for _, ratio := range []int{1, 4, 128} {
		s := newShape(t, ratio, 2, 5, 1, 300)
		d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
		defer d.Close()
		g := newGPU(t, dev, s, 1)
		x := newStep(rng, s, []request{{280, 2}})
		l := newLayer(t, rng, s, x)
		g.upload(x, l)
		for _, part := range []func(*vk.Recorder) error{
			func(rec *vk.Recorder) error { return d.RecordStep(rec, g.step) },
			func(rec *vk.Recorder) error { return d.RecordInsert(rec, g.layers[0]) },
			func(rec *vk.Recorder) error { return d.RecordPicks(rec, g.step, g.layers[0]) },
			func(rec *vk.Recorder) error { return d.RecordAttend(rec, g.layers[0]) },
		} {
			g.r.Do(part)
		}
		g.check(d.Variant(), 0, x, expect(t, s, x, l))
	}
}

// A sequence decoded token by token from nothing, as a server does it: the block
// table grows, pages that left the window are recycled and come back, and every
// step reads the rows that earlier steps stored. Compressed entries appear as their
// last token arrives.
func TestDecodeSequence(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 22))
	const length = 23
	s := newShape(t, pipeline.RatioC4A, 1, 5, 1, length)
	decodeCases[len(decodeCases)-1].resize(&s)
	s.size()
	d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
	defer d.Close()
	g := newGPU(t, dev, s, 1)
	cmd := g.record(dev, d)

	pages := must[*cache.BlockPool](t)(cache.NewBlockPool(3)) // a window of 5 touches at most 3 pages of 3
	table := must[*cache.Table](t)(cache.NewTable(pages, s.win.Page))
	defer table.Close()
	x := step{queryStart: []int32{0, 1}, seqLens: []int32{0}, tokenToReq: []int32{0}, positions: []int32{0}, valid: []byte{1},
		winTable: make([]int32, s.winWidth), compTable: []int32{2, 0, -1, -1, -1}[:s.compWidth]}
	l := newLayer(t, rng, s, step{queryStart: []int32{0, 0}, seqLens: []int32{0}, positions: []int32{0}, valid: []byte{1}})
	compTable := attention.Table{Blocks: x.compTable, R: 1, W: s.compWidth, Page: s.comp.Page}
	for p := range length {
		if _, err := table.Append(1); err != nil {
			t.Fatalf("position %d: %v", p, err)
		}
		if err := table.Row(x.winTable); err != nil {
			t.Fatal(err)
		}
		x.seqLens[0], x.positions[0] = int32(p+1), int32(p)
		l.q, l.kv = normal(rng, len(l.q)), normal(rng, len(l.kv))
		if entry := (p+1)/4 - 1; (p+1)%4 == 0 {
			if err := cache.InsertRef(l.comp, s.comp, normal(rng, attention.D), []int64{int64(compTable.Slot(0, entry))}); err != nil {
				t.Fatal(err)
			}
			for j := range l.picks {
				l.picks[j] = int32(max(entry-j, -1))
			}
		}
		g.upload(x, l)
		if err := cmd.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := expect(t, s, x, l)
		g.check(d.Variant(), 0, x, want)
		l.win = want.win.Pool
		if err := table.Recycle(p + 1 - (s.window - 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Every number of heads that changes how heads are divided among workgroups.
func TestDecodeHeads(t *testing.T) {
	dev := testkit.Device(t)
	heads := []int{1, 64, 128}
	if testing.Short() {
		heads = heads[:1]
	}
	for i, h := range heads {
		t.Run(fmt.Sprint(h), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testkit.Seed(t), 30+uint64(i)))
			s := newShape(t, pipeline.RatioC4A, 2, h, 1, 300)
			d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
			defer d.Close()
			g := newGPU(t, dev, s, 1)
			g.run(d, g.record(dev, d), newRun(t, rng, s, []request{{200, 2}}, 1, true))
		})
	}
}

// The example once more, on the device whose validation messages are failures.
func TestExampleIsValid(t *testing.T) {
	if out, _ := decodeToken(t.Context(), testkit.Device(t)); out != 1.5 {
		t.Errorf("out %g, want 1.5", out)
	}
}
