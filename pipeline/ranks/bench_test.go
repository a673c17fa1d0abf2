package ranks_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/ranks"
	"github.com/vkmla/vkmla/vk"
)

// BenchmarkRanks measures a C4A layer of DeepSeek-V4-Flash, from hidden states in host memory to
// hidden states in host memory, on one device and on ranks: on all of the machine's of a kind, or
// on one that is opened twice. Run it with -benchtime 1x.
func BenchmarkRanks(b *testing.B) {
	first := testkit.Device(b)
	devs := append([]*vk.Device{first}, testkit.Others(b)...)
	cfg, batches, length, rounds := model.FlashConfig(), []int{1, 32, 2048}, 4096, 100
	wake := time.Second // a GPU's clock takes so long to come up
	cfg.Layers = model.V4Layers(4)
	if first.Adapter().Type == vk.TypeCPU {
		cfg, batches, length, rounds = fakemodel.Config(4), []int{1, 8}, 64, 5
		wake = 0
	}
	m := must[*fakemodel.Model](b)(fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8}))
	dir := b.TempDir()
	require.NoError(b, m.Write(dir, 1))
	c := must[*model.Checkpoint](b)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	layers := must[[]*model.DeviceLayer](b)(c.Upload(b.Context(), first, nil))
	defer model.CloseLayers(layers)
	o := pipeline.EngineOptions{MaxTokens: length + 4096, MaxStep: slices.Max(batches), LayerByLayer: true, CacheBytes: 1 << 62}
	whole := must[*pipeline.Engine](b)(pipeline.NewEngine(b.Context(), first, cfg, layers, o))
	defer whole.Close()
	divided := must[*ranks.Engine](b)(ranks.New(b.Context(), dir, devs, model.CheckpointOptions{}, o))
	defer divided.Close()
	s, r := must[*pipeline.Session](b)(whole.Open()), must[*ranks.Session](b)(divided.Open())
	for _, x := range append(r.On(), s) {
		require.NoError(b, x.Advance(b.Context(), length))
	}
	for b.Loop() {
		for _, n := range batches {
			in := make([]uint16, n*cfg.Hidden)
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range in {
				in[i] = numfmt.BF16Encode(float32(rng.NormFloat64()))
			}
			alone, divide := make([]uint16, len(in)), make([]uint16, len(in))
			one := median(b, rounds, wake, func() error {
				st, err := whole.Begin(b.Context(), pipeline.Chunk{Session: s, Tokens: n})
				if err != nil {
					return err
				}
				defer st.Abort()
				to, err := st.HostInput(0, 0)
				if err != nil {
					return err
				}
				copy(to, in)
				if err := st.RunLayer(b.Context(), 0); err != nil {
					return err
				}
				return st.ReadOutputBF16(0, 0, alone)
			})
			all := median(b, rounds, wake, func() error {
				st, err := divided.Begin(b.Context(), ranks.Chunk{Session: r, Tokens: n})
				if err != nil {
					return err
				}
				defer st.Abort()
				if err := st.SetInputBF16(0, 0, in); err != nil {
					return err
				}
				if err := st.RunLayer(b.Context(), 0); err != nil {
					return err
				}
				return st.ReadOutputBF16(0, 0, divide)
			})
			miss := distance(numfmt.BF16DecodeSlice(nil, divide), numfmt.BF16DecodeSlice(nil, alone))
			b.Logf("%d tokens: one device %v, %d ranks %v, which miss it by %.2g", n, one, len(devs), all, miss)
			b.ReportMetric(float64(one)/float64(all), fmt.Sprintf("tokens=%d-times", n))
		}
	}
}

// median is the median time of f, once it has run for a while.
func median(b *testing.B, rounds int, wake time.Duration, f func() error) time.Duration {
	b.Helper()
	for n, began := 0, time.Now(); n < 3 || time.Since(began) < wake; n++ {
		require.NoError(b, f())
	}
	var list []time.Duration
	for range rounds {
		began := time.Now()
		require.NoError(b, f())
		list = append(list, time.Since(began))
	}
	slices.Sort(list)
	return list[len(list)/2].Round(time.Microsecond)
}
