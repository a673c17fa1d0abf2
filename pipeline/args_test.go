package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// wrongArgument demands an argument error about a field, which says what is wrong
// with it.
func wrongArgument(t *testing.T, arg string, err error) {
	t.Helper()
	var wrong *vk.ArgumentError
	switch {
	case !errors.Is(err, vk.ErrArgument) || !errors.As(err, &wrong):
		t.Errorf("%s: %v, want an argument error", arg, err)
	case wrong.Arg != arg || wrong.Got == "" || wrong.Want == "":
		t.Errorf("%s: the error is about %q, got %q, want %q: %v", arg, wrong.Arg, wrong.Got, wrong.Want, err)
	}
}

func TestDecodeConfig(t *testing.T) {
	dev := testkit.Device(t)
	grid := dev.Caps().MaxWorkgroupCount
	tooMany := int(min(grid[0], grid[1], grid[2])) + 1
	limit := dev.Caps().MaxStorageBufferRange
	type change = func(*pipeline.DecodeConfig)
	for i, c := range []struct {
		ratio  int
		arg    string
		change change
	}{
		{4, "Tokens", func(c *pipeline.DecodeConfig) { c.Tokens = 0 }},
		{4, "Tokens", func(c *pipeline.DecodeConfig) { c.Tokens = -1 }},
		{4, "Tokens", func(c *pipeline.DecodeConfig) { c.Tokens = tooMany }},
		{4, "Tokens", func(c *pipeline.DecodeConfig) { c.Tokens = math.MaxInt }},
		{4, "Heads", func(c *pipeline.DecodeConfig) { c.Heads = 0 }},
		{4, "Heads", func(c *pipeline.DecodeConfig) { c.Heads = attention.MaxHeads + 1 }},
		{4, "Ratio", func(c *pipeline.DecodeConfig) { c.Ratio = 0 }},
		{4, "Ratio", func(c *pipeline.DecodeConfig) { c.Ratio = 8 }},
		{1, "Window", func(c *pipeline.DecodeConfig) { c.Window = -1 }},
		{1, "Window", func(c *pipeline.DecodeConfig) { c.Window = math.MaxInt }},
		{1, "Window", func(c *pipeline.DecodeConfig) { c.Window = int(limit/4) + 1 }},
		{4, "TopK", func(c *pipeline.DecodeConfig) { c.TopK = 0 }},
		{4, "TopK", func(c *pipeline.DecodeConfig) { c.TopK = math.MaxInt }},
		{128, "MaxLen", func(c *pipeline.DecodeConfig) { c.MaxLen = 0 }},
		{128, "MaxLen", func(c *pipeline.DecodeConfig) { c.MaxLen = math.MaxInt }},
		{1, "WindowCache.Layout", func(c *pipeline.DecodeConfig) { c.WindowCache = cache.KVCache{} }},
		{1, "WindowCache.Layout", func(c *pipeline.DecodeConfig) { c.WindowCache.Layout.Stride = 0 }},
		{1, "WindowCache.Layout", func(c *pipeline.DecodeConfig) { c.WindowCache.Layout.Page = -64 }},
		{4, "CompressedCache.Layout", func(c *pipeline.DecodeConfig) { c.CompressedCache = cache.KVCache{} }},
		{128, "CompressedCache.Layout", func(c *pipeline.DecodeConfig) { c.CompressedCache.Layout.Stride-- }},
		{4, "variant", func(c *pipeline.DecodeConfig) { c.Variant = "fastest" }},
		{4, "variant", func(c *pipeline.DecodeConfig) { c.Variant = attention.TwoPassPrefix + "fastest" }},
	} {
		cfg := newShape(t, c.ratio, 2, 5, 1, 300).config("")
		c.change(&cfg)
		d, err := pipeline.NewDecode(dev, cfg)
		if d != nil {
			t.Errorf("%d: a Decode in spite of %s", i, c.arg)
			d.Close()
		}
		wrongArgument(t, c.arg, err)
	}
	_, err := pipeline.NewDecode(nil, newShape(t, 4, 2, 5, 1, 300).config(""))
	wrongArgument(t, "dev", err)
}

