package model

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// recorded is a whole model and what it was seen to compute in float32.
type recorded struct {
	dir     string
	archive *vectors.Archive
	tokens  []int32
	d, v    int
	logits  string // its name in the archive
	first   int    // position of the first recorded logits
}

// openRecorded opens one of the models beside the recorded vectors.
func openRecorded(t *testing.T, name string) *recorded {
	t.Helper()
	golden := os.Getenv("VKMLA_TEST_GOLDEN")
	if golden == "" {
		t.Skip("VKMLA_TEST_GOLDEN is not set: no recorded models")
	}
	r := &recorded{dir: filepath.Join(golden, name), logits: "logits"}
	if name == "tiny-v4-a" {
		r.logits = "logits_last8_then_decode"
	}
	var err error
	r.archive, err = vectors.OpenArchive(filepath.Join(r.dir, "layers.npz"))
	require.NoError(t, err)
	r.tokens = r.array(t, "tokens").I32()
	cfg, err := weights.LoadConfig(r.dir)
	require.NoError(t, err)
	r.d, r.v = cfg.Hidden, cfg.Vocab
	r.first = len(r.tokens) - len(r.rows(t, "exact."+r.logits))/r.v
	return r
}

func (r *recorded) array(t *testing.T, name string) vectors.Array {
	t.Helper()
	a, err := r.archive.Array(name)
	require.NoError(t, err)
	return a
}

func (r *recorded) rows(t *testing.T, name string) []float32 { return r.array(t, name).F32() }

// wanted are the positions with recorded logits.
func (r *recorded) wanted() (list []int) {
	for i := r.first; i < len(r.tokens); i++ {
		list = append(list, i)
	}
	return list
}

// agreement says how near rows are to recorded ones.
type agreement struct {
	median, most90, worst float64 // of |got - want| / |want|
	argmax                float64 // how many rows have the same largest number
	divergence            float64 // mean KL(want, got)
	relative, largest     float64 // of all numbers together
}

func agree(got [][]float32, want []float32) (a agreement) {
	var off []float64
	total, wrong := 0.0, 0.0
	for i, g := range got {
		w := want[i*len(g):][:len(g)]
		d2, w2 := 0.0, 0.0
		for k := range g {
			d := float64(g[k]) - float64(w[k])
			d2, w2, a.largest = d2+d*d, w2+float64(w[k])*float64(w[k]), max(a.largest, math.Abs(d))
		}
		off = append(off, math.Sqrt(d2/w2))
		total, wrong = total+w2, wrong+d2
		if slices.Index(g, slices.Max(g)) == slices.Index(w, slices.Max(w)) {
			a.argmax++
		}
		p, q := logSoftmax(w), logSoftmax(g)
		for k := range p {
			a.divergence += math.Exp(p[k]) * (p[k] - q[k])
		}
	}
	n := len(off)
	slices.Sort(off)
	a.median, a.most90, a.worst = off[n/2], off[n*9/10], off[n-1]
	a.argmax, a.divergence, a.relative = a.argmax/float64(n), a.divergence/float64(n), math.Sqrt(wrong/total)
	return a
}

func logSoftmax(x []float32) []float64 {
	top, sum := float64(slices.Max(x)), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	p := make([]float64, len(x))
	for i, v := range x {
		p[i] = float64(v) - top - math.Log(sum)
	}
	return p
}

// forced runs what is not attention, with the attention's recorded outputs. inputs are those that
// the attention would have got.
func (r *recorded) forced(t *testing.T, run string, exact bool) (logits [][]float32, inputs [][][]float32) {
	t.Helper()
	w, err := weights.Open(r.dir)
	require.NoError(t, err)
	defer w.Close()
	m := &Model{Config: w.Config, Weights: w, cpu: cpu.New(w, cpu.Options{Exact: exact})}
	defer m.cpu.Close()
	logits, err = m.forward(t.Context(), r.tokens, r.wanted(), func(layer int, x, f []float32) error {
		var list [][]float32
		for at := 0; at < len(x); at += r.d {
			list = append(list, slices.Clone(x[at:][:r.d]))
		}
		inputs = append(inputs, list)
		out := r.rows(t, layerName(run, layer, "out"))
		for i, v := range out {
			if f[i] = v; !exact {
				f[i] = numfmt.BF16Round(v) // attention stores bf16
			}
		}
		return nil
	})
	require.NoError(t, err)
	return logits, inputs
}

func layerName(run string, layer int, what string) string {
	return run + ".L" + string(rune('0'+layer)) + "." + what
}

