package indexer_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var (
	do      = testkit.Do
	refuses = testkit.Refuses
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func upload[T any](t testing.TB, dev *vk.Device, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	return testkit.Upload(t, dev, dt, v, shape...)
}

func download[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	return testkit.Download[T](t, x)
}
