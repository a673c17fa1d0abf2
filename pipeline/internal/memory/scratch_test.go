package memory

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestScratch demands of random tensors that those with a use in common share no byte, that those
// of one name begin at the same, and that all bytes without a tensor in use are idle.
func TestScratch(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for range 50 {
		s, n := Scratch{}, 1+rng.IntN(20)
		tensors, uses, lengths := make([][2]tensor.Tensor, n), make([]Use, n), make([]int, n)
		var live [8]uint64
		sum := uint64(0)
		for i := range tensors {
			if uses[i] = Use(1 + rng.IntN(7)); rng.IntN(8) == 0 {
				uses[i] = Always
			}
			for k := range tensors[i] {
				length := rng.IntN(3000)
				s.Add(fmt.Sprint(i), uses[i], &tensors[i][k], tensor.F32, length)
				require.Equal(t, []int{length}, tensors[i][k].Shape)
				lengths[i] = max(lengths[i], length)
			}
			need := tensor.Need(tensor.F32, lengths[i])
			sum += need
			for bit := range live {
				if uses[i]>>bit&1 != 0 {
					live[bit] += need
				}
			}
		}
		bytes := s.Bytes()
		assert.LessOrEqual(t, bytes, sum)
		for _, most := range live {
			require.GreaterOrEqual(t, bytes, most)
		}
		buffer := must[*vk.Buffer](t)(dev.NewBuffer(vk.BufferSpec{Label: "test", Size: bytes, Memory: vk.DeviceLocal}))
		s.Place(buffer)
		covered := func(at uint64, now Use) (covered bool) {
			for i, x := range tensors {
				in := at >= x[0].Offset && at < x[0].Offset+tensor.Need(tensor.F32, lengths[i])
				covered = covered || in && (uses[i]&now != 0 || uses[i] == Always)
			}
			return covered
		}
		for i, x := range tensors {
			assert.Equal(t, x[0].Offset, x[1].Offset, "one name")
			for j := range i {
				y := tensors[j][0]
				apart := x[0].Offset >= y.Offset+tensor.Need(tensor.F32, lengths[j]) ||
					y.Offset >= x[0].Offset+tensor.Need(tensor.F32, lengths[i])
				require.True(t, apart || uses[i]&uses[j] == 0, "%d and %d overlap", i, j)
			}
		}
		for now := range Use(8) {
			idle := map[uint64]bool{}
			for _, r := range s.Idle(now) {
				for at := r[0]; at < r[1]; at += tensor.Align {
					idle[at] = true
				}
			}
			for at := uint64(0); at < bytes; at += tensor.Align {
				require.Equal(t, !covered(at, now), idle[at], "byte %d, in use %b", at, now)
			}
		}
		require.NoError(t, buffer.Close())
	}
}

// TestScratchLimits demands that what no descriptor or buffer holds is found, that Keep keeps all
// apart, and that a later Add and Place move all.
func TestScratchLimits(t *testing.T) {
	dev := testkit.Device(t)
	var s Scratch
	var a, b, c tensor.Tensor
	s.Add("a", 1, &a, tensor.U8, 1000)
	s.Add("b", 2, &b, tensor.U8, 600)
	assert.EqualValues(t, 1024, s.Bytes())
	assert.NoError(t, s.Fits("test", &vk.Caps{MaxStorageBufferRange: 1024, MaxBuffer: 1024}))
	assert.ErrorContains(t, s.Fits("test", &vk.Caps{MaxStorageBufferRange: 1023}), "a tensor [1000]")
	assert.ErrorContains(t, s.Fits("test", &vk.Caps{MaxStorageBufferRange: 1024, MaxBuffer: 1023}), "a buffer of 2 tensors")
	s.Keep()
	assert.EqualValues(t, 1024+768, s.Bytes())
	s.Add("c", 4, &c, tensor.U8, 2000)
	for range 2 {
		buffer := must[*vk.Buffer](t)(dev.NewBuffer(vk.BufferSpec{Label: "test", Size: s.Bytes(), Memory: vk.DeviceLocal}))
		defer buffer.Close()
		s.Place(buffer)
		assert.Same(t, buffer, a.Buffer)
		assert.Same(t, buffer, c.Buffer)
	}
}

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }
