package pipeline_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/vk"
)

// halving is a batch of sessions whose layers alternate with work of the host.
type halving struct {
	b      *testing.B
	e      *pipeline.Engine
	layers int
	chunks []pipeline.Chunk
	steps  int           // that are timed at once
	host   time.Duration // work for all of them, after each layer
	busy   sync.Mutex    // held by who does it, as it takes all cores
}

// step takes a token of some of the sessions through the layers.
func (h *halving) step(chunks []pipeline.Chunk) {
	work := h.host * time.Duration(len(chunks)) / time.Duration(len(h.chunks))
	st := must[*pipeline.Step](h.b)(h.e.Begin(h.b.Context(), chunks...))
	require.NoError(h.b, st.ReuseInputs())
	for i := range h.layers {
		require.NoError(h.b, st.RunLayer(h.b.Context(), i))
		h.busy.Lock()
		for start := time.Now(); time.Since(start) < work; {
		}
		h.busy.Unlock()
	}
	require.NoError(h.b, st.Commit())
}

// whole returns the time of a step of some of the sessions.
func (h *halving) whole(chunks []pipeline.Chunk) time.Duration {
	var times []time.Duration
	for range h.steps {
		start := time.Now()
		h.step(chunks)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// halves returns the time in which both halves take a step, with two in progress.
func (h *halving) halves() time.Duration {
	half := len(h.chunks) / 2
	start := time.Now()
	var both sync.WaitGroup
	for _, chunks := range [][]pipeline.Chunk{h.chunks[:half], h.chunks[half:]} {
		both.Go(func() {
			for range h.steps {
				h.step(chunks)
			}
		})
	}
	both.Wait()
	return time.Since(start) / time.Duration(h.steps)
}

// BenchmarkTwoSteps compares steps of a batch, in which the host works between layers while the
// device idles, with steps of its halves, of which one is with the device while the host works for
// the other. The host's work is so many times what the device takes for a layer of the batch, and
// half of that for half of the sessions. On a GPU the layers are V4-Flash's, with weights of bf16.
func BenchmarkTwoSteps(b *testing.B) {
	dev := testkit.Device(b)
	c, context, batches, steps, copies := model.FlashConfig(), 4096, []int{16, 64, 128}, 20, 4
	c.Layers = model.V4Layers(0, 4, 128)
	if dev.Adapter().Type == vk.TypeCPU {
		c, context, batches, steps, copies = random.Config(), 50, []int{4}, 3, 1
	}
	dir := b.TempDir()
	require.NoError(b, random.Write(dir, c, 1))
	cfg, few := uploaded(b, dev, dir)
	layers := slices.Repeat(few, copies)
	for _, batch := range batches {
		e := engine(b, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 4 * context, MaxSessions: batch, MaxStep: batch,
			CacheBytes: 1 << 62, LayerByLayer: true, Steps: 2})
		require.NoError(b, e.Warm(b.Context()))
		h := &halving{b: b, e: e, layers: len(layers), steps: steps}
		for range batch {
			h.chunks = append(h.chunks, pipeline.Chunk{Session: must[*pipeline.Session](b)(e.Open()), Tokens: 1})
		}
		for _, times := range []float64{0.5, 1, 2, 4} {
			b.Run(fmt.Sprintf("batch=%d/host=%v", batch, times), func(b *testing.B) {
				for b.Loop() {
					for _, x := range h.chunks {
						require.NoError(b, x.Session.Truncate(0))
						require.NoError(b, x.Session.Advance(b.Context(), context))
					}
					h.host = 0
					h.whole(h.chunks) // the clocks come up
					device, half := h.whole(h.chunks), h.whole(h.chunks[:batch/2])
					h.host = time.Duration(times * float64(device) / float64(len(layers)))
					one, two := h.whole(h.chunks), h.halves()
					for name, took := range map[string]time.Duration{"device": device, "half": half, "one": one, "two": two} {
						b.ReportMetric(float64(took.Microseconds())/1000, name+"-ms")
					}
					b.ReportMetric(100*(float64(one)/float64(two)-1), "gain-%")
				}
			})
		}
		require.NoError(b, e.Close())
	}
}
