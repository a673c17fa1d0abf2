package testkit

import (
	"encoding/binary"
	"encoding/csv"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Must returns a function that returns its first argument, or ends the test if the
// second is an error.
func Must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// Upload makes a tensor of fixed-size values, which the test closes at its end.
func Upload[T any](t testing.TB, dev *vk.Device, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	x := Must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
	t.Cleanup(func() { x.Close() })
	Put(t, x, v)
	return x
}

// Zeros makes a tensor of zeros, which the test closes at its end.
func Zeros(t testing.TB, dev *vk.Device, dt tensor.DType, shape ...int) tensor.Tensor {
	t.Helper()
	x := Must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
	t.Cleanup(func() { x.Close() })
	require.NoError(t, x.Upload(t.Context(), make([]byte, x.Bytes())))
	return x
}

// Put writes fixed-size values to a tensor of their size.
func Put[T any](t testing.TB, x tensor.Tensor, v []T) {
	t.Helper()
	b := Must[[]byte](t)(binary.Append(nil, binary.LittleEndian, v))
	require.NoError(t, x.Upload(t.Context(), b))
}

// Download reads a tensor of fixed-size values.
func Download[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	b := make([]byte, x.Bytes())
	require.NoError(t, x.Download(t.Context(), b))
	v := make([]T, x.Len())
	_, err := binary.Decode(b, binary.LittleEndian, v)
	require.NoError(t, err)
	return v
}

// Do records with f and runs what was recorded.
func Do(t testing.TB, dev *vk.Device, f func(rec *vk.Recorder) error) {
	t.Helper()
	rec := Must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	require.NoError(t, f(rec))
	cmd := Must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	require.NoError(t, cmd.Run(t.Context()))
}

// Rejects demands an argument error where an operation is made of a configuration.
func Rejects[C, O any](t *testing.T, dev *vk.Device, make func(*vk.Device, C) (O, error), configs map[string]C) {
	t.Helper()
	for name, cfg := range configs {
		_, err := make(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}

// Changes lists mistakes in arguments by the names that errors have for them.
type Changes[A any] map[string][]func(a *A)

// Refuse is Refuses for each of the changes of good arguments by itself.
func (c Changes[A]) Refuse(t *testing.T, dev *vk.Device, record func(*vk.Recorder, A) error, good A) {
	t.Helper()
	for arg, list := range c {
		for _, change := range list {
			bad := good
			change(&bad)
			Refuses(t, dev, arg, func(rec *vk.Recorder) error { return record(rec, bad) })
		}
	}
}

// Refuses demands an argument error that names the argument, and that nothing was
// recorded.
func Refuses(t *testing.T, dev *vk.Device, arg string, record func(rec *vk.Recorder) error) {
	t.Helper()
	rec := Must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	err := record(rec)
	var wrong *vk.ArgumentError
	if !errors.As(err, &wrong) || !errors.Is(err, vk.ErrArgument) {
		t.Errorf("%s: got %v, want an argument error", arg, err)
		return
	}
	assert.Equal(t, arg, wrong.Arg, "the error is about: %v", err)
	assert.False(t, wrong.Got == "" || wrong.Want == "", "%v does not say what was wrong and what is expected", err)
	assert.Equal(t, 0, rec.Barriers(), "%s: barriers were recorded", arg)
}

// Normal makes n bf16 values of a normal distribution.
func Normal(rng *rand.Rand, n int) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = numfmt.BF16Encode(float32(rng.NormFloat64()))
	}
	return v
}

// DecodeVariants returns the names of opkit.Decodes that the device can run
// for `heads` heads, but for those that are left out.
func DecodeVariants(t testing.TB, dev *vk.Device, heads int) []string {
	t.Helper()
	var names []string
	for _, v := range opkit.Decodes() {
		if err := attention.CanDecode(dev.Adapter(), v.Name, heads); err != nil {
			requireCM(t, v.Name, err.Error())
			t.Logf("left out: %v", err)
			continue
		}
		if !LeftOut(v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}

// LeftOut reports whether tables of cases leave out a variant: where VKMLA_TEST_VARIANTS is
// cm, one without cooperative matrices.
func LeftOut(variant string) bool {
	return os.Getenv("VKMLA_TEST_VARIANTS") == "cm" && !strings.HasSuffix(variant, opkit.CM) && !strings.HasSuffix(variant, opkit.CMB)
}

// CSV reads a table and returns its rows by the names of the columns.
func CSV(t testing.TB, text string) (rows []map[string]string) {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err, text)
	for _, line := range all[1:] {
		row := map[string]string{}
		for i, v := range line {
			row[all[0][i]] = v
		}
		rows = append(rows, row)
	}
	return rows
}

// WithoutMatrices skips a test that executes no kernel with cooperative matrices where only
// those are wanted.
func WithoutMatrices(t testing.TB) {
	t.Helper()
	if LeftOut("") {
		t.Skip("no cooperative matrices")
	}
}

// requireCM fails a test that leaves out a cooperative-matrix variant of f16 where
// VKMLA_TEST_REQUIRE_CM asks for all of them.
func requireCM(t testing.TB, variant, why string) {
	t.Helper()
	assert.False(t, strings.HasSuffix(variant, opkit.CM) && os.Getenv("VKMLA_TEST_REQUIRE_CM") == "1",
		"a cooperative-matrix variant has to run here: %s", why)
}
