package recorded_test

import (
	"fmt"
	"hash/crc64"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/recorded"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// TestModel holds the weights against those that PyTorch drew: always by a sum of all their bits,
// and by themselves where VKMLA_TEST_GOLDEN has the checkpoint.
func TestModel(t *testing.T) {
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	for _, x := range recorded.Model().Tensors {
		sum.Write(x.Data)
	}
	if dir := testkit.FurtherGolden(t); dir != "" {
		sameWeights(t, filepath.Join(dir, "tiny-v4-a"))
	}
	assert.Equal(t, "ed6f1ca01b7bae3a", fmt.Sprintf("%x", sum.Sum64()))
}

func sameWeights(t *testing.T, dir string) {
	t.Helper()
	m, err := safetensors.Open(dir, safetensors.All)
	require.NoError(t, err)
	defer m.Close()
	for _, x := range recorded.Model().Tensors {
		want, err := m.Tensor("model." + strings.ReplaceAll(x.Name, ".kv_norm.", ".norm."))
		require.NoError(t, err)
		require.Len(t, x.Data, len(want.Data), x.Name)
		for i := range x.Data {
			if x.Data[i] != want.Data[i] {
				t.Errorf("%s: element %d: got %x, want %x", x.Name, i/2, x.Data[i&^1:i|1+1], want.Data[i&^1:i|1+1])
			}
		}
	}
}

// TestLayers holds the recordings against transformers' run where VKMLA_TEST_GOLDEN has it.
func TestLayers(t *testing.T) {
	all, err := recorded.Layers()
	require.NoError(t, err)
	c := recorded.Config()
	require.Len(t, all, len(c.Layers))
	for i, l := range all {
		assert.Len(t, l.In, recorded.Tokens*c.Hidden, "layer %d", i)
		assert.Len(t, l.Out, recorded.Tokens*c.Hidden, "layer %d", i)
	}
	dir := testkit.FurtherGolden(t)
	if dir == "" {
		return
	}
	run, err := vectors.OpenArchive(filepath.Join(dir, "tiny-v4-a", "layers.npz"))
	require.NoError(t, err)
	defer run.Close()
	rounded := func(what string, i int, round func(float32) float32) (x []float32) {
		a, err := run.Array(fmt.Sprintf("fp8kv.L%d.%s", i, what))
		require.NoError(t, err)
		for _, v := range a.F32() {
			x = append(x, round(v))
		}
		return x
	}
	for i, l := range all {
		assert.Equal(t, rounded("in", i, numfmt.BF16Round), l.In, "layer %d", i)
		assert.Equal(t, rounded("out", i, func(v float32) float32 { return numfmt.F16Decode(numfmt.F16Encode(v)) }), l.Out, "layer %d", i)
	}
}
