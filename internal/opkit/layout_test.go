package opkit_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Every element of each matrix is in one component of one lane, where the device holds
// them so, and asking again finds the same.
func TestMatrixLayout(t *testing.T) {
	dev := testkit.Device(t)
	caps := dev.Caps()
	if !caps.Features["coopmat.f16.f32"] {
		t.Skip(dev.Adapter().Name + " has no products of f16 matrices with f32 sums")
	}
	p, subgroup := opkit.Package("pkg"), int(caps.MinSubgroupSize)
	_, err := opkit.FitMatrix(caps, "f16", func(s vk.CoopMatShape) (bool, bool) {
		m, n, k := int(s.M), int(s.N), int(s.K)
		words, err := p.MatrixLayout(dev, opkit.CM, m, n, k, subgroup)
		require.NoError(t, err)
		if words == nil {
			t.Logf("%dx%dx%d: the lanes of %s have no equal shares of their own", m, n, k, dev.Adapter().Name)
			return false, false
		}
		require.Equal(t, m*k+k*n+m*n, len(words), "%dx%dx%d: words", m, n, k)
		again := slices.Clone(words)
		words[0]++ // which is this caller's alone
		got, err := p.MatrixLayout(dev, opkit.CM, m, n, k, subgroup)
		require.NoError(t, err, "%dx%dx%d: %v and then %v", m, n, k, again, got)
		assert.True(t, slices.Equal(got, again), "%dx%dx%d: %v and then %v", m, n, k, again, got)
		for i, size := range []int{m * k, k * n, m * n} {
			one := slices.Sorted(slices.Values(again[:size]))
			for at, w := range one {
				if int(w) != at {
					t.Errorf("%dx%dx%d, matrix %d: no permutation: %v", m, n, k, i, again[:size])
					break
				}
			}
			again = again[size:]
		}
		return true, true
	})
	if err != nil {
		t.Log(err)
	}
}
