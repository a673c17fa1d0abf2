package opkit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// Where every element is in one component, MatrixRows finds what follows from where they lie, and
// asking again finds the same.
func TestMatrixRows(t *testing.T) {
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
		if words == nil || k%8 != 0 {
			return false, false
		}
		for rows := range 3 {
			want := rows
			for i, word := range words[m*k+k*n:] { // of C, whose columns are alike with 1 and 2
				if int(word)%n != i%subgroup%n {
					want = 0
				}
			}
			for _, x := range []struct{ size, row, number, lines int }{{0, k, 1, m}, {m * k, 1, n, n}} { // A, B
				each := x.lines * k / subgroup
				for i := range each {
					for l := range subgroup {
						row, number := l%16, l/16*each+i
						if rows == 2 {
							row, number = i, l
						}
						if int(words[x.size+i*subgroup+l]) != row*x.row+number*x.number {
							want = 0
						}
					}
				}
			}
			for range 2 {
				got, err := p.MatrixRows(dev, opkit.CM, m, n, k, subgroup, rows)
				require.NoError(t, err)
				assert.Equal(t, want, got, "%dx%dx%d, rows %d", m, n, k, rows)
			}
			if dev.Adapter().Type == vk.TypeCPU && m == 8 && rows == 2 {
				assert.Equal(t, 2, want, "the tests of package indexer expect that lavapipe's lanes hold numbers of all rows")
			}
		}
		return true, true
	})
	if err != nil {
		t.Log(err)
	}
}