// As many heads and tokens as a descriptor cannot hold the queries of are refused
// before anything is allocated; so is a workspace that base cannot bind.
func TestDecodeTooLarge(t *testing.T) {
	dev := testkit.Device(t)
	cfg := newShape(t, pipeline.RatioC4A, 1, attention.MaxHeads, 1, 300).config("")
	most := int(dev.Caps().MaxStorageBufferRange / (attention.MaxHeads * attention.D * 2))
	if grid := dev.Caps().MaxWorkgroupCount; most < int(min(grid[0], grid[1], grid[2])) {
		cfg.Tokens = most + 1
		_, err := pipeline.NewDecode(dev, cfg)
		wrongArgument(t, "Tokens", err)
	}
	cfg.Heads, cfg.TopK, cfg.Variant = 1, 1024, attention.TwoPassPrefix+attention.VariantBase
	cfg.Tokens = int(dev.Caps().MaxStorageBufferRange/attention.WorkspaceBytes(1, cfg.Window, cfg.TopK)) + 1
	if grid := dev.Caps().MaxWorkgroupCount; cfg.Tokens <= int(min(grid[0], grid[1], grid[2])) {
		_, err := pipeline.NewDecode(dev, cfg)
		wrongArgument(t, "Variant", err)
	}
}

func TestDecodeMissingFeature(t *testing.T) {
	dev := testkit.Device(t)
	lacking := 0
	for _, v := range attention.DecodeVariants {
		if attention.CanDecode(dev.Adapter(), v.Name, 5) == nil {
			continue
		}
		lacking++
		if _, err := pipeline.NewDecode(dev, newShape(t, 4, 1, 5, 1, 300).config(v.Name)); !errors.Is(err, vk.ErrMissingFeature) {
			t.Errorf("%s: %v, want a missing feature", v.Name, err)
		}
	}
	if lacking == 0 {
		t.Skip("the device has what every variant needs")
	}
}

// Without memory there is no Decode, and nothing is left allocated.
func TestDecodeOutOfMemory(t *testing.T) {
	full := errors.New("over budget")
	var refuse error
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{MemoryHook: func(uint64) error { return refuse }}))
	defer dev.Close()
	before := fmt.Sprint(dev.MemoryInUse())
	refuse = full
	if d, err := pipeline.NewDecode(dev, newShape(t, 4, 1, 5, 1, 300).config("")); !errors.Is(err, full) || d != nil {
		t.Errorf("%v, want %v", err, full)
	}
	if after := fmt.Sprint(dev.MemoryInUse()); after != before {
		t.Errorf("memory in use %s, before %s", after, before)
	}
}

// reshaped is a tensor with other dimensions, and elsewhere one that begins some
// bytes later.
func reshaped(x tensor.Tensor, dims ...int) tensor.Tensor { x.Shape = dims; return x }
func elsewhere(x tensor.Tensor, by uint64) tensor.Tensor  { x.Offset += by; return x }
func retyped(x tensor.Tensor, dt tensor.DType) tensor.Tensor {
	x.DType = dt
	return x
}

type stepChange struct {
	ratio  int // 0: all
	arg    string
	change func(*pipeline.StepArgs)
}