// TestForced holds everything but attention against a float32 implementation: without rounding
// to nearly its digits, with bf16 activations within what rounding explains.
func TestForced(t *testing.T) {
	for _, name := range []string{"tiny-v4-a", "tiny-v4-c"} {
		r := openRecorded(t, name)
		for _, run := range []string{"exact", "fp8kv"} {
			want := r.rows(t, run+"."+r.logits)
			logits, inputs := r.forced(t, run, true)
			a := agree(logits, want)
			t.Logf("%s, %s, float32: %+v", name, run, a)
			assert.Less(t, a.relative, 1e-4, "%s: float32", name)
			assert.Less(t, a.largest, 1e-3, "%s: float32", name)
			for l, in := range inputs {
				assert.Less(t, agree(in, r.rows(t, layerName(run, l, "in"))).relative, 1e-4, "%s: float32, L%d.in", name, l)
			}
		}
		logits, inputs := r.forced(t, "exact", false)
		r.within(t, name, logits, inputs)
		logits, inputs = r.forcedGPU(t, "exact")
		r.within(t, name+", device", logits, inputs)
	}
}

// within holds the bounds that rounding to bf16 explains.
func (r *recorded) within(t *testing.T, name string, logits [][]float32, inputs [][][]float32) {
	t.Helper()
	a := agree(logits, r.rows(t, "exact."+r.logits))
	t.Logf("%s, bf16: %+v", name, a)
	assert.LessOrEqual(t, a.median, 1.6e-2, name)
	assert.LessOrEqual(t, a.most90, 3e-2, name)
	alone := strings.HasPrefix(name, "tiny-v4-a")
	least := 0.95
	if alone {
		least = 42. / 48
	}
	assert.GreaterOrEqual(t, a.argmax, least, name)
	for l, most := range []float64{3.5e-3, 9e-3, 1.2e-2, 1.4e-2} {
		a := agree(inputs[l], r.rows(t, layerName("exact", l, "in")))
		if alone { // the bounds are this model's
			assert.LessOrEqual(t, a.median, most, "%s L%d.in", name, l)
		}
	}
}

// TestWhole runs whole models, in prompts of uneven pieces beside another sequence, within the
// bounds that hold for bf16 activations and FP8 caches. Unless bits vary, a sequence's logits do
// not depend on how it is cut or on what runs beside it.
func TestWhole(t *testing.T) {
	names := []string{"tiny-v4-c"}
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		names = append(names, "tiny-v4-a")
	}
	for _, name := range names {
		r := openRecorded(t, name)
		for form, o := range map[string]Options{"experts on the processor": {}, "experts on the device": {GPU: true},
			"bits vary": {GPU: true, Varies: true}} {
			t.Run(name+", "+form, func(t *testing.T) { r.whole(t, name, o) })
		}
	}
}

func (r *recorded) whole(t *testing.T, name string, o Options) {
	o.MaxTokens, o.MaxSessions, o.MaxStep = 400, 3, 256
	m, err := Open(t.Context(), testkit.Device(t), r.dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })

	logits := r.run(t, m, []int{256, 84})
	a := agree(logits[r.first:], r.rows(t, "fp8kv."+r.logits))
	t.Logf("%+v", a)
	median, argmax, divergence := 8e-2, .8, 1.2e-2
	if name == "tiny-v4-a" {
		median, argmax, divergence = 6e-2, .75, 2e-2
	}
	assert.LessOrEqual(t, a.median, median)
	assert.LessOrEqual(t, a.most90, 2.5e-1)
	assert.GreaterOrEqual(t, a.argmax, argmax)
	assert.LessOrEqual(t, a.divergence, divergence)

	if !o.Varies {
		assert.Equal(t, logits, r.run(t, m, []int{1, 99, 17, 130, 1, 1, 2, 3, 86}), "cut elsewhere")
	}
}

// run takes the recorded tokens through a model in pieces. Beside it another sequence takes tokens
// where there is room.
func (r *recorded) run(t *testing.T, m *Model, pieces []int) (logits [][]float32) {
	t.Helper()
	open := func() *Sequence {
		s, err := m.NewSequence()
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	one, other := open(), open()
	defer one.Close()
	defer other.Close()
	at := 0
	for _, n := range pieces {
		c := Chunk{Sequence: one, Tokens: r.tokens[at:][:n]}
		for i := range n {
			c.Logits = append(c.Logits, i)
		}
		chunks := []Chunk{c}
		if n < 200 && at > 0 {
			chunks = []Chunk{{Sequence: other, Tokens: r.tokens[7:10]}, c}
		}
		got, err := m.Step(t.Context(), chunks...)
		require.NoError(t, err)
		for _, row := range got {
			logits = append(logits, slices.Clone(row)) // the next step writes over it
		}
		at += n
	}
	return logits
}
