package verify_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// No two sizes that are timed by default have one name.
func TestSizeNames(t *testing.T) {
	for _, op := range verify.All() {
		for _, o := range []verify.SizeOptions{{}, {Slow: true}, {TopK: []int{512, 8192}}} {
			names := map[string]bool{}
			if op.Sizes == nil {
				continue
			}
			for _, size := range op.Sizes(o) {
				assert.False(t, names[size.Name], "%s has %s twice", op.Name, size.Name)
				names[size.Name] = true
			}
		}
	}
}

// smallSizes are sizes that the references of all operations are quick for.
var smallSizes = verify.SizeOptions{
	Slow: true, Heads: []int{8}, IndexHeads: 3, TopK: []int{61}, Batches: []int{1, 3}, Prefill: []int{129}, Contexts: []int{700},
	Rows: []int{512}, Weights: nil, Products: []verify.Product{{Model: "small", Matrix: "wo_a", N: 136, K: 256, Groups: 2}}}

// What is timed is right in the last of several sets of operands, and is called wrong where
// the operands are others than the reference was told.
func TestTimedSizes(t *testing.T) {
	dev := testkit.Device(t)
	suites := map[string]int{}
	for _, op := range verify.All() {
		if op.Suite == "" {
			continue
		}
		suites[op.Suite]++
		for _, size := range op.Sizes(smallSizes) {
			t.Run(op.Name+"/"+size.Name, func(t *testing.T) {
				c := size.Make(rand.New(rand.NewPCG(1, 2)))
				b, err := op.Bind(verify.Build{Dev: dev, MaxBytes: size.MaxBytes}, c)
				require.NoError(t, err)
				s, err := verify.NewSets(t.Context(), dev, b, 3, true, 1)
				require.NoError(t, err)
				defer s.Close()
				res, err := s.Check(op, c, b.Variant)
				require.NoError(t, err)
				require.True(t, res.Pass, "%+v", res)
				assert.Positive(t, size.Bytes)
				assert.Positive(t, size.Touched)
				require.NoError(t, s.Spoil(0x3c3c3c3c))
				res, err = s.Check(op, c, b.Variant)
				require.NoError(t, err)
				assert.False(t, res.Pass, "spoiled, and passes: %+v", res)
			})
		}
	}
	assert.Equal(t, map[string]int{"attention": 2, "indexer": 12, "memory": 8, "linear": 1}, suites)
}
