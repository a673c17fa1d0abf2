package pipeline_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/pipeline"
)

func TestEngineFirst(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(pipeline.RatioWindow, pipeline.RatioC4A, pipeline.RatioC128A)})))
	e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 300, MaxSessions: 3, MaxStep: 140, KeepTopK: true}))
	defer e.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	const tokens = 140
	hidden := make([]uint16, tokens*cfg.Hidden)
	for i := range hidden {
		hidden[i] = normal(rng, 1)[0]
	}
	s := must[*pipeline.Session](t)(e.Open())
	at := 0
	var outs [3][]uint16
	for _, n := range []int{130, 1, 1, 3, 5} {
		st := must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: n}))
		for i := range layers {
			in := st.Input(i)
			put(t, in.Rows(0, n), hidden[at*cfg.Hidden:(at+n)*cfg.Hidden])
		}
		if err := st.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range layers {
			outs[i] = append(outs[i], testkit.Download[uint16](t, st.Output(i).Rows(0, n))...)
		}
		if err := st.Commit(); err != nil {
			t.Fatal(err)
		}
		at += n
	}
	f := make([]float32, len(hidden))
	for i, v := range hidden {
		f[i] = bf(v)
	}
	for i := range layers {
		r := must[*pipeline.Runner](t)(pipeline.NewRunner(t.Context(), dev, cfg, layers, pipeline.RunnerOptions{MaxTokens: tokens, Chunk: 130}))
		want := division(t, r, i, cfg.Hidden, 130, f)
		r.Close()
		var got []float32
		for _, v := range outs[i] {
			got = append(got, bf(v))
		}
		t.Log(i, distance(got, want.Out), slices.Max(got))
	}
	t.Logf("%+v", e.Memory())
}

func bf(v uint16) float32 { return numfmt.BF16Decode(v) }
