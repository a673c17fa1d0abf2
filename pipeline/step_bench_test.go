package pipeline_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

// BenchmarkStepHost measures what a decode step of 43 layers takes the host. "fill" is to
// begin and end it, which is all there is to do besides the submission; "whole" has that,
// too, and counts in us/step what it takes to begin, submit and commit, but not the
// waiting for the device.
func BenchmarkStepHost(b *testing.B) {
	dev := testkit.Device(b)
	ratios := pipeline.FlashConfig().Ratios
	c := fakemodel.Config(pipeline.RatioWindow, pipeline.RatioC4A, pipeline.RatioC128A)
	cfg, few := uploaded(b, dev, written(b, fake(b, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	var layers []*pipeline.DeviceLayer
	for _, r := range ratios {
		for _, l := range few {
			if l.Ratio == r {
				layers = append(layers, l)
			}
		}
	}
	for _, sessions := range []int{1, 32} {
		prepared := func(b *testing.B) (*pipeline.Engine, []pipeline.Chunk) {
			b.Helper()
			e := engine(b, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 4096, MaxSessions: sessions, MaxStep: sessions,
				CacheBytes: uint64(sessions) * 50 << 20}) // so that they do not grow: then steps are recorded again
			var chunks []pipeline.Chunk
			for range sessions {
				s := must[*pipeline.Session](b)(e.Open())
				if err := s.Advance(b.Context(), 500); err != nil {
					b.Fatal(err)
				}
				chunks = append(chunks, pipeline.Chunk{Session: s, Tokens: 1})
			}
			if err := e.Prepare(b.Context(), sessions); err != nil {
				b.Fatal(err)
			}
			return e, chunks
		}
		b.Run(fmt.Sprintf("fill/batch=%d", sessions), func(b *testing.B) {
			e, chunks := prepared(b)
			b.ReportAllocs()
			for b.Loop() {
				if err := must[*pipeline.Step](b)(e.Begin(b.Context(), chunks...)).Abort(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("whole/batch=%d", sessions), func(b *testing.B) {
			e, chunks := prepared(b)
			var spent time.Duration
			step := func() {
				start := time.Now()
				st := must[*pipeline.Step](b)(e.Begin(b.Context(), chunks...))
				if err := st.Submit(); err != nil {
					b.Fatal(err)
				}
				spent += time.Since(start)
				if err := st.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				start = time.Now()
				if err := st.Commit(); err != nil {
					b.Fatal(err)
				}
				spent += time.Since(start)
			}
			step() // records
			spent = 0
			before, _ := e.Pages()
			for b.Loop() {
				step()
			}
			if after, _ := e.Pages(); after != before {
				b.Errorf("the caches have grown from %v to %v pages", before, after)
			}
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "us/step")
		})
	}
}
