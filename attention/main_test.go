package attention_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var (
	refuses  = testkit.Refuses
	normal   = testkit.Normal
	variants = testkit.DecodeVariants
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

// set makes a set of cached rows: rows [n, 512] quantised into slots 5, 6, .. of a
// pool that is poison elsewhere, each token's list naming them in order.
func set(t *testing.T, page, tokens int, rows []uint16) *attention.Slots {
	t.Helper()
	return recordSet(t, cache.RecordV4, page, tokens, rows)
}

// recordSet is set for pages of any record.
func recordSet(t *testing.T, record cache.Record, page, tokens int, rows []uint16) *attention.Slots {
	t.Helper()
	n := len(rows) / cache.D
	l := must[cache.Layout](t)(cache.NewRecordLayout(record, page, 0))
	s := &attention.Slots{Layout: l, Width: n, Pool: slices.Repeat([]byte{0xFF}, l.Stride*((n+5)/page+2))}
	slots := make([]int64, n)
	for i := range slots {
		slots[i] = int64(5 + i)
	}
	require.NoError(t, cache.InsertRef(s.Pool, l, rows, slots))
	for range tokens {
		for i := range n {
			s.Indices = append(s.Indices, int32(5+i))
		}
		s.Lens = append(s.Lens, int32(n))
	}
	return s
}

// step is a decode step in host memory.
type step struct {
	heads     int
	q         []uint16
	win, comp *attention.Slots
	sink      []float32
}

func (s step) tokens() int { return len(s.q) / s.heads / cache.D }

// config is a configuration that suits the step.
func (s step) config(variant string) attention.DecoderConfig {
	cfg := attention.DecoderConfig{Heads: s.heads, WindowPage: s.win.Layout.Page, WindowRecord: s.win.Layout.Record, Variant: variant}
	if s.comp != nil {
		cfg.CompressedPage, cfg.CompressedRecord = s.comp.Layout.Page, s.comp.Layout.Record
	}
	return cfg
}

// args places the operands of the step.
func (s step) args(r *verify.Rig, op *attention.Decoder) attention.DecodeArgs {
	a := attention.DecodeArgs{
		Q:      r.In(vectors.FromU16(s.q, s.tokens(), s.heads, cache.D), tensor.BF16),
		Window: verify.SlotSet(r, s.win, 0), Compressed: verify.SlotSet(r, s.comp, 0),
		Out: r.Out(tensor.BF16, s.tokens(), s.heads, cache.D), LSE: r.Out(tensor.F32, s.tokens(), s.heads),
	}
	if s.sink != nil {
		a.Sink = r.In(vectors.FromF32(s.sink, s.heads), tensor.F32)
	}
	topk := 0
	if s.comp != nil {
		topk = s.comp.Width
	}
	a.Scratch = r.Scratch(op.ScratchBytes(s.tokens(), s.win.Width, topk))
	return a
}

// decode runs the step.
func (s step) decode(t *testing.T, dev *vk.Device, cfg attention.DecoderConfig) (out []uint16, lse []float32) {
	t.Helper()
	op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	return runDecode(t, r, op, s.args(r, op))
}

// runDecode runs an operation with operands of a rig.
func runDecode(t *testing.T, r *verify.Rig, op *attention.Decoder, a attention.DecodeArgs) (out []uint16, lse []float32) {
	t.Helper()
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "lse": a.LSE}))
	return got["out"].U16(), got["lse"].F32()
}

// check holds what a variant gave for a step against the reference.
func (s step) check(t *testing.T, variant string, out []uint16, lse []float32) {
	t.Helper()
	want, wantLSE, err := attention.DecodeRef(s.q, s.heads, s.win, s.comp, s.sink, attention.DefaultScale)
	require.NoError(t, err)
	r := verify.NewComparison(verify.ClassTolerance).
		CloseWeighted("out", vectors.FromU16(out, len(out)), vectors.FromF32(want, len(want)), verify.DecodeOut, sides(variant),
			func() ([]float32, error) {
				return attention.DecodeSpreadRef(s.q, s.heads, s.win, s.comp, s.sink, attention.DefaultScale)
			}).
		Close("lse", vectors.FromF32(lse, len(lse)), vectors.FromF32(wantLSE, len(wantLSE)), verify.DecodeLSE).Result()
	assert.True(t, r.Pass, r.Detail)
}

// sides is 1 for a variant with rounded softmax weights, held against exact ones.
func sides(variant string) int {
	if verify.RoundsWeights(variant) {
		return 1
	}
	return 0
}

func inf(sign int) float32 { return float32(math.Inf(sign)) }

// subtest names a subtest after some values.
func subtest(v ...any) string { return fmt.Sprintf("%v", v) }
