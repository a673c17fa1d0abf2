package projection_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A workgroup that never gives what others wait for ends the commands with an error, soon, each
// time that they run. From then on there is a launch for each layer, without waits, with the bits
// that there would have been.
func TestStarvedChain(t *testing.T) {
	adapter := testkit.Device(t).Adapter()
	if missing := adapter.Caps.Missing(shaders.Requires("proj_linear_chain_da")); missing != nil {
		t.Skip("the device lacks ", missing)
	}
	const looks = 3000 // older Mesa's CPU drivers end loops after 65535 rounds
	for name, c := range map[string]struct {
		joined   bool
		silent   int
		launches int
	}{
		"a product":        {false, 1, 2},
		"a joining":        {true, 5, 3},
		"behind a joining": {true, 4*4 + 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			dev := must[*vk.Device](t)(adapter.Open(vk.DeviceOptions{}))
			defer func() { assert.NoError(t, dev.Close()) }()
			r := newJoinRig(t, dev, opkit.DA, 1, 2)
			defer r.close()
			args := func(name string) projection.LinearChainArgs {
				a := r.args(name)
				if !c.joined {
					a.First.X = r.x.X
					delete(r.names, "x"+name)
				}
				return a
			}
			want, got := args("want"), args("got")
			if c.joined {
				rng := rand.New(rand.NewPCG(testkit.Seed(t), 6))
				acc, state := make([]float32, 3*r.heads*cache.D), make([]float32, 3*r.heads*4)
				for i := range acc {
					acc[i] = float32(rng.NormFloat64())
				}
				for i := range 3 * r.heads {
					state[4*i], state[4*i+1] = float32(rng.NormFloat64()), 1
				}
				want.Parts.Out = r.In(vectors.FromF32(acc, 1, 3, r.heads, cache.D), tensor.F32)
				want.Parts.State = r.In(vectors.FromF32(state, 1, 3, r.heads, 4), tensor.F32)
				got.Parts = want.Parts
				r.Do(func(rec *vk.Recorder) error { return r.chain.Record(rec, want) })
			}
			r.Do(func(rec *vk.Recorder) error { return r.first.Record(rec, want.First) })
			r.Do(func(rec *vk.Recorder) error { return r.second.Record(rec, want.Second) })
			require.NoError(t, r.Err())

			chain := must[*projection.LinearChain](t)(projection.StarvedChain(r.first, r.second, 1, c.joined, c.silent, looks))
			record := func() *vk.Commands {
				rec := must[*vk.Recorder](t)(dev.NewRecorder())
				require.NoError(t, chain.Record(rec, got))
				return must[*vk.Commands](t)(rec.End())
			}
			cmd := record()
			start := time.Now()
			for range 3 { // as the state that a launch leaves is as good as before
				err := cmd.Run(t.Context())
				require.ErrorIs(t, err, vk.ErrStarved)
				assert.ErrorContains(t, err, "gave up waiting for others, want all that have begun to go on")
			}
			assert.Less(t, time.Since(start), 15*time.Minute)
			assert.Equal(t, 1, door.Operations(cmd))
			require.NoError(t, cmd.Close())
			assert.True(t, dev.Starved())
			assert.NoError(t, dev.Err(), "the device is as good as before")
			cmd = record()
			for range 2 {
				require.NoError(t, cmd.Run(t.Context()))
			}
			assert.Equal(t, c.launches, door.Operations(cmd))
			require.NoError(t, cmd.Close())
			results := must[verify.Arrays](t)(r.Results(r.names))
			for _, name := range []string{"x", "z", "y"} {
				if c.joined || name != "x" {
					assert.True(t, slices.Equal(results[name+"want"].Data, results[name+"got"].Data), "%s differs", name)
				}
			}
			assert.Equal(t, ^uint32(0)>>1, download[uint32](t, r.state)[0]&(^uint32(0)>>1), "the counter")
		})
	}
}