var stepChanges = []stepChange{
	{0, "SeqLens", func(a *pipeline.StepArgs) { *a = pipeline.StepArgs{} }},
	{0, "SeqLens", func(a *pipeline.StepArgs) { a.SeqLens = reshaped(a.SeqLens, 0) }},
	{0, "SeqLens", func(a *pipeline.StepArgs) { a.SeqLens = reshaped(a.SeqLens, 2, 1) }},
	{0, "QueryStart", func(a *pipeline.StepArgs) { a.QueryStart = tensor.Tensor{} }},
	{0, "QueryStart", func(a *pipeline.StepArgs) { a.QueryStart = a.SeqLens }},
	{0, "QueryStart", func(a *pipeline.StepArgs) { a.QueryStart = retyped(a.QueryStart, tensor.U32) }},
	{0, "TokenToReq", func(a *pipeline.StepArgs) { a.TokenToReq = tensor.Tensor{} }},
	{0, "TokenToReq", func(a *pipeline.StepArgs) { a.TokenToReq = reshaped(a.TokenToReq, 2) }},
	{0, "TokenToReq", func(a *pipeline.StepArgs) { a.TokenToReq = reshaped(a.TokenToReq, 4) }},
	{0, "IsValid", func(a *pipeline.StepArgs) { a.IsValid = tensor.Tensor{} }},
	{0, "IsValid", func(a *pipeline.StepArgs) { a.IsValid = a.TokenToReq }},
	{0, "WindowTable", func(a *pipeline.StepArgs) { a.WindowTable = tensor.Tensor{} }},
	{0, "WindowTable", func(a *pipeline.StepArgs) { a.WindowTable = reshaped(a.WindowTable, 1, a.WindowTable.Shape[1]) }},
	{0, "WindowTable", func(a *pipeline.StepArgs) { a.WindowTable = reshaped(a.WindowTable, 2, 0) }},
	{0, "WindowTable", func(a *pipeline.StepArgs) { a.WindowTable.Offset = math.MaxUint64 - 255 }},
	{4, "CompressedTable", func(a *pipeline.StepArgs) { a.CompressedTable = tensor.Tensor{} }},
	{128, "CompressedTable", func(a *pipeline.StepArgs) { a.CompressedTable = tensor.Tensor{} }},
	{4, "CompressedTable", func(a *pipeline.StepArgs) {
		a.CompressedTable = reshaped(a.CompressedTable, 1, a.CompressedTable.Shape[1])
	}},
	{128, "CompressedTable", func(a *pipeline.StepArgs) { a.CompressedTable = reshaped(a.CompressedTable, -2, -1) }},
	{128, "Positions", func(a *pipeline.StepArgs) { a.Positions = tensor.Tensor{} }},
	{128, "Positions", func(a *pipeline.StepArgs) { a.Positions = retyped(a.Positions, tensor.I64) }},
}

type layerChange struct {
	ratio  int
	arg    string
	change func(*pipeline.LayerArgs)
}

var layerChanges = []layerChange{
	{0, "KV", func(a *pipeline.LayerArgs) { *a = pipeline.LayerArgs{} }},
	{0, "KV", func(a *pipeline.LayerArgs) { a.KV = reshaped(a.KV, 2, attention.D) }},
	{0, "KV", func(a *pipeline.LayerArgs) { a.KV = retyped(a.KV, tensor.F16) }},
	{0, "Q", func(a *pipeline.LayerArgs) { a.Q = tensor.Tensor{} }},
	{0, "Q", func(a *pipeline.LayerArgs) { a.Q = reshaped(a.Q, 5, 3, attention.D) }},
	{0, "Q", func(a *pipeline.LayerArgs) { a.Q = reshaped(a.Q, 2, 5, attention.D) }},
	{0, "Out", func(a *pipeline.LayerArgs) { a.Out = tensor.Tensor{} }},
	{0, "Out", func(a *pipeline.LayerArgs) { a.Out = reshaped(a.Out, 3, 5*attention.D) }},
	{0, "Out", func(a *pipeline.LayerArgs) { a.Out.Offset = a.Out.Buffer.Size() }},
	{0, "LSE", func(a *pipeline.LayerArgs) { a.LSE = reshaped(a.LSE, 5, 3) }},
	{0, "Sink", func(a *pipeline.LayerArgs) { a.Sink = reshaped(a.Sink, 1) }},
	{4, "TopK", func(a *pipeline.LayerArgs) { a.TopK = tensor.Tensor{} }},
	{4, "TopK", func(a *pipeline.LayerArgs) { a.TopK = reshaped(a.TopK, 3, 39) }},
	{0, "Window.Layout", func(a *pipeline.LayerArgs) { a.Window = cache.KVCache{} }},
	{0, "Window.Layout", func(a *pipeline.LayerArgs) { a.Window.Layout.Stride = 0 }},
	{0, "Window.Layout.Page", func(a *pipeline.LayerArgs) { a.Window.Layout = cache.Layout{Page: 32, Stride: a.Window.Layout.Stride} }},
	{0, "Window.Pool", func(a *pipeline.LayerArgs) { a.Window.Pool = tensor.Tensor{} }},
	{0, "Window.Pool", func(a *pipeline.LayerArgs) { a.Window.Layout.Stride += 8 }},
	{0, "Window.Pool", func(a *pipeline.LayerArgs) { a.Window.Pool = reshaped(a.Window.Pool, 0, a.Window.Layout.Stride) }},
	{0, "Window.Pool", func(a *pipeline.LayerArgs) {
		a.Window.Pool = elsewhere(reshaped(a.Window.Pool, 1, a.Window.Layout.Stride), 4)
	}},
	{4, "Compressed.Layout", func(a *pipeline.LayerArgs) { a.Compressed = cache.KVCache{} }},
	{128, "Compressed.Layout", func(a *pipeline.LayerArgs) { a.Compressed = cache.KVCache{} }},
	{4, "Compressed.Pool", func(a *pipeline.LayerArgs) { a.Compressed.Pool = tensor.Tensor{} }},
	{128, "Compressed.Layout.Page", func(a *pipeline.LayerArgs) { a.Compressed = a.Window }},
	{4, "Compressed.Pool", func(a *pipeline.LayerArgs) { a.Compressed.Pool = retyped(a.Compressed.Pool, tensor.I8) }},
	{4, "Compressed.Pool", func(a *pipeline.LayerArgs) {
		a.Compressed.Pool = elsewhere(reshaped(a.Compressed.Pool, 1, a.Compressed.Layout.Stride), 4)
	}},
}

