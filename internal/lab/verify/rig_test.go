package verify_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRig(t *testing.T) {
	r := verify.NewRig(t.Context(), testkit.Device(t))
	defer r.Close()
	x := vectors.FromI32([]int32{1, 2, 3}, 3)
	in, out, sum := r.In(x, tensor.I32), r.Out(tensor.I32, 5), r.Out(tensor.BF16, 2, 3)
	assert.True(t, r.In(vectors.Array{}, tensor.I32).IsZero(), "the zero array gives a tensor")
	empty := r.Out(tensor.F32, 0, 4)
	r.Do(func(rec *vk.Recorder) error { return rec.Copy(out.Rows(0, 3).View(), in.View()) })
	got, err := r.Results(map[string]tensor.Tensor{"in": in, "out": out, "sum": sum, "empty": empty})
	require.NoError(t, err)
	v := got["out"].I32()
	require.Equal(t, 5, len(v), "out: %x", v)
	require.Equal(t, int32(3), v[2], "out: %x", v)
	assert.Equal(t, uint32(0xA5A5A5A5), uint32(v[3]), "out: %x", v)
	assert.True(t, bytes.Equal(got["in"].Data, x.Data) && got["sum"].String() == "uint16 [2, 3]" &&
		got["empty"].Len() == 0, "results: %v", got)
	for _, v := range got["sum"].BF16() {
		if v == v {
			t.Errorf("a float output starts as %g, want NaN", v)
		}
	}
}

// TestRigFence shows that a write next to a tensor, on either side, is noticed.
func TestRigFence(t *testing.T) {
	dev := testkit.Device(t)
	for where, shift := range map[string]int64{"before": -4, "after": 12} {
		r := verify.NewRig(t.Context(), dev)
		out := r.Out(tensor.I32, 3)
		r.Do(func(rec *vk.Recorder) error {
			return rec.Fill(out.Buffer.View(uint64(int64(out.Offset)+shift), 4), 0)
		})
		_, err := r.Results(map[string]tensor.Tensor{"out": out})
		require.Error(t, err)
		require.Contains(t, err.Error(), "stray write")
		assert.Contains(t, err.Error(), where)
		r.Close()
	}
}

func TestRigErrors(t *testing.T) {
	dev := testkit.Device(t)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	r.In(vectors.FromI32([]int32{1}, 1), tensor.BF16)
	assert.Error(t, r.Err(), "elements of another size were uploaded")
	first := r.Err()
	r.Out(tensor.I32, 1)
	r.Do(func(*vk.Recorder) error { t.Error("something was recorded after an error"); return nil })
	_, err := r.Results(nil)
	assert.ErrorIs(t, err, first, "error")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := verify.NewRig(ctx, dev)
	defer stopped.Close()
	stopped.Out(tensor.F32, 4)
	assert.ErrorIs(t, stopped.Err(), context.Canceled, "with an ended context")
}

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
