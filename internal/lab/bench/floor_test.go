package bench

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A kernel that does not read all that it is for is not used.
func TestReader(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	for _, name := range []string{"bench_read", readKernel(dev)} {
		code, err := kernels.Get(name)
		require.NoError(t, err)
		require.NoError(t, spirv.ComparePush(code.SPIRV, benchReadPush{}))
		r, err := newReader(ctx, dev, name, readShape{64, 3, 5})
		require.NoError(t, err)
		pattern := make([]byte, readPattern)
		err = r.check(ctx, dev, pattern)
		assert.ErrorContains(t, err, "add up to 0", "%s: the words are not zeros", name)
		assert.NoError(t, errors.Join(r.src.Upload(ctx, make([]byte, r.src.Bytes())), r.check(ctx, dev, pattern), r.close()),
			"%s: the words are zeros", name)
	}
}

// A floor has as many launches one after the other as the part, and reads its bytes.
func TestFloors(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	x, err := tensor.New(dev, "test", tensor.U32, 64)
	require.NoError(t, err)
	defer x.Close()
	f := &floors{}
	require.NoError(t, f.open(ctx, dev))
	for want := range 3 {
		f.reader.at = 0
		us, launches, err := f.below(ctx, dev, opPart{Work: verify.Work{Bytes: 8192}, inner: 1, record: func(rec *vk.Recorder, _ int) error {
			err := rec.Fill(x.View(), 1)
			for range want {
				err = errors.Join(err, rec.Fill(x.View(), 2))
			}
			return err
		}}, 0, 2)
		assert.NoError(t, err, "%d launches of %g us", launches, us)
		assert.Equal(t, want+1, launches, "%d launches of %g us", launches, us)
		assert.Greater(t, us, float64(0), "%d launches of %g us", launches, us)
		assert.Equal(t, uint64(2*(8192+want*viewAlign)), f.reader.at, "two samples go on by %d bytes", f.reader.at)
	}
	assert.NoError(t, f.close())
}
