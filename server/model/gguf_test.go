package model

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// npy reads the elements, of four bytes each, of an array in a file of its own.
func npy(t *testing.T, path string) []uint32 {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data = data[10+int(binary.LittleEndian.Uint16(data[8:])):]
	list := make([]uint32, len(data)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return list
}

// TestGGUF runs whole models from GGUF files and holds all logits against a float64 model with FP8
// caches, within what rounding activations to bf16 explains.
func TestGGUF(t *testing.T) {
	dir := testkit.GGUF(t)
	r := &recorded{}
	for _, x := range npy(t, filepath.Join(dir, "tokens.npy")) {
		r.tokens = append(r.tokens, int32(x))
	}
	list, err := filepath.Glob(filepath.Join(dir, "model-*.gguf"))
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, path := range list {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "model-"), ".gguf")
		t.Run(name, func(t *testing.T) {
			m, err := Open(t.Context(), testkit.Device(t), path, Options{MaxTokens: 400, MaxSessions: 2, MaxStep: 256})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, m.Close()) })
			var want []float32
			for _, x := range npy(t, filepath.Join(dir, "logits_"+name+"_fp8kv.npy")) {
				want = append(want, math.Float32frombits(x))
			}
			logits := r.run(t, m, []int{256, 1, 143})
			require.Len(t, want, len(logits)*m.Config.Vocab)
			a := agree(logits, want)
			t.Logf("%+v", a)
			assert.LessOrEqual(t, a.median, 0.02)
			assert.LessOrEqual(t, a.most90, 0.03)
			assert.GreaterOrEqual(t, a.argmax, 370./400)
		})
	}
}
