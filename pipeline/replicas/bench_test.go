package replicas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

// load describes the work that BenchmarkReplicas gives every device.
type load struct {
	sessions, context int
	chunk, steps      int
	wake              time.Duration // a GPU's clock takes so long to come up
	cfg               func(ratios ...int) model.Config
}

// flash are all layers of DeepSeek-V4-Flash. Those of a kind have their weights in common.
func flash(ratios ...int) model.Config {
	c := model.FlashConfig()
	c.Layers = model.V4Layers(ratios...)
	return c
}

// BenchmarkReplicas measures one device and then all of its kind, each with as many sessions: a
// step of all of them at once ("together"), and steps of each device by itself ("apart").
// Where there is one device, it is opened twice. Run it with -benchtime 1x.
func BenchmarkReplicas(b *testing.B) {
	first := testkit.Device(b)
	l := load{sessions: 32, context: 4096, chunk: 2048, steps: 300, wake: time.Second, cfg: flash}
	counts := map[int]int{0: 2, 4: 21, 128: 20}
	if first.Adapter().Type == vk.TypeCPU {
		l = load{sessions: 2, context: 48, chunk: 16, steps: 10, cfg: fakemodel.Tiny}
		counts = map[int]int{0: 1, 4: 1, 128: 1}
	}
	devs := append([]*vk.Device{first}, testkit.Others(b)...)
	m := must[*fakemodel.Model](b)(fakemodel.New(fakemodel.Options{Config: l.cfg(0, 4, 128), Storage: fakemodel.FP8}))
	dir := b.TempDir()
	require.NoError(b, m.Write(dir, 1))
	c := must[*model.Checkpoint](b)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	var list []replicas.Replica
	for _, d := range devs {
		kinds := must[[]*model.DeviceLayer](b)(c.Upload(b.Context(), d, nil))
		defer model.CloseLayers(kinds)
		var layers []*model.DeviceLayer
		for _, k := range kinds {
			for range counts[c.Config.Layers[k.Layer].Ratio] {
				layers = append(layers, k)
			}
		}
		longest := l.context + 4*l.steps + 2048
		e := must[*pipeline.Engine](b)(pipeline.NewEngine(b.Context(), d, c.Config, layers,
			pipeline.EngineOptions{MaxTokens: longest, MaxSessions: l.sessions, MaxStep: max(l.chunk, l.sessions), CacheBytes: 1 << 62}))
		defer e.Close()
		list = append(list, replicas.Replica{Engine: e, Device: d, MaxCacheBytes: 1 << 40})
	}
	for b.Loop() {
		for _, apart := range []bool{false, true} {
			var before [2]float64
			for _, n := range []int{1, len(list)} {
				r := &throughput{load: l, t: b, list: list[:n], apart: apart, filled: make([]map[int]bool, n)}
				prefill, decode := r.run()
				name := map[bool]string{false: "together", true: "apart"}[apart]
				b.Logf("%s: %d devices, %d sessions: prefill %.0f tokens/s, decode %.0f tokens/s", name, n, n*l.sessions, prefill, decode)
				if n > 1 {
					b.ReportMetric(prefill/before[0], "prefill-"+name+"-times")
					b.ReportMetric(decode/before[1], "decode-"+name+"-times")
				}
				before = [2]float64{prefill, decode}
			}
		}
	}
}

// throughput is one measurement.
type throughput struct {
	load
	t      *testing.B
	list   []replicas.Replica
	apart  bool
	filled []map[int]bool // of each replica: sizes of steps whose inputs are there
}

// run returns tokens of a second, of prompts and of answers.
func (r *throughput) run() (prefill, decode float64) {
	for i := range r.filled {
		r.filled[i] = map[int]bool{}
	}
	g := must[*replicas.Group](r.t)(replicas.New(r.list, replicas.Options{}))
	of := make([][]*replicas.Session, len(r.list))
	for range r.sessions * len(r.list) {
		s, _, err := g.Open(r.t.Context(), nil)
		require.NoError(r.t, err)
		defer s.Close()
		of[s.Replica()] = append(of[s.Replica()], s)
	}
	for _, list := range of {
		require.Len(r.t, list, r.sessions)
	}
	prompt := func(replica, n int) []replicas.Chunk { // chunks of one session after the other
		s := of[replica][n*r.chunk/r.context%r.sessions]
		return []replicas.Chunk{{Session: s, Tokens: make([]int32, r.chunk)}}
	}
	r.take(g, 1, prompt) // records
	for _, list := range of {
		require.NoError(r.t, list[0].Truncate(0))
	}
	all := r.sessions * r.context / r.chunk
	prefill = float64(r.chunk*all*len(r.list)) / r.take(g, all, prompt).Seconds()
	next := func(replica, _ int) (list []replicas.Chunk) {
		for _, s := range of[replica] {
			list = append(list, replicas.Chunk{Session: s, Tokens: []int32{1}})
		}
		return list
	}
	for began := time.Now(); ; {
		if r.take(g, 3, next); time.Since(began) >= r.wake {
			break
		}
	}
	return prefill, float64(r.sessions*r.steps*len(r.list)) / r.take(g, r.steps, next).Seconds()
}

// take takes n steps on every replica and says what they took in all.
func (r *throughput) take(g *replicas.Group, n int, chunks func(replica, n int) []replicas.Chunk) time.Duration {
	began := time.Now()
	if !r.apart {
		for i := range n {
			var all []replicas.Chunk
			for replica := range r.list {
				all = append(all, chunks(replica, i)...)
			}
			require.NoError(r.t, g.Step(r.t.Context(), r.through, all...))
		}
		return time.Since(began)
	}
	var group sync.WaitGroup
	for replica := range r.list {
		group.Go(func() {
			for i := range n {
				if err := g.Step(r.t.Context(), r.through, chunks(replica, i)...); err != nil {
					r.t.Error(err)
				}
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// through runs a step of random inputs, which are written once for a size.
func (r *throughput) through(ctx context.Context, p replicas.Part) error {
	st := p.Step
	if !r.filled[p.Replica][st.Size()] {
		r.filled[p.Replica][st.Size()] = true
		rng := rand.New(rand.NewPCG(1, uint64(st.Size())))
		data := make([]byte, st.Input(0).Bytes())
		for i := 0; i < len(data); i += 2 {
			v := numfmt.BF16Encode(float32(rng.NormFloat64()))
			data[i], data[i+1] = byte(v), byte(v>>8)
		}
		for i := range r.list[p.Replica].Engine.Layers() {
			if err := st.Input(i).Upload(ctx, data); err != nil {
				return fmt.Errorf("layer %d: %w", i, err)
			}
		}
	} else if err := probe.ReuseInputs(st); err != nil {
		return err
	}
	return st.Run(ctx)
}
