package indexer_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// must returns v, or ends the test.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// upload makes a tensor of fixed-size values, which the test closes at its end.
func upload[T any](t testing.TB, dev *vk.Device, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	x := must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
	t.Cleanup(func() { x.Close() })
	if err := x.Upload(t.Context(), must[[]byte](t)(binary.Append(nil, binary.LittleEndian, v))); err != nil {
		t.Fatal(err)
	}
	return x
}

func download[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	b := make([]byte, x.Bytes())
	if err := x.Download(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	v := make([]T, x.Len())
	if _, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// do records with f and runs what was recorded.
func do(t testing.TB, dev *vk.Device, f func(rec *vk.Recorder) error) {
	t.Helper()
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	if err := f(rec); err != nil {
		t.Fatal(err)
	}
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	if err := cmd.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// refuses demands an argument error that names the argument, and that nothing was
// recorded.
func refuses(t *testing.T, dev *vk.Device, arg string, record func(rec *vk.Recorder) error) {
	t.Helper()
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	err := record(rec)
	var wrong *vk.ArgumentError
	if !errors.As(err, &wrong) || !errors.Is(err, vk.ErrArgument) {
		t.Errorf("%s: got %v, want an argument error", arg, err)
		return
	}
	if wrong.Arg != arg {
		t.Errorf("%s: the error is about %s: %v", arg, wrong.Arg, err)
	}
	if n := rec.Barriers(); n != 0 {
		t.Errorf("%s: %d barriers were recorded", arg, n)
	}
}

// normal makes n bf16 values of a normal distribution.
func normal(rng *rand.Rand, n int) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = numfmt.BF16Encode(float32(rng.NormFloat64()))
	}
	return v
}
