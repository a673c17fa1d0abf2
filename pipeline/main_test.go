package pipeline_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(saverVar); dir != "" { // TestSaveKilled started this process
		fmt.Fprintln(os.Stderr, saver(dir))
		os.Exit(1)
	}
	testkit.Main(m)
}

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func filled[T any](n int, v T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

func bf16(values []float32) []byte {
	var data []byte
	for _, v := range values {
		b := numfmt.BF16Encode(v)
		data = append(data, byte(b), byte(b>>8))
	}
	return data
}

func floats(v []uint16) []float32 {
	f := make([]float32, len(v))
	for i := range v {
		f[i] = numfmt.BF16Decode(v[i])
	}
	return f
}

func fake(t testing.TB, o fakemodel.Options) *fakemodel.Model {
	t.Helper()
	if o.Config.Layers == nil {
		o.Config = fakemodel.Config(1, 4, 128)
	}
	return must[*fakemodel.Model](t)(fakemodel.New(o))
}

// openFake writes a model and opens it.
func openFake(t testing.TB, m *fakemodel.Model, shards int, o model.CheckpointOptions) (*model.Checkpoint, error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, shards))
	c, err := model.Open(dir, o)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}
