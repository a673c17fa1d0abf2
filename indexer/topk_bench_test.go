package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Other choices of shapes than that of a CPU select the same, at the widths at which
// other kernels are taken.
func TestTopKTunings(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	for _, tuning := range indexer.TopKTunings {
		for _, c := range []struct{ n, k, workgroups int }{
			{4096, 512, 0}, {4098, 61, 0}, {8192, 1024, 0}, {16381, 1000, 0}, {20000, 321, 1}, {32768, 1024, 64}, {70001, 512, 64}, {17004, 2, 2},
		} {
			t.Run(fmt.Sprintf("%s/n=%d/k=%d", tuning, c.n, c.k), func(t *testing.T) {
				cfg := indexer.TopKConfig{K: c.k, Workgroups: c.workgroups}
				op := must[*indexer.TopK](t)(indexer.NewTunedTopK(dev, cfg, tuning))
				lens := []int32{int32(c.n), int32(c.k + 1 + rng.IntN(c.n-c.k)), 0}
				logits := make([]float32, len(lens)*c.n)
				for i := range logits {
					logits[i] = float32(rng.NormFloat64())
					if i < c.n/2 {
						logits[i] = float32(rng.IntN(7)) // ties
					}
				}
				assert.True(t, slices.Equal(runTopK(t, dev, op, logits, c.n, lens), indexer.TopKRef(logits, c.n, lens, c.k)),
					"lengths %d: the selection differs", lens)
			})
		}
	}
}

// BenchmarkTopK compares choices of shapes: device time of one selection, its barrier
// and a timestamp.
func BenchmarkTopK(b *testing.B) {
	dev := testkit.Device(b)
	const room = 128 * 262144
	rng := rand.New(rand.NewPCG(1, 8))
	store := make([]float32, room)
	for i := range store {
		store[i] = float32(rng.NormFloat64())
	}
	pool := upload(b, dev, tensor.F32, store, room)
	woken := false
	for _, tokens := range []int{1, 32, 128} {
		for _, keys := range []int{4096, 8192, 16384, 32768, 262144} {
			for _, k := range []int{512, 1024} {
				for _, tuning := range indexer.TopKTunings {
					b.Run(fmt.Sprintf("tokens=%d/keys=%d/k=%d/%s", tokens, keys, k, tuning), func(b *testing.B) {
						op := must[*indexer.TopK](b)(indexer.NewTunedTopK(dev, indexer.TopKConfig{K: k}, tuning))
						lens := upload(b, dev, tensor.I32, slices.Repeat([]int32{int32(keys)}, tokens), tokens)
						out := upload(b, dev, tensor.I32, make([]int32, tokens*k), tokens, k)
						var scratch vk.View
						if need := int(op.ScratchBytes(tokens, keys)); need > 0 {
							scratch = upload(b, dev, tensor.U8, make([]byte, need), need).View()
						}
						sets := min(32, room/(tokens*keys))
						record := func(rec *vk.Recorder, i int) error {
							logits := tensor.Of(pool.Buffer.View(pool.Offset+uint64(i%sets*tokens*keys*4), uint64(tokens*keys*4)), tensor.F32, tokens, keys)
							return op.Record(rec, indexer.TopKArgs{Logits: logits, Lens: lens, Out: out, Scratch: scratch})
						}
						do(b, dev, func(rec *vk.Recorder) error { return record(rec, 0) })
						got := download[int32](b, out)[(tokens-1)*k:]
						require.True(b, slices.Equal(got, indexer.TopKRef(store[(tokens-1)*keys:][:keys], keys, []int32{int32(keys)}, k)),
							"the selection differs")
						cmd := timed(b, dev, record)
						for begin := time.Now(); !woken && time.Since(begin) < time.Second; { // an idle GPU runs slowly
							require.NoError(b, cmd.Run(b.Context()))
						}
						woken = true
						var us []float64
						for b.Loop() {
							if err := cmd.Run(b.Context()); err != nil {
								b.Fatal(err)
							}
							ns := must[[]float64](b)(cmd.Timestamps())
							for i := 5; i < len(ns); i++ { // the first ones wake it up
								us = append(us, (ns[i]-ns[i-1])/1e3)
							}
						}
						slices.Sort(us)
						b.ReportMetric(us[len(us)/2], "gpu-us")
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}

// timed records launches between timestamps.
func timed(b *testing.B, dev *vk.Device, record func(rec *vk.Recorder, i int) error) *vk.Commands {
	rec := must[*vk.Recorder](b)(dev.NewRecorder())
	defer rec.Close()
	for i := range 48 {
		must[int](b)(rec.Timestamp())
		require.NoError(b, record(rec, i))
	}
	must[int](b)(rec.Timestamp())
	cmd := must[*vk.Commands](b)(rec.End())
	b.Cleanup(func() { cmd.Close() })
	return cmd
}
