package model

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/random"
	"github.com/vkmla/vkmla/server/weights"
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
		var want []float32
		for _, x := range npy(t, filepath.Join(dir, "logits_"+name+"_fp8kv.npy")) {
			want = append(want, math.Float32frombits(x))
		}
		for form, o := range map[string]Options{"processor": {}, "device": {GPU: true}, "offload": {Offload: true}} {
			t.Run(name+"/"+form, func(t *testing.T) {
				o.MaxTokens, o.MaxSessions, o.MaxStep = 400, 2, 256
				if o.Offload {
					o.Memory = roomFor(t, path, o, 2)
				}
				m, err := Open(t.Context(), testkit.Device(t), path, o)
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, m.Close()) })
				assert.Equal(t, o.Offload, m.apart.Layers() == 2)
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
}

// roomFor returns the device memory with which the experts of some layers are there and no more.
func roomFor(t *testing.T, path string, o Options, layers int) uint64 {
	t.Helper()
	w, err := o.weights(path)
	require.NoError(t, err)
	defer w.Close()
	needs, err := gpu.NeedsOf(w, o.MaxStep)
	require.NoError(t, err)
	o.Memory = 1 << 50
	p, err := Plan(t.Context(), testkit.Device(t), path, o)
	require.NoError(t, err)
	require.True(t, p.Whole, p)
	o.Memory = p.Attention + needs.Rest
	for _, n := range needs.Layers[:layers] {
		o.Memory += n
	}
	for missing, want := range []Placement{{Apart: true, Layers: layers}, {Apart: true, Layers: layers - 1}} {
		less := o
		less.Memory -= uint64(missing)
		p, err = Plan(t.Context(), testkit.Device(t), path, less)
		require.NoError(t, err)
		assert.Equal(t, want, Placement{Whole: p.Whole, Apart: p.Apart, Layers: p.Layers}, p)
		assert.LessOrEqual(t, p.Attention+p.Rest, p.Free, p)
	}
	return o.Memory
}

// Experts that memory does not hold are read as they are chosen, and the log says what a token
// reads, once.
func TestFromDisk(t *testing.T) {
	held := hostMemory
	t.Cleanup(func() { hostMemory = held })
	require.Positive(t, hostMemory())
	c, err := random.Config("tiny", 2)
	require.NoError(t, err)
	dir := t.TempDir()
	_, err = random.Write(t.Context(), dir, c, 1)
	require.NoError(t, err)
	w, err := weights.Open(dir)
	require.NoError(t, err)
	defer w.Close()
	p := Placement{}
	p.onHost(w)
	l := &w.Layers[0]
	one := uint64(l.Shared.W1.Bytes() + l.Shared.W2.Bytes() + l.Shared.W3.Bytes())
	each := uint64(l.Experts[0].W1.Bytes() + l.Experts[0].W2.Bytes() + l.Experts[0].W3.Bytes())
	n := uint64(len(w.Layers))
	assert.Equal(t, n*(one+each*uint64(w.Config.Experts)), p.Host)
	assert.Equal(t, n*(one+each*uint64(w.Config.PerToken)), p.Token)
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	hostMemory = func() uint64 { return p.Host }
	assert.False(t, p.fromDisk(log))
	assert.Empty(t, said.String())
	hostMemory = func() uint64 { return p.Host - 1 }
	assert.True(t, p.fromDisk(log))
	assert.Contains(t, said.String(), fmt.Sprintf("bytes_of_a_token=%d", p.Token))
}
