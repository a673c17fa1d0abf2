package attention

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// profile returns a profile of package tuning by its name.
func profile(t testing.TB, name string) *tuning.Profile {
	t.Helper()
	p, err := tuning.Named(name)
	require.NoError(t, err)
	return p
}

// known returns the matrixFit that finds tilings for a device of package knowncaps.
func known(t testing.TB, device string) matrixFit {
	t.Helper()
	caps, ok := knowncaps.Matrix[device]
	require.True(t, ok, device)
	return matrixFit{&caps, profile(t, "generic")}
}

// module is the SPIR-V of a kernel.
func module(t testing.TB, name string) *spirv.Module {
	t.Helper()
	k, err := shaders.Get(name)
	require.NoError(t, err)
	m, err := spirv.Parse(k.SPIRV)
	require.NoError(t, err)
	return m
}

// The tilings with the most heads that devices have room for.
func TestMatrixTilings(t *testing.T) {
	for _, c := range []struct {
		device, element string
		heads           int
		prefill, decode matrixTiling
		norms           bool // of decode
	}{
		{"H100", "f16", 128, matrixTiling{16, 16, 16, 64, 16, 32, 8, 2}, matrixTiling{16, 16, 16, 32, 32, 32, 8, 2}, false},
		{"H100", "bf16", 61, matrixTiling{16, 16, 16, 64, 16, 32, 8, 2}, matrixTiling{16, 16, 16, 32, 32, 32, 8, 2}, false},
		{"H100", "f16", 17, matrixTiling{16, 16, 16, 32, 16, 32, 8, 4}, matrixTiling{16, 16, 16, 32, 32, 32, 8, 2}, false},
		{"H100", "f16", 1, matrixTiling{16, 16, 16, 16, 16, 32, 8, 8}, matrixTiling{16, 16, 16, 16, 32, 32, 16, 4}, true},
		{"RDNA3", "f16", 128, matrixTiling{16, 16, 16, 32, 16, 32, 8, 4}, matrixTiling{16, 16, 16, 32, 32, 32, 8, 4}, false},
		{"RDNA4", "bf16", 8, matrixTiling{16, 16, 16, 16, 16, 32, 8, 8}, matrixTiling{16, 16, 16, 16, 32, 32, 16, 8}, true},
		{"Arc B", "bf16", 128, matrixTiling{8, 16, 16, 16, 16, 16, 16, 8}, matrixTiling{8, 16, 16, 16, 32, 16, 16, 4}, true},
		{"lavapipe", "f16", 64, matrixTiling{8, 8, 8, 16, 8, 8, 32, 16}, matrixTiling{8, 8, 8, 16, 16, 8, 32, 8}, true},
		{"lavapipe", "f16", 8, matrixTiling{8, 8, 8, 8, 8, 8, 16, 16}, matrixTiling{8, 8, 8, 8, 16, 8, 16, 8}, true},
	} {
		t.Run(fmt.Sprint(c.device, "/", c.element, "/", c.heads), func(t *testing.T) {
			f := known(t, c.device)
			list, err := f.all(c.element, c.heads, f.prefill)
			require.NoError(t, err)
			assert.Equal(t, c.prefill, list[0])
			list, err = f.all(c.element, c.heads, f.decode)
			require.NoError(t, err)
			assert.Equal(t, c.decode, list[0])
			assert.Equal(t, c.norms, list[0].normsQueries())
		})
	}
	for device, element := range map[string]string{"lavapipe": "bf16", "Arc B": "s8", "RDNA3": "bf16"} {
		f := known(t, device)
		_, err := f.all(element, 64, f.decode)
		assert.ErrorIs(t, err, vk.ErrMissingFeature, device)
	}
	f := known(t, "H100")
	square := f.caps.CoopMat
	wide := square[slices.IndexFunc(square, func(s vk.CoopMatShape) bool { return s.A == "f16" })]
	wide.N, wide.K = 32, 16
	f.caps.CoopMat, f.caps.SharedMemory = append(slices.Clone(square), wide), 1<<20
	for _, complete := range []func(matrixTiling) (matrixTiling, bool){f.decode, f.decodeFew} {
		list, err := f.all("f16", 64, complete)
		require.NoError(t, err)
		for _, c := range list {
			assert.Equal(t, 16, c.n, "columns of V4.1's rows that are neighbours")
		}
	}
	f.caps.CoopMat, f.caps.SharedMemory = square, 32768 // two tiles of 16 rows do not fit, nor one of 32
	_, err := f.all("f16", 64, f.prefill)
	assert.ErrorIs(t, err, vk.ErrMissingFeature)
	_, err = f.all("f16", 64, f.decode)
	assert.ErrorIs(t, err, vk.ErrMissingFeature)
	few, err := f.decodeTilings("f16", 64) // one of 16 does
	require.NoError(t, err)
	for _, x := range few {
		assert.Equal(t, 16, x.tile)
	}
}

// Every tiling is one that the shaders' assumptions hold for, and its sum of shared memory is
// that of the modules.
func TestMatrixTilingsFit(t *testing.T) {
	modules := map[string]*spirv.Module{}
	for _, name := range []string{"attn_decode_cm", "attn_decode_cmb", "attn_prefill_cm", "attn_prefill_cmb"} {
		modules[name] = module(t, name)
	}
	for device := range knowncaps.Matrix {
		f := known(t, device)
		element := f.caps.CoopMat[len(f.caps.CoopMat)-1].A
		for heads := 1; heads <= MaxHeads; heads++ {
			list, err := f.all(element, heads, f.prefill)
			require.NoError(t, err)
			for _, c := range list {
				checkTiling(t, device, c, heads)
				assert.Zero(t, (c.heads/c.m)%(c.subgroups/c.kSplit), "%s: %+v: head tiles of a subgroup", device, c)
				for _, name := range []string{"attn_prefill_cm", "attn_prefill_cmb"} {
					checkShared(t, f, modules[name], c, 2*c.tile)
				}
			}
			list, err = f.all(element, heads, f.decode)
			require.NoError(t, err)
			for _, c := range list {
				checkTiling(t, device, c, heads)
				parts := c.subgroups / c.kSplit
				headParts := min(parts, c.heads/c.m)
				for what, ok := range map[string]bool{
					"head tiles of a subgroup":       parts%headParts == 0 && c.heads/c.m%headParts == 0,
					"row tiles of a subgroup":        c.tile/c.n%(parts/headParts) == 0 || parts/headParts%(c.tile/c.n) == 0,
					"acc through shared memory":      c.m*130 <= c.tile*65,
					"maxima in the place of weights": (c.tile/4+3)/4 <= c.tile/8+1,
				} {
					assert.True(t, ok, "%s: %+v: %s", device, c, what)
				}
				for _, name := range []string{"attn_decode_cm", "attn_decode_cmb"} {
					checkShared(t, f, modules[name], c, c.tile, 64, 2)
				}
			}
		}
	}
}

// RDNA4 has room for all of 64 heads beside half a tile, and takes it by its profile. RDNA3, which
// holds queries twice, has none.
func TestDecodeHalf(t *testing.T) {
	for _, c := range []struct {
		device, profile string
		most            matrixTiling
	}{
		{"RDNA4", "rdna4", matrixTiling{16, 16, 16, 64, 16, 32, 8, 2}},
		{"RDNA3", "rdna3", matrixTiling{16, 16, 16, 32, 32, 32, 8, 4}},
		{"RDNA4", "generic", matrixTiling{16, 16, 16, 32, 32, 32, 8, 4}},
	} {
		f := known(t, c.device)
		f.tune = profile(t, c.profile)
		list, err := f.decodeTilings("f16", 64)
		require.NoError(t, err)
		fit, err := f.all("f16", 64, f.decode)
		require.NoError(t, err)
		assert.Equal(t, c.most, fit[0], "%s, profile %s", c.device, c.profile)
		checkTiling(t, c.device, fit[0], 64)
		checkShared(t, f, module(t, "attn_decode_cm"), fit[0], fit[0].tile, 64, 2)
		if fit[0].heads == 64 { // its tile costs more than half of one with all rows and half of the heads
			assert.InDelta(t, list[0].cost, 0.77*list[1].cost, 0.01)
			assert.Equal(t, list[0].code, list[1].code)
		}
	}
}

// checkTiling checks what both kernels assume.
func checkTiling(t *testing.T, device string, c matrixTiling, heads int) {
	t.Helper()
	for what, ok := range map[string]bool{
		"HG % M":                     c.heads%c.m == 0,
		"TILE % M, N, K, 8":          c.tile%c.m == 0 && c.tile%c.n == 0 && c.tile%c.k == 0 && c.tile%8 == 0,
		"subgroups % KSPLIT":         c.subgroups%c.kSplit == 0,
		"512 % (KSPLIT*K)":           cache.D%(c.kSplit*c.k) == 0,
		"512 % (subgroups*N)":        cache.D%(c.subgroups*c.n) == 0,
		"threads % TILE":             c.threads()%c.tile == 0,
		"threads >= HG":              c.threads() >= c.heads,
		"threads >= RING*TILE":       c.threads() >= ringTiles*c.tile,
		"no workgroup of no heads":   c.heads < 2*max(heads, c.m),
		"threads and shared memory ": c.threads() <= int(knowncaps.Matrix[device].MaxWorkgroupInvocations),
	} {
		assert.True(t, ok, "%s: %+v: %s", device, c, what)
	}
}

// checkShared compares shared memory with a module's, whose constants begin with first.
func checkShared(t *testing.T, f matrixFit, m *spirv.Module, c matrixTiling, rows int, first ...uint32) {
	t.Helper()
	bytes, err := m.SharedBytes(append(append(first, uint32(c.heads), uint32(c.tile)), c.constants()...)...)
	require.NoError(t, err)
	assert.Equal(t, c.sharedBytes(rows), bytes, "%+v", c)
	assert.LessOrEqual(t, bytes, int(f.caps.SharedMemory), "%+v", c)
}
