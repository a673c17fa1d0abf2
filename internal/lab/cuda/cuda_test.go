//go:build linux

package cuda_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/cuda"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const most = 8 // tokens of a step

// engine is an engine whose input and output are buffers of the caller's.
type engine struct {
	*pipeline.Engine
	in, out *vk.Buffer
	hidden  int
	session *pipeline.Session
}

func newEngine(t *testing.T, dev *vk.Device, ckpt *model.Checkpoint, layers []*model.DeviceLayer, share bool) *engine {
	t.Helper()
	must := testkit.Must[*vk.Buffer](t)
	x := &engine{hidden: ckpt.Config.Hidden}
	size := uint64(2 * most * x.hidden)
	in, out := vk.Upload, vk.Readback
	if share {
		in, out = vk.DeviceLocal, vk.DeviceLocal
	}
	x.in = must(dev.NewBuffer(vk.BufferSpec{Label: "input", Size: size, Memory: in, Export: share}))
	x.out = must(dev.NewBuffer(vk.BufferSpec{Label: "output", Size: size, Memory: out, Export: share}))
	x.Engine = testkit.Must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, ckpt.Config, layers, pipeline.EngineOptions{
		MaxTokens: 1000, MaxSessions: 4, MaxStep: most,
		Between: func(rec *vk.Recorder, at pipeline.Between) error {
			bytes := uint64(2 * at.Tokens * x.hidden)
			switch at.Layer {
			case 0:
				return rec.Copy(at.Input.View(), x.in.View(0, bytes))
			case len(layers):
				return rec.Copy(x.out.View(0, bytes), at.Output.View())
			}
			return rec.Copy(at.Input.View(), at.Output.View())
		}}))
	probe.SetBudget(x.Engine, -1)
	x.session = testkit.Must[*pipeline.Session](t)(x.Open())
	t.Cleanup(func() { assert.NoError(t, errors.Join(x.Close(), x.in.Close(), x.out.Close())) })
	return x
}

// again begins another sequence.
func (x *engine) again(t *testing.T) {
	require.NoError(t, x.session.Close())
	probe.SetBudget(x.Engine, -1)
	x.session = testkit.Must[*pipeline.Session](t)(x.Open())
}

// step runs n tokens of the engine's session with the input that is there.
func (x *engine) step(t *testing.T, n int, during func(), sync ...vk.Sync) {
	t.Helper()
	st, err := x.Begin(t.Context(), pipeline.Chunk{Session: x.session, Tokens: n})
	require.NoError(t, err)
	defer st.Abort() // does nothing after Commit
	require.NoError(t, st.Submit(sync...))
	if during != nil {
		during()
	}
	require.NoError(t, st.Wait(t.Context()))
	require.NoError(t, st.Commit())
}

// ordinary is a step with values of the host's.
func (x *engine) ordinary(t *testing.T, values []uint16) []uint16 {
	t.Helper()
	halves := func(b []byte) []uint16 { return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2) }
	copy(halves(x.in.Mapped()), values)
	x.step(t, len(values)/x.hidden, nil)
	return slices.Clone(halves(x.out.Mapped())[:len(values)])
}

