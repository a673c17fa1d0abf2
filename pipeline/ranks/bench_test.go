package ranks_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
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
	cfg, batches, length, rounds := model.FlashConfig(), []int{1, 32, 2048}, 4096, 30
	cfg.Layers = model.V4Layers(4)
	if first.Adapter().Type == vk.TypeCPU {
		cfg, batches, length, rounds = fakemodel.Config(4), []int{1, 8}, 64, 5
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
			in, out := make([]float32, n*cfg.Hidden), make([]float32, n*cfg.Hidden)
			for i := range in {
				in[i] = float32(i%7) - 3
			}
			one := median(b, rounds, func() error {
				st, err := whole.Begin(b.Context(), pipeline.Chunk{Session: s, Tokens: n})
				if err != nil {
					return err
				}
				defer st.Abort()
				return through(b, st, in, out)
			})
			all := median(b, rounds, func() error {
				st, err := divided.Begin(b.Context(), ranks.Chunk{Session: r, Tokens: n})
				if err != nil {
					return err
				}
				defer st.Abort()
				return through(b, st, in, out)
			})
			b.Logf("%d tokens: one device %v, %d ranks %v", n, one, len(devs), all)
			b.ReportMetric(float64(one)/float64(all), fmt.Sprintf("tokens=%d-times", n))
		}
	}
}

// layerRunner is a step of an engine or of ranks.
type layerRunner interface {
	SetInput(layer, chunk int, values []float32) error
	RunLayer(ctx context.Context, layer int) error
	ReadOutput(layer, chunk int, values []float32) error
}

// through takes hidden states through layer 0.
func through(b *testing.B, st layerRunner, in, out []float32) error {
	if err := st.SetInput(0, 0, in); err != nil {
		return err
	}
	if err := st.RunLayer(b.Context(), 0); err != nil {
		return err
	}
	return st.ReadOutput(0, 0, out)
}

// median is the median time of f, once it is warm.
func median(b *testing.B, rounds int, f func() error) time.Duration {
	b.Helper()
	var list []time.Duration
	for range 2 * rounds {
		began := time.Now()
		require.NoError(b, f())
		list = append(list, time.Since(began))
	}
	list = list[rounds:]
	slices.Sort(list)
	return list[len(list)/2].Round(time.Microsecond)
}
