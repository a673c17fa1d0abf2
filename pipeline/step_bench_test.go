package pipeline_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// hostSteps is the number of steps that BenchmarkStepHost runs before sessions begin anew.
const hostSteps = 2048

// hostSessions makes sessions of equal or of different lengths, in an engine whose caches need not
// grow: growing would record steps again.
func hostSessions(b *testing.B, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer, sessions int, bytes uint64) (*pipeline.Engine, []pipeline.Chunk) {
	b.Helper()
	e := engine(b, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 4096, MaxSessions: sessions, MaxStep: sessions, CacheBytes: uint64(sessions) * bytes})
	var chunks []pipeline.Chunk
	for range sessions {
		chunks = append(chunks, pipeline.Chunk{Session: must[*pipeline.Session](b)(e.Open()), Tokens: 1})
	}
	return e, chunks
}

// restart makes sessions 500 tokens long, and each longer than the one before by more.
func restart(b *testing.B, chunks []pipeline.Chunk, more int) {
	b.Helper()
	for _, c := range chunks {
		require.NoError(b, c.Session.Truncate(0))
	}
	for i, c := range chunks {
		require.NoError(b, c.Session.Advance(b.Context(), 500+i*more%512))
	}
}

// reportTimes reports medians and 95th percentiles.
func reportTimes(b *testing.B, name string, list []time.Duration) {
	if len(list) == 0 {
		return
	}
	slices.Sort(list)
	us := func(q int) float64 { return float64(list[len(list)*q/100].Nanoseconds()) / 1e3 }
	b.ReportMetric(us(50), name+"-us")
	b.ReportMetric(us(95), name+"-p95-us")
}

// BenchmarkStepHost measures the host's part of a decode step. The sessions' lengths are equal
// ("same"), so that all of them begin pages in the same steps, or different ("mixed"). "books" is
// Begin and Commit of three layers without the device; their number does not matter. "whole" is a
// step of 43 layers in one submission, without the wait for the device.
func BenchmarkStepHost(b *testing.B) {
	dev := testkit.Device(b)
	c := fakemodel.Config(0, 4, 128)
	cfg, few := uploaded(b, dev, written(b, fake(b, fakemodel.Options{Config: c, Storage: fakemodel.FP8})))
	var layers []*model.DeviceLayer
	for _, kind := range model.FlashConfig().Layers {
		for _, l := range few {
			if cfg.Layers[l.Layer].Name == kind.Name {
				layers = append(layers, l)
			}
		}
	}
	for _, sessions := range []int{1, 32, 128, 256, 1024} {
		for _, more := range []int{0, 37} {
			name := map[bool]string{true: "mixed", false: "same"}[more > 0]
			b.Run(fmt.Sprintf("books/%s/batch=%d", name, sessions), func(b *testing.B) {
				e, chunks := hostSessions(b, dev, cfg, few, sessions, 5<<20)
				var all, begins, commits []time.Duration
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					if n%hostSteps == 0 {
						b.StopTimer()
						restart(b, chunks, more)
						b.StartTimer()
					}
					start := time.Now()
					st := must[*pipeline.Step](b)(e.Begin(b.Context(), chunks...))
					begun := time.Now()
					st.Pretend()
					ran := time.Now()
					if err := st.Commit(); err != nil {
						b.Fatal(err)
					}
					begins, commits = append(begins, begun.Sub(start)), append(commits, time.Since(ran))
					all = append(all, begins[len(begins)-1]+commits[len(commits)-1])
				}
				reportTimes(b, "host", all)
				reportTimes(b, "begin", begins)
				reportTimes(b, "commit", commits)
			})
		}
		b.Run(fmt.Sprintf("whole/batch=%d", sessions), func(b *testing.B) {
			if sessions > 32 && dev.Adapter().Type == vk.TypeCPU {
				b.Skip("takes seconds a step on a CPU")
			}
			e, chunks := hostSessions(b, dev, cfg, layers, sessions, 50<<20)
			restart(b, chunks, 37)
			var all, begins, submits, commits []time.Duration
			step := func() {
				start := time.Now()
				st := must[*pipeline.Step](b)(e.Begin(b.Context(), chunks...))
				begun := time.Now()
				require.NoError(b, errors.Join(st.ReuseInputs(), st.Submit()))
				submitted := time.Now()
				require.NoError(b, st.Wait(b.Context()))
				waited := time.Now()
				require.NoError(b, st.Commit())
				begins, submits, commits = append(begins, begun.Sub(start)), append(submits, submitted.Sub(begun)), append(commits, time.Since(waited))
				n := len(begins) - 1
				all = append(all, begins[n]+submits[n]+commits[n])
			}
			step() // records, each operation a submission
			step() // records in one
			all, begins, submits, commits = all[:0], begins[:0], submits[:0], commits[:0]
			before, _ := e.Pages()
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%hostSteps == hostSteps-1 {
					b.StopTimer()
					restart(b, chunks, 37)
					b.StartTimer()
				}
				step()
			}
			after, _ := e.Pages()
			assert.Equal(b, before, after, "the caches have grown from %v to %v pages", before, after)
			reportTimes(b, "host", all)
			reportTimes(b, "begin", begins)
			reportTimes(b, "submit", submits)
			reportTimes(b, "commit", commits)
		})
	}
}
