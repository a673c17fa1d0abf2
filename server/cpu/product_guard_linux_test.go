package cpu

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/server/weights"
)

// TestGuard multiplies blocks that begin or end where readable memory does, as a mapped file's last
// tensor may: a product that reads beyond them ends the process.
func TestGuard(t *testing.T) {
	page := syscall.Getpagesize()
	const room = 1 << 16
	all, err := syscall.Mmap(-1, 0, room+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	require.NoError(t, syscall.Mprotect(all[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[page+room:], syscall.PROT_NONE))
	memory := all[page:][:room]
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for _, name := range inC {
		f := gguf.FormatNamed(name)
		for _, blocks := range []int{1, 2, 3, 7, 8, 9, 17} {
			m := &weights.Matrix{Format: weights.Blocks, N: 3, K: f.Values * blocks, Stored: f, Factor: 1}
			data := fakegguf.Random(rng, "a", name, m.N, m.K).Data
			var in rows
			in.reset(5, m.K, wholes)
			for token := range 5 {
				in.fill(token, make([]float32, m.K))
			}
			for _, m.Data = range [][]byte{memory[:len(data)], memory[room-len(data):]} {
				copy(m.Data, data)
				everyBuild(func() { product(m, &in, []int32{0, 1, 2, 3, 4}, 0, m.N, make([]float32, 5*m.N), m.N) })
			}
		}
	}
}