// A refused call records nothing: running what a recorder holds after all of them
// leaves caches, outputs and index lists as they were.
func TestDecodeArguments(t *testing.T) {
	dev := testkit.Device(t)
	stray := must[*vk.Device](t)(dev.Adapter().Open(vk.DeviceOptions{}))
	defer stray.Close()
	foreign := must[tensor.Tensor](t)(tensor.New(stray, "test", tensor.BF16, 3, 5, attention.D))
	defer foreign.Close()
	closed := must[tensor.Tensor](t)(tensor.New(dev, "test", tensor.BF16, 3, 5, attention.D))
	closed.Close()

	for _, ratio := range []int{1, 4, 128} {
		t.Run(fmt.Sprint(ratio), func(t *testing.T) {
			s := newShape(t, ratio, 3, 5, 2, 300)
			d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
			defer d.Close()
			g := newGPU(t, dev, s, 1)
			rng := rand.New(rand.NewPCG(testkit.Seed(t), 40))
			x := newStep(rng, s, []request{{280, 2}, {3, 1}})
			g.upload(x, newLayer(t, rng, s, x))
			win, winLens, comp, compLens := d.Indices()
			lists := []tensor.Tensor{win, winLens}
			if ratio > 1 {
				lists = append(lists, comp, compLens)
			}
			for _, l := range lists {
				put(t, l, filled(l.Len(), int32(0x5A5A5A5A)))
			}
			untouched := append(lists, g.layers[0].Out, g.layers[0].LSE, g.layers[0].Window.Pool, g.layers[0].Compressed.Pool)
			before := contents(t, untouched)

			g.r.Do(func(rec *vk.Recorder) error {
				for _, c := range stepChanges {
					if c.ratio == 0 || c.ratio == ratio {
						a := g.step
						c.change(&a)
						wrongArgument(t, c.arg, d.RecordStep(rec, a))
					}
				}
				for _, c := range layerChanges {
					if c.ratio == 0 || c.ratio == ratio {
						a := g.layers[0]
						c.change(&a)
						wrongArgument(t, c.arg, d.RecordLayer(rec, g.step, a))
					}
				}
				misplaced(t, d, rec, g, foreign, closed)
				return nil
			})
			if err := g.r.Err(); err != nil {
				t.Fatal(err)
			}
			for i, b := range contents(t, untouched) {
				if !bytes.Equal(b, before[i]) {
					t.Errorf("a refused call changed %v", untouched[i])
				}
			}
			wrongArgument(t, "rec", d.RecordStep(nil, g.step))
			wrongArgument(t, "rec", d.RecordLayer(nil, g.step, g.layers[0]))
			other := must[*vk.Recorder](t)(stray.NewRecorder())
			defer other.Close()
			for _, err := range []error{d.RecordStep(other, g.step), d.RecordLayer(other, g.step, g.layers[0])} {
				if !errors.Is(err, vk.ErrArgument) {
					t.Errorf("a recorder of another device: %v", err)
				}
			}
		})
	}
}

