package projection_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestTrials times the kernels of VKXS, numbers with commas between them, by turns.
func TestTrials(t *testing.T) {
	if os.Getenv("VKXS") == "" {
		t.Skip("VKXS")
	}
	dev := testkit.Device(t)
	tokens := 4096
	if dev.Adapter().Type == vk.TypeCPU {
		tokens = 128
	}
	for _, layer := range []struct {
		name string
		projection.LinearConfig
	}{
		{"wo_b", projection.LinearConfig{N: 4096, K: 8192}},
		{"wq_b", projection.LinearConfig{N: 32768, K: 1024}},
		{"wo_a", projection.LinearConfig{N: 1024, K: 4096, Groups: 8}},
	} {
		cfg := layer.LinearConfig
		cfg.Weights, cfg.Out, cfg.MaxTokens = projection.WeightFP8UE8M0, tensor.BF16, tokens
		if tokens == 128 {
			cfg.N, cfg.K = 128, 256
		}
		g := max(1, cfg.Groups)
		rows := g * cfg.N
		rng := rand.New(rand.NewPCG(1, 2))
		data := make([]byte, rows*cfg.K)
		for i := range data {
			if data[i] = byte(rng.UintN(256)); data[i]&0x7F >= 0x70 {
				data[i] &= 0x8F
			}
		}
		scales := make([]byte, rows/128*cfg.K/128)
		for i := range scales {
			scales[i] = byte(116 + rng.UintN(4))
		}
		var sets []projection.LinearWeights
		for range 3 {
			sets = append(sets, projection.LinearWeights{Data: must1(tensor.New(dev, "w", tensor.U8, rows, cfg.K)), Scale: must1(tensor.New(dev, "s", tensor.U8, rows/128, cfg.K/128))})
			w := sets[len(sets)-1]
			require.NoError(t, w.Data.Upload(t.Context(), data))
			require.NoError(t, w.Scale.Upload(t.Context(), scales))
		}
		n := tokens * g * cfg.K
		x := make([]byte, 2*n)
		for i := range n {
			b := uint16(0x3C00 + rng.UintN(0x300) + 0x8000*rng.UintN(2))
			x[2*i], x[2*i+1] = byte(b), byte(b>>8)
		}
		a := projection.LinearArgs{X: must1(tensor.New(dev, "x", tensor.BF16, tokens, g, cfg.K)), Out: must1(tensor.New(dev, "y", tensor.BF16, tokens, rows))}
		require.NoError(t, a.X.Upload(t.Context(), x))
		type trial struct {
			name  string
			cmd   *vk.Commands
			times []float64
		}
		var trials []*trial
		var first []byte
		for _, name := range strings.Split(os.Getenv("VKXS"), ",") {
			os.Setenv("VKX", "deep=1,kernel="+name)
			op := must1(projection.NewLinear(dev, cfg))
			rec := must1(dev.NewRecorder())
			for i := range 8 {
				if i >= 2 {
					must1(rec.Timestamp())
				}
				b := a
				b.W = sets[i%3]
				require.NoError(t, op.Record(rec, b))
			}
			must1(rec.Timestamp())
			x := &trial{name: name, cmd: must1(rec.End())}
			if layer.name == "wo_b" {
				require.NoError(t, a.Out.Upload(t.Context(), make([]byte, a.Out.Bytes())))
				require.NoError(t, x.cmd.Run(t.Context()))
				got := make([]byte, a.Out.Bytes())
				require.NoError(t, a.Out.Download(t.Context(), got))
				if first == nil {
					first = got
				} else if !slices.Equal(first, got) {
					fmt.Println("DIFFERENT BITS:", layer.name, name)
				}
			}
			trials = append(trials, x)
		}
		for begin := time.Now(); dev.Adapter().Type != vk.TypeCPU && time.Since(begin) < 300*time.Millisecond; {
			require.NoError(t, trials[0].cmd.Run(t.Context()))
		}
		for range 8 {
			for _, x := range trials {
				require.NoError(t, x.cmd.Run(t.Context()))
				ns := must1(x.cmd.Timestamps())
				for i := range 6 {
					x.times = append(x.times, (ns[i+1]-ns[i])/1e3)
				}
			}
		}
		for _, x := range trials {
			slices.Sort(x.times)
			fmt.Printf("%s kernel=%s %.1f (least %.1f)\n", layer.name, x.name, x.times[len(x.times)/2], x.times[0])
		}
		for _, x := range trials {
			x.cmd.Close()
		}
		for _, w := range sets {
			w.Data.Close()
			w.Scale.Close()
		}
		a.X.Close()
		a.Out.Close()
	}
}

func must1[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}
