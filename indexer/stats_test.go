package indexer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestTimes times forms of the scores by turns: VKXS has forms with a ; between them.
func TestTimes(t *testing.T) {
	if os.Getenv("VKXS") == "" {
		t.Skip("VKXS")
	}
	dev := testkit.Device(t)
	heads, keys, all := 64, 8192, []int{512, 4096}
	if dev.Adapter().Type == vk.TypeCPU {
		heads, keys, all = 16, 512, []int{16}
	}
	if n, err := strconv.Atoi(os.Getenv("VKXT")); err == nil {
		all = []int{n}
	}
	if n, err := strconv.Atoi(os.Getenv("VKXN")); err == nil {
		keys = n
	}
	requests := 1
	if n, err := strconv.Atoi(os.Getenv("VKXM")); err == nil {
		requests = n
	}
	for _, tokens := range all {
		x := randomHost(t, cache.IndexKeyFP8, rand.New(rand.NewPCG(8, 1)), tokens, requests, heads, keys, 64)
		for i := range x.Lens {
			x.Lens[i] = int32(keys - (tokens-i)/4)
			if x.TokenToReq[i] = int32(requests - 1); i < requests-1 {
				x.TokenToReq[i] = int32(i)
			}
		}
		r := verify.NewRig(t.Context(), dev)
		a := uploadLogits(r, x)
		require.NoError(t, r.Err())
		type form struct {
			name  string
			cmd   *vk.Commands
			times []float64
		}
		var forms []*form
		var first []float32
		for _, name := range strings.Split(os.Getenv("VKXS"), ";") {
			os.Setenv("VKX", name)
			record := must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, ""))).Record
			if os.Getenv("VKXK") != "" {
				op := must[*indexer.Select](t)(indexer.NewSelect(dev, indexer.SelectConfig{K: 512, Logits: logitsConfig(x, "")}))
				b := indexer.SelectArgs{LogitsArgs: a, TopK: r.Out(tensor.I32, tokens, 512), Entries: keys,
					Scratch: r.Out(tensor.U8, int(op.ScratchBytes(tokens))).View()}
				b.Out = tensor.Tensor{}
				require.NoError(t, r.Err())
				record = func(rec *vk.Recorder, _ indexer.LogitsArgs) error { return op.Record(rec, b) }
			}
			rec := must[*vk.Recorder](t)(dev.NewRecorder())
			for i := range 6 {
				if i >= 2 {
					must[int](t)(rec.Timestamp())
				}
				require.NoError(t, record(rec, a))
			}
			must[int](t)(rec.Timestamp())
			f := &form{name: name, cmd: must[*vk.Commands](t)(rec.End())}
			require.NoError(t, f.cmd.Run(t.Context()))
			forms = append(forms, f)
			if tokens <= 512 && os.Getenv("VKXK") == "" {
				got := download[float32](t, a.Out)
				if first == nil {
					first = got
				}
				n := 0
				for i, v := range got {
					if math.Float32bits(v) != math.Float32bits(first[i]) {
						n++
					}
				}
				fmt.Printf("BITS %s: %d of %d differ\n", name, n, len(got))
			}
		}
		for begin := time.Now(); dev.Adapter().Type != vk.TypeCPU && time.Since(begin) < 300*time.Millisecond; {
			require.NoError(t, forms[0].cmd.Run(t.Context()))
		}
		for range 12 {
			for _, f := range forms {
				require.NoError(t, f.cmd.Run(t.Context()))
				ns := must[[]float64](t)(f.cmd.Timestamps())
				for i := range 4 {
					f.times = append(f.times, (ns[i+1]-ns[i])/1e3)
				}
			}
		}
		for _, f := range forms {
			slices.Sort(f.times)
			fmt.Printf("TIME %d x %d %s: %.1f (least %.1f, most %.1f)\n", tokens, keys, f.name, f.times[len(f.times)/2], f.times[0], f.times[len(f.times)-1])
			f.cmd.Close()
		}
		r.Close()
	}
}

// TestCode leaves the driver's code of some forms in the folder VKXDIR.
func TestCode(t *testing.T) {
	if os.Getenv("VKXDIR") == "" {
		t.Skip("VKXDIR")
	}
	in, err := vk.NewInstance(vk.InstanceOptions{})
	require.NoError(t, err)
	defer in.Close()
	for _, vkx := range strings.Split(os.Getenv("VKXS"), ";") {
		a := in.Adapters()[0]
		dir := os.Getenv("VKXDIR") + "/form" + vkx
		require.NoError(t, os.MkdirAll(dir, 0o755))
		dev, err := a.Open(vk.DeviceOptions{Statistics: true, PipelineCacheDir: dir})
		require.NoError(t, err)
		os.Setenv("VKX", vkx)
		_, err = indexer.NewLogits(dev, indexer.LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64})
		require.NoError(t, err)
		for _, k := range dev.Kernels() {
			s, err := dev.Statistics(k)
			require.NoError(t, err)
			fmt.Print("CODE ", vkx, " ", k.Name(), k.Constants())
			for _, x := range s {
				fmt.Print(" ", x.Name, "=", x.Value)
			}
			fmt.Println()
		}
		os.Setenv("VKX", "")
		require.NoError(t, dev.Close())
	}
}