// misplaced are tensors of the right shape in buffers that cannot be used, each
// used after what RecordLayer would record first.
func misplaced(t *testing.T, d *pipeline.Decode, rec *vk.Recorder, g *gpu, foreign, closed tensor.Tensor) {
	t.Helper()
	a := g.layers[0]
	a.Out = foreign
	wrongArgument(t, "Out", d.RecordLayer(rec, g.step, a))
	a.Out = closed
	if err := d.RecordLayer(rec, g.step, a); !errors.Is(err, vk.ErrClosed) {
		t.Errorf("a closed output: %v, want %v", err, vk.ErrClosed)
	}
	a = g.layers[0]
	a.Q = elsewhere(a.Q, 2) // within the guard bytes behind it
	if g.r.Err() == nil && a.Q.Buffer.Device().Caps().StorageAlignment > 2 {
		wrongArgument(t, "Q", d.RecordLayer(rec, g.step, a))
	}
}

// contents reads tensors back as bytes.
func contents(t testing.TB, list []tensor.Tensor) [][]byte {
	t.Helper()
	var all [][]byte
	for _, x := range list {
		b := make([]byte, x.Bytes())
		if err := x.Download(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// What a kind of layer does not need may be absent, or be there for other layers.
func TestDecodeUnneeded(t *testing.T) {
	dev := testkit.Device(t)
	for _, ratio := range []int{1, 4, 128} {
		s := newShape(t, ratio, 1, 5, 1, 300)
		d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
		defer d.Close()
		g := newGPU(t, dev, s, 1)
		step, layer := g.step, g.layers[0]
		layer.Sink, layer.LSE = tensor.Tensor{}, tensor.Tensor{}
		if ratio != 128 {
			step.Positions = tensor.Tensor{}
		}
		if ratio != 4 {
			layer.TopK = tensor.Tensor{}
		}
		if ratio == 1 {
			step.CompressedTable, layer.Compressed = tensor.Tensor{}, cache.KVCache{}
		}
		rec := must[*vk.Recorder](t)(dev.NewRecorder())
		defer rec.Close()
		if err := d.RecordStep(rec, step); err != nil {
			t.Errorf("ratio %d: %v", ratio, err)
		}
		if err := d.RecordLayer(rec, step, layer); err != nil {
			t.Errorf("ratio %d: %v", ratio, err)
		}
	}
}

// Commands outlive the Decode that they were recorded with; it itself is of no more
// use, and neither is one that NewDecode did not make.
func TestDecodeClose(t *testing.T) {
	dev := testkit.Device(t)
	s := newShape(t, pipeline.RatioC4A, 2, 5, 1, 300)
	d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
	defer d.Close()
	g := newGPU(t, dev, s, 1)
	cmd := g.record(dev, d)
	if dev.MemoryInUse()["decode step"] == 0 {
		t.Error("the memory of a Decode is not counted")
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 41))
	x := newStep(rng, s, []request{{200, 2}})
	l := newLayer(t, rng, s, x)
	g.upload(x, l)
	if err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.check(d.Variant(), 0, x, expect(t, s, x, l))
	if err := cmd.Close(); err != nil {
		t.Error(err)
	}
	if n := dev.MemoryInUse()["decode step"]; n != 0 {
		t.Errorf("%d bytes are in use after the last commands were closed", n)
	}

	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	for name, d := range map[string]*pipeline.Decode{"closed": d, "zero": {}, "nil": nil} {
		for call, err := range map[string]error{
			"RecordStep": d.RecordStep(rec, g.step), "RecordLayer": d.RecordLayer(rec, g.step, g.layers[0]),
			"RecordInsert": d.RecordInsert(rec, g.layers[0]), "RecordPicks": d.RecordPicks(rec, g.step, g.layers[0]),
			"RecordAttend": d.RecordAttend(rec, g.layers[0]),
		} {
			if !errors.Is(err, vk.ErrClosed) {
				t.Errorf("%s of a %s Decode: %v, want %v", call, name, err, vk.ErrClosed)
			}
		}
		if err := d.Close(); err != nil {
			t.Errorf("close of a %s Decode: %v", name, err)
		}
	}
	open := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, s.config("")))
	defer open.Close()
	rec.Close()
	if err := open.RecordStep(rec, g.step); !errors.Is(err, vk.ErrClosed) {
		t.Errorf("a closed recorder: %v, want %v", err, vk.ErrClosed)
	}
}