// TestSharedStep has CUDA write the input of steps and read their output, in memory that both have,
// ordered by a semaphore where the driver exports any. It runs an engine on an adopted device, too.
// Bits are those of the ordinary way.
func TestSharedStep(t *testing.T) {
	dev := testkit.Device(t)
	dir := t.TempDir()
	require.NoError(t, random.Write(dir, random.Config(0, 4, 128), 1))
	ckpt := testkit.Must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	layers := testkit.Must[[]*model.DeviceLayer](t)(ckpt.Upload(t.Context(), dev, nil))
	t.Cleanup(func() { assert.NoError(t, errors.Join(model.CloseLayers(layers), ckpt.Close())) })
	plain := newEngine(t, dev, ckpt, layers, false)
	t.Run("adopted", func(t *testing.T) { adopted(t, dev, ckpt, plain) })
	t.Run("cuda", func(t *testing.T) {
		if missing := dev.Caps().Missing([]string{"exportMemory"}); missing != nil {
			t.Skipf("%s has no %v", dev.Adapter().Name, missing)
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		plain.again(t)
		x := newEngine(t, dev, ckpt, layers, true)
		var s *vk.Semaphore
		if dev.Caps().Missing([]string{"exportTimeline"}) == nil {
			s = testkit.Must[*vk.Semaphore](t)(dev.NewSemaphore(true))
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
		}
		other := openCUDA(t, dev, x.link(t, s))
		t.Cleanup(func() { other.close(t) })
		x.exchange(t, plain, other, s)
	})
}

// adopted runs an engine on the same device as one that the program has: bits are those of the
// engine on the program's own, and both submit to one queue.
func adopted(t *testing.T, dev *vk.Device, ckpt *model.Checkpoint, plain *engine) {
	d := testkit.Must[*vk.Device](t)(share.Adopt(share.HandlesOf(dev), vk.DeviceOptions{}))
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	layers := testkit.Must[[]*model.DeviceLayer](t)(ckpt.Upload(t.Context(), d, nil))
	t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	x := newEngine(t, d, ckpt, layers, false)
	in := random16(5 * x.hidden)
	for range 3 {
		var got []uint16
		var beside sync.WaitGroup
		beside.Go(func() { got = x.ordinary(t, in) })
		want := plain.ordinary(t, in)
		beside.Wait()
		require.True(t, slices.Equal(want, got), "other bits on the adopted device")
		in = got
	}
}

// random16 are random numbers, bf16.
func random16(n int) []uint16 {
	rng, v := rand.New(rand.NewPCG(7, 7)), make([]uint16, n)
	for i := range v {
		v[i] = numfmt.BF16Encode(float32(rng.NormFloat64()))
	}
	return v
}

// link holds what the other side imports.
type link struct {
	in, out   share.Exported
	semaphore *share.Exported
}

func (x *engine) link(t *testing.T, s *vk.Semaphore) (l link) {
	export := testkit.Must[share.Exported](t)
	l.in, l.out = export(share.Export(x.in)), export(share.Export(x.out))
	if s != nil {
		e := export(share.ExportSemaphore(s))
		l.semaphore = &e
	}
	return l
}

// exchange compares steps with the other side to ordinary ones.
func (x *engine) exchange(t *testing.T, plain *engine, other *cudaSide, s *vk.Semaphore) {
	at := uint64(0)
	shared := func(n int, provide func(done uint64)) (got []uint16) {
		at += 2
		if s == nil {
			provide(0)
			x.step(t, n, nil)
			return other.take(t, n, 0)
		}
		provide(at - 1)
		on := vk.Sync{Wait: []vk.At{{Semaphore: s, Value: at - 1}}, Signal: []vk.At{{Semaphore: s, Value: at}}}
		x.step(t, n, func() { got = other.take(t, n, at) }, on)
		return got
	}
	var last []uint16
	tokens, turns := []int{5, 1}, 2
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		tokens, turns = []int{5, 1, 3, 8, 1}, 20
	}
	for _, n := range tokens { // both ways through the host's memory on the other side
		in := random16(n * x.hidden)
		last = shared(n, func(done uint64) { other.feed(t, in, done) })
		require.True(t, slices.Equal(plain.ordinary(t, in), last), "a step of %d tokens: other bits", n)
	}
	for range turns { // the output of a step is the input of the next, and no host sees it
		want := plain.ordinary(t, last)
		last = shared(1, func(done uint64) { other.turn(t, 1, at-2, done) })
		require.True(t, slices.Equal(want, last), "a turn: other bits")
	}
}

// cudaSide is CUDA, with a stream: it has the engine's input and output, and the semaphore unless
// that is nil. Without it a call ends when all is done.
type cudaSide struct {
	*cuda.Device
	in, out   cuda.Memory
	semaphore *cuda.Semaphore
	hidden    int    // bytes of a token
	fed       []byte // until the stream has copied them
}

func openCUDA(t *testing.T, dev *vk.Device, l link) *cudaSide {
	d, err := cuda.Open(dev.Adapter().UUID)
	if errors.Is(err, cuda.ErrNoCUDA) {
		for _, x := range []*share.Exported{&l.in, &l.out, l.semaphore} {
			if x != nil {
				assert.NoError(t, x.Close())
			}
		}
		t.Skip(err)
	}
	require.NoError(t, err)
	x := &cudaSide{Device: d, hidden: int(l.in.Size) / most}
	must := testkit.Must[cuda.Memory](t)
	x.in, x.out = must(d.Import(l.in)), must(d.Import(l.out))
	if l.semaphore != nil {
		s, err := d.ImportSemaphore(*l.semaphore)
		require.NoError(t, err)
		x.semaphore = &s
	}
	return x
}

func (x *cudaSide) wait(t *testing.T, when uint64) {
	if x.semaphore != nil && when > 0 {
		require.NoError(t, x.Wait(*x.semaphore, when))
	}
}

func (x *cudaSide) signal(t *testing.T, done uint64) {
	if x.semaphore == nil || done == 0 {
		require.NoError(t, x.Synchronize())
		return
	}
	require.NoError(t, x.Signal(*x.semaphore, done))
}

// feed writes the input, then signals.
func (x *cudaSide) feed(t *testing.T, values []uint16, done uint64) {
	x.fed = slices.Clone(numfmt.Bytes(values))
	require.NoError(t, errors.Join(x.Fill(x.in, 0x7FC07FC0, most*x.hidden/4), x.Write(x.in, x.fed))) // NaN where nothing is written
	x.signal(t, done)
}

// turn waits, makes the output the input, then signals.
func (x *cudaSide) turn(t *testing.T, n int, when, done uint64) {
	x.wait(t, when)
	require.NoError(t, x.Copy(x.in, x.out, n*x.hidden))
	x.signal(t, done)
}

// take waits, and returns the output.
func (x *cudaSide) take(t *testing.T, n int, when uint64) []uint16 {
	x.wait(t, when)
	v := make([]uint16, n*x.hidden/2)
	require.NoError(t, errors.Join(x.Read(numfmt.Bytes(v), x.out), x.Synchronize()))
	return v
}

func (x *cudaSide) close(t *testing.T) {
	err := errors.Join(x.Synchronize(), x.in.Free(), x.out.Free())
	if x.semaphore != nil {
		err = errors.Join(err, x.semaphore.Free())
	}
	assert.NoError(t, errors.Join(err, x.Device.Close()))
}
