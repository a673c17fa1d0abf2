package projection

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// What the shader's comments demand of a tiling, on every device, and the shared
// memory that the SPIR-V has with it.
func TestLinearTilingRules(t *testing.T) {
	tune := &profile(t, "hopper").Linear
	for device, caps := range knowncaps.Matrix {
		for variant, element := range matrixElement {
			m, err := spirv.Parse(code(t, opkit.Stem("proj_linear", variant)))
			require.NoError(t, err)
			var found matrixTiles
			if err := found.find(profile(t, "hopper"), &caps, variant); err != nil {
				assert.False(t, caps.Features["coopmat."+element+".f32"], "%s, %s: %v", device, element, err)
				continue
			}
			list := found.tiles
			assert.False(t, device == "H100" && len(list) != len(tune.Tiles.Shapes),
				"%s, %s: %d shapes of tiles, want %d", device, element, len(list), len(tune.Tiles.Shapes))
			for i, x := range list {
				name := fmt.Sprintf("%s, %s: %+v", device, element, x.linearTiling)
				each := x.threads() / (x.bk / 8)
				switch {
				case x.wm%x.m != 0 || x.wn%x.n != 0 || x.bk%x.k != 0 || x.bm%x.wm != 0 || x.bn%x.wn != 0:
					t.Errorf("%s: a part is not whole", name)
				case each < 1 || x.bm%each != 0 || x.bn%each != 0:
					t.Errorf("%s: rows do not divide among the invocations", name)
				case ScaleBlock%x.bn != 0 || ScaleBlock%x.bk != 0:
					t.Errorf("%s: rows or a step lie in more than one block", name)
				case i > 0 && x.bm >= list[i-1].bm:
					t.Errorf("%s: not the most tokens first", name)
				case x.sharedBytes() > int(caps.SharedMemory):
					t.Errorf("%s: %d bytes of shared memory", name, x.sharedBytes())
				}
				constants := append([]uint32{FormatFP8F32.row().word(), 0}, x.constants()...)
				got, err := m.SharedBytes(constants...)
				assert.NoError(t, err, name)
				assert.Equal(t, x.sharedBytes(), got, name)
			}
		}
	}
	none := knowncaps.Matrix["H100"]
	none.SharedMemory = 2048
	assert.ErrorIs(t, new(matrixTiles).find(profile(t, "hopper"), &none, opkit.CM), vk.ErrMissingFeature,
		"2 KiB of shared memory")
}

// TestCodesTileRules demands of tiles for codes, on the device that has such matrices, the shared
// memory that they are chosen by, and whole parts.
func TestCodesTileRules(t *testing.T) {
	caps, p := knowncaps.Matrix["RDNA4"], profile(t, "rdna4")
	require.NotEmpty(t, p.Linear.Tiles.Codes)
	m, err := spirv.Parse(code(t, "proj_linear_codes_cm"))
	require.NoError(t, err)
	for cfg, summed := range map[LinearConfig]int{
		{Weights: FormatFP8F32, Activations: ActivationFP8}: 128, {Weights: FormatFP8Rows, Activations: ActivationFP8}: 128,
		{Weights: FormatFP8x32, Activations: ActivationMXFP8}: 32,
	} {
		l := layerFor(t, &caps, cfg, opkit.CM, 0)
		l.tune, l.device = &p.Linear, &p.Device
		for _, x := range p.Linear.Tiles.Codes {
			f, ok := l.fitCodes(vk.CoopMatShape{M: 16, N: 16, K: 16}, x)
			require.True(t, ok, "%v: %+v", cfg.Weights, f)
			assert.Equal(t, min(summed, x.Step), f.summed)
			got, err := m.SharedBytes(append([]uint32{cfg.Weights.row().word(), uint32(cfg.Activations)}, f.constants()...)...)
			require.NoError(t, err)
			assert.Equal(t, got, f.sharedBytes(), "%v: shared memory", cfg.Weights)
			_, ok = l.fitCodes(vk.CoopMatShape{M: 8, N: 16, K: 16}, x)
			assert.False(t, ok, "products that are not square")
		}
	}
}

// Tiles and passes without matrices have the shared memory that they are chosen by, or what
// Vulkan guarantees.
func TestLinearBaseRules(t *testing.T) {
	shared := func(name string, f Format, constants []uint32) int {
		m, err := spirv.Parse(code(t, name))
		require.NoError(t, err)
		n, err := m.SharedBytes(append([]uint32{f.row().word(), 0}, constants...)...)
		require.NoError(t, err)
		return n
	}
	tune := &profile(t, "hopper").Linear
	for i, tile := range tune.Base.Tiles {
		x := baseTile{BaseTile: tile}
		n := shared("proj_linear", FormatFP8F32, x.constants(tune.Base.Unroll))
		assert.False(t, n != x.sharedBytes() || i > 0 && (n > 16384 || x.threads() > 128),
			"%+v: %d bytes, %d invocations", x, n, x.threads())
	}
	for _, f := range weightFormatsHere {
		for _, variant := range []string{opkit.Base, opkit.Dot} {
			k := tokens8to16{linearLayer: &linearLayer{format: f.row(), variant: variant}}
			p := tune.Tokens8to16
			for tokens := fewestPass; tokens <= p.MostPass; tokens *= 2 {
				n := shared(opkit.Stem("proj_linear_tokens8to16", variant), f, k.constants(rowDivision{tokens: tokens, rows: p.Rows, lanes: lineLanes}))
				assert.LessOrEqual(t, n, 16384, "%s: %v, %d tokens", variant, f, tokens)
			}
		}
	}
}

// profile is a profile by its name.
func profile(t *testing.T, name string) *tuning.Profile {
	t.Helper()
	p, err := tuning.Named(name)
	require.NoError(t, err)
	return p
}

func code(t *testing.T, name string) []byte {
	t.Helper()
	k, err := shaders.Get(name)
	require.NoError(t, err)
	return k.SPIRV
}

// layerFor makes a layer as on a device with some capabilities, with rows of fragments in `lanes`
// lanes or, with 0, as if they lay otherwise.
func layerFor(t *testing.T, caps *vk.Caps, cfg LinearConfig, variant string, lanes int) *linearLayer {
	t.Helper()
	cfg.Groups, cfg.Workgroups, cfg.Out = max(cfg.Groups, 1), 264, tensor.BF16
	c := *caps
	c.Features = map[string]bool{}
	for _, stem := range []string{"proj_linear_tokens8to32", "proj_linear_tokens32to64", "proj_linear_whole"} {
		for v := range matrixElement {
			for _, f := range shaders.Requires(opkit.Stem(stem, v)) {
				c.Features[f] = true
			}
		}
	}
	p := profile(t, "hopper")
	return &linearLayer{caps: &c, cfg: cfg, variant: variant, format: cfg.Weights.row(), tune: &p.Linear, device: &p.Device,
		lanes: func(_, _, _, _ int) (int, error) { return lanes, nil }}
}

// planned makes a Linear that can only plan, as on an H100.
func planned(t *testing.T, cfg LinearConfig, variant string, lanes int) *Linear {
	t.Helper()
	caps := knowncaps.Matrix["H100"]
	caps.MaxWorkgroupInvocations, caps.SharedMemory = 1024, 49152
	o := &Linear{linearLayer: layerFor(t, &caps, cfg, variant, lanes)}
	kinds := linearKinds(variant)
	if tiles, ok := kinds[len(kinds)-1].(*matrixTiles); ok {
		require.NoError(t, tiles.find(profile(t, "hopper"), o.caps, variant))
	}
	var err error
	o.kinds, err = fitKinds(o.linearLayer, kinds)
	require.NoError(t, err)
	return o
}

// The rule of Linear's documentation, on layers of V4-Flash.
func TestLinearPlan(t *testing.T) {
	wqB := LinearConfig{N: 32768, K: 1024, Weights: FormatFP8F32}
	wqA := LinearConfig{N: 1536, K: 4096, Weights: FormatFP8F32}
	woB := LinearConfig{N: 4096, K: 8192, Weights: FormatFP8F32}
	woA := LinearConfig{N: 1024, K: 4096, Groups: 8, Weights: FormatBF16}
	gate := LinearConfig{N: 64, K: 4096, Weights: FormatBF16}
	gates := LinearConfig{N: 2048, K: 4096, Weights: FormatBF16}
	wqB4 := LinearConfig{N: 32768, K: 1024, Weights: FormatNVFP4}
	woB4 := LinearConfig{N: 4096, K: 8192, Weights: FormatNVFP4}
	wqA4 := LinearConfig{N: 1536, K: 4096, Weights: FormatNVFP4}
	for _, c := range []struct {
		cfg     LinearConfig
		variant string
		lanes   int
		t       int
		grid    [3]uint32
		splits  int
	}{
		{wqB, opkit.CMB, 4, 1, [3]uint32{2048, 1, 1}, 1},
		{wqB, opkit.CMB, 4, 2, [3]uint32{2048, 1, 1}, 1},
		{wqB, opkit.CMB, 4, 3, [3]uint32{1024, 1, 1}, 1},
		{wqB, opkit.CMB, 4, 16, [3]uint32{1024, 1, 1}, 1},
		{wqB, opkit.CMB, 4, 17, [3]uint32{1, 256, 1}, 1},
		{wqB, opkit.CMB, 0, 17, [3]uint32{1, 512, 1}, 1},
		{wqB, opkit.CMB, 0, 4, [3]uint32{2048, 1, 1}, 1},
		{wqB, opkit.CMB, 0, 5, [3]uint32{1, 512, 1}, 1},
		{wqB, opkit.CMB, 4, 64, [3]uint32{1, 256, 1}, 1},
		{wqB, opkit.CMB, 0, 64, [3]uint32{1, 512, 1}, 1},
		{wqB, opkit.CMB, 4, 96, [3]uint32{2, 256, 1}, 1},
		{wqB, opkit.CMB, 4, 97, [3]uint32{1, 256, 1}, 1},
		{wqB, opkit.CMB, 4, 129, [3]uint32{2, 256, 1}, 1},
		{wqB, opkit.CMB, 4, 4096, [3]uint32{32, 256, 1}, 1},
		{wqB, opkit.Base, 0, 4, [3]uint32{2048, 1, 1}, 1},
		{wqB, opkit.Base, 0, 5, [3]uint32{512, 1, 1}, 1},
		{wqB, opkit.Base, 0, 16, [3]uint32{512, 1, 1}, 1},
		{wqB, opkit.Base, 0, 17, [3]uint32{512, 2, 1}, 1},
		{wqB, opkit.Base, 0, 48, [3]uint32{512, 3, 1}, 1},
		{wqB, opkit.Base, 0, 64, [3]uint32{1, 256, 1}, 1},
		{wqB, opkit.Base, 0, 256, [3]uint32{2, 256, 1}, 1},
		{wqB, opkit.Base, 0, 4096, [3]uint32{32, 256, 1}, 1},
		{woB, opkit.Base, 0, 8, [3]uint32{64, 1, 8}, 8},
		{woB, opkit.Base, 0, 32, [3]uint32{64, 2, 4}, 4},
		{woB, opkit.Base, 0, 64, [3]uint32{1, 32, 12}, 12},
		{woB, opkit.Base, 0, 256, [3]uint32{2, 32, 4}, 4},
		{woB, opkit.Base, 0, 4096, [3]uint32{32, 32, 1}, 1},
		{wqA, opkit.Base, 0, 16, [3]uint32{768, 2, 1}, 1},
		{wqA, opkit.Base, 0, 32, [3]uint32{24, 2, 8}, 8},
		{wqA, opkit.Base, 0, 64, [3]uint32{24, 4, 5}, 5},
		{wqA, opkit.Base, 0, 256, [3]uint32{2, 12, 11}, 11},
		{wqA, opkit.Base, 0, 2048, [3]uint32{32, 12, 1}, 1},
		{wqA, opkit.Base, 0, 4096, [3]uint32{32, 12, 1}, 1},
		{gate, opkit.Base, 0, 64, [3]uint32{1, 4, 16}, 16},
		{gate, opkit.Base, 0, 4096, [3]uint32{64, 1, 6}, 6},
		{woA, opkit.Base, 0, 16, [3]uint32{16, 1, 32}, 4},
		{woA, opkit.Base, 0, 4096, [3]uint32{32, 8, 8}, 1},
		{wqB4, opkit.CMB, 4, 1, [3]uint32{512, 1, 1}, 1},
		{wqB4, opkit.CMB, 4, 2, [3]uint32{1024, 1, 1}, 1},
		{wqB4, opkit.CMB, 0, 2, [3]uint32{1024, 1, 1}, 1},
		{wqB4, opkit.CMB, 4, 16, [3]uint32{1024, 1, 1}, 1},
		{LinearConfig{N: 65536, K: 1536, Weights: FormatFP8F32}, opkit.CMB, 4, 16, [3]uint32{2048, 1, 1}, 1},
		{LinearConfig{N: 65536, K: 1536, Weights: FormatNVFP4}, opkit.CMB, 4, 8, [3]uint32{2048, 1, 1}, 1},
		{LinearConfig{N: 65536, K: 1536, Weights: FormatNVFP4}, opkit.CMB, 4, 9, [3]uint32{1, 512, 1}, 1}, // x is most of what is read
		{LinearConfig{N: 7168, K: 16384, Weights: FormatNVFP4}, opkit.CMB, 4, 16, [3]uint32{1, 56, 4}, 4},
		{woB4, opkit.CMB, 4, 1, [3]uint32{512, 1, 1}, 1},
		{wqA4, opkit.CMB, 4, 1, [3]uint32{768, 1, 1}, 1},
		{wqA, opkit.CM, 4, 1, [3]uint32{384, 1, 1}, 1},
		{wqA, opkit.CM, 0, 8, [3]uint32{384, 2, 1}, 1},
		{wqA, opkit.CM, 4, 8, [3]uint32{96, 1, 1}, 1},
		{wqA, opkit.CM, 4, 32, [3]uint32{96, 1, 1}, 1},
		{wqA, opkit.CM, 0, 32, [3]uint32{1, 24, 16}, 16},
		{wqA, opkit.CM, 4, 64, [3]uint32{96, 4, 1}, 1},
		{wqA, opkit.CM, 0, 64, [3]uint32{1, 24, 16}, 16},
		{wqA, opkit.CM, 4, 128, [3]uint32{2, 12, 8}, 8},
		{wqA, opkit.CMB, 4, 256, [3]uint32{2, 12, 8}, 8},
		{wqA, opkit.CM, 4, 256, [3]uint32{2, 12, 8}, 8},
		{wqA, opkit.CM, 4, 512, [3]uint32{4, 12, 5}, 5},
		{wqA, opkit.CM, 4, 1024, [3]uint32{8, 12, 2}, 2},
		{LinearConfig{N: 4096, K: 8192, Weights: FormatFP8F32}, opkit.CMB, 4, 512, [3]uint32{4, 32, 2}, 2},
		{wqA, opkit.CM, 4, 4096, [3]uint32{32, 4, 2}, 2}, // beside 8 whole tiles of rows
		{wqA, opkit.CM, 4, 2816, [3]uint32{22, 12, 1}, 1},
		{woA, opkit.CMB, 4, 16, [3]uint32{64, 1, 8}, 1},
		{woA, opkit.CMB, 0, 16, [3]uint32{1, 16, 32}, 4},
		{woA, opkit.CMB, 4, 32, [3]uint32{1, 8, 32}, 4},
		{woA, opkit.CMB, 4, 64, [3]uint32{1, 8, 32}, 4},
		{woA, opkit.CMB, 4, 4096, [3]uint32{32, 8, 8}, 1},
		{gate, opkit.CMB, 4, 1, [3]uint32{32, 1, 1}, 1},
		{gate, opkit.CMB, 4, 16, [3]uint32{4, 2, 1}, 1},
		{gate, opkit.CMB, 4, 128, [3]uint32{4, 16, 1}, 1},
		{gates, opkit.CMB, 4, 32, [3]uint32{128, 1, 1}, 1},
		{gates, opkit.CMB, 4, 33, [3]uint32{1, 16, 16}, 16},
		{LinearConfig{N: 2048, K: 4096, Weights: FormatFP8F32}, opkit.CMB, 4, 64, [3]uint32{128, 4, 1}, 1},
		{gate, opkit.CMB, 0, 32, [3]uint32{1, 1, 16}, 16},
	} {
		o := planned(t, c.cfg, c.variant, c.lanes)
		p := o.plan(c.t, math.MaxInt32)
		require.Equal(t, c.grid, p.grid, "%dx%d, %s, %d tokens", c.cfg.N, c.cfg.K, c.variant, c.t)
		assert.Equal(t, c.splits, p.splits, "%dx%d, %s, %d tokens", c.cfg.N, c.cfg.K, c.variant, c.t)
		assert.Equal(t, 1, o.plan(c.t, 0).splits, "%dx%d, %d tokens, no scratch: parts", c.cfg.N, c.cfg.K, c.t)
	}
}

// Subgroups and chunks of proj_linear_tokens8to32 on an H100, as they were found fastest, and
// what the shader demands on every device.
func TestLinearTokens8to32Rules(t *testing.T) {
	h100 := knowncaps.Matrix["H100"]
	for _, c := range []struct {
		tokens, n, k, tiles, parts, ahead int
		f                                 Format
	}{
		{8, 32768, 1024, 2, 4, 2, FormatFP8F32}, {8, 32768, 1024, 2, 2, 2, FormatBF16},
		{8, 4096, 8192, 1, 8, 2, FormatFP8F32}, {8, 4096, 8192, 1, 16, 2, FormatNVFP4},
		{8, 1536, 4096, 1, 8, 2, FormatFP8F32}, {8, 1536, 4096, 1, 16, 2, FormatBF16},
		{8, 65536, 1536, 2, 4, 2, FormatFP8F32}, {8, 65536, 1536, 2, 2, 2, FormatNVFP4},
		{8, 8192, 4096, 1, 8, 2, FormatFP8F32},
		{16, 8192, 4096, 2, 8, 2, FormatFP8F32}, {16, 4096, 8192, 1, 16, 2, FormatFP8F32}, {16, 1536, 4096, 1, 16, 2, FormatFP8F32},
		{16, 32768, 1024, 2, 2, 2, FormatFP8F32}, {16, 7168, 16384, 2, 8, 2, FormatFP8F32}, {16, 5120, 8192, 1, 8, 2, FormatFP8F32},
		{8, 64, 128, 1, 4, 1, FormatBF16},
	} {
		l := layerFor(t, &h100, LinearConfig{N: c.n, K: c.k, Weights: c.f}, opkit.CMB, 4)
		d, err := l.divide8to32(c.tokens)
		require.NoError(t, err, "%d tokens, %dx%d %v", c.tokens, c.n, c.k, c.f)
		assert.Equal(t, []int{c.tiles, c.parts, c.ahead}, []int{d.tiles, d.parts, d.ahead}, "%d tokens, %dx%d %v: tiles, parts, chunks",
			c.tokens, c.n, c.k, c.f)
	}
	kernel, err := spirv.Parse(code(t, "proj_linear_tokens8to32_cm"))
	require.NoError(t, err)
	for device, caps := range knowncaps.Matrix {
		for _, lanes := range []int{0, 1, 2, 4, 8, 16} {
			for _, f := range weightFormatsHere {
				for _, k := range []int{32, 4096} {
					l := layerFor(t, &caps, LinearConfig{N: 72, K: k, Groups: 2, Weights: f}, opkit.CM, lanes)
					d, err := l.divide8to32(16)
					if lanes == 0 || lanes == 16 && f.row().span > 0 {
						assert.ErrorIs(t, err, vk.ErrMissingFeature, "%s, %d lanes, %v", device, lanes, f)
						continue
					}
					for _, norm := range []tensor.DType{0, tensor.BF16} {
						l.cfg.Norm, l.cfg.NormColumns = norm, 64
						d, err := l.divide8to32(16)
						shared, serr := kernel.SharedBytes(slices.Concat([]uint32{f.row().word(), 0}, d.constants(), l.cfg.normConstants())...)
						want := d.sharedBytes(norm != 0)
						require.NoError(t, err,
							"%s, %d lanes, %v, norm %v, %v: %d bytes of shared memory, want %d", device, lanes, f, norm, serr,
							shared, want)
						assert.False(t, serr != nil || shared != want || shared > int(caps.SharedMemory),
							"%s, %d lanes, %v, norm %v, %v: %d bytes of shared memory, want %d", device, lanes, f, norm, serr,
							shared, want)
					}
					assert.False(t, f.row().span > 0 && ScaleBlock%(d.ahead*d.lanes*16) != 0,
						"%s, %d lanes: a step crosses blocks: %+v", device, lanes, d)
				}
			}
		}
	}
}

// What proj_linear_tokens32to64 demands, on every device, and its chunks and parts on an H100.
func TestLinearTokens32to64Rules(t *testing.T) {
	m, err := spirv.Parse(code(t, "proj_linear_tokens32to64_cm"))
	require.NoError(t, err)
	for device, caps := range knowncaps.Matrix {
		for _, lanes := range []int{0, 1, 2, 4, 8, 16} {
			for _, f := range weightFormatsHere {
				for _, tokens := range profile(t, "hopper").Linear.Tokens32to64.Passes {
					l := layerFor(t, &caps, LinearConfig{N: 72, K: 4096, Groups: 2, Weights: f}, opkit.CM, lanes)
					d, err := l.divide32to64(tokens)
					if err != nil {
						assert.False(t, lanes == 4 && device == "H100" || !errors.Is(err, vk.ErrMissingFeature),
							"%s, %d lanes, %v, %d tokens: %v", device, lanes, f, tokens, err)
						continue
					}
					name := fmt.Sprintf("%s, %v: %+v", device, f, d)
					for _, n := range []int{d.teams * d.m, 3 * d.teams * d.m, d.teams*d.m + 8} {
						for _, k := range []int{7 * d.round(), 7*d.round() + 32} {
							l.cfg.N, l.cfg.K = n, k
							w, err := l.divide32to64(tokens)
							assert.NoError(t, err, "%s, %d x %d, whole %d", name, n, k, w.whole)
							assert.Equal(t, n%(d.teams*d.m) == 0 && k%d.round() == 0, w.whole == 1,
								"%s, %d x %d, whole %d", name, n, k, w.whole)
						}
					}
					constants := append([]uint32{f.row().word(), 0}, d.constants()...)
					shared, err := m.SharedBytes(constants...)
					assert.NoError(t, err, name)
					assert.Equal(t, d.sharedBytes(), shared, name)
					assert.LessOrEqual(t, shared, int(caps.SharedMemory), name)
					switch {
					case lanes == 0:
						t.Errorf("%s: without lanes", name)
					case f.row().span > 0 && ScaleBlock%(d.ahead*d.chunk) != 0:
						t.Errorf("%s: a step crosses blocks", name)
					case d.tokens%d.n != 0 || d.tokens/d.n != tokens/16 || !d.fills():
						t.Errorf("%s: a part is not whole", name)
					case device == "H100" && lanes == 4 && (d.ahead == 2) != (f == FormatBF16 || tokens*f.row().quad <= 512):
						t.Errorf("%s: %d chunks", name, d.ahead)
					case (d.turns == 1) != (f == FormatNVFP4 || tokens > 32):
						t.Errorf("%s: %d turns", name, d.turns)
					case d.whole != 0:
						t.Errorf("%s: rows are whole tiles", name)
					}
				}
			}
		}
	}
}

// weightFormatsHere are the formats that differ in how they are decoded.
var weightFormatsHere = []Format{FormatBF16, FormatFP8F32, FormatNVFP4, FormatFP8x32}

// The layouts that devices have, and others.
func TestLayoutLanes(t *testing.T) {
	// place says where component j of lane l is, for both operands.
	layout := func(m, n, k, subgroup int, place func(l, j int) (row, k int)) []uint32 {
		words := make([]uint32, 0, m*k+k*n+m*n)
		for j := range m * k / subgroup {
			for l := range subgroup {
				row, x := place(l, j)
				words = append(words, uint32(row*k+x))
			}
		}
		for j := range k * n / subgroup {
			for l := range subgroup {
				column, x := place(l, j)
				words = append(words, uint32(x*n+column))
			}
		}
		return words[:cap(words)] // the sums may lie anywhere
	}
	nvidia := func(l, j int) (int, int) { return l/4 + j/4*8, l%4*2 + j%2 + j/2%2*8 }
	for _, c := range []struct {
		name                 string
		m, n, k, size, lanes int
		place                func(l, j int) (int, int)
	}{
		{"NVIDIA", 16, 16, 16, 32, 4, nvidia},
		{"NVIDIA, half", 16, 8, 16, 32, 4, nvidia},
		{"lavapipe", 8, 8, 8, 8, 8, func(l, j int) (int, int) { return j, l }},
		{"a row a lane", 8, 8, 16, 8, 1, func(l, j int) (int, int) { return l, j }},
		{"rows in another order", 16, 16, 16, 32, 0, func(l, j int) (int, int) { return l/4 + j/2%2*8, l%4*2 + j%2 + j/4*8 }},
		{"rows among all lanes", 16, 16, 16, 32, 0, func(l, j int) (int, int) { return l%8 + j/4*8, l/8*2 + j%2 + j/2%2*8 }},
		{"all the same", 16, 16, 16, 32, 0, func(l, j int) (int, int) { return 0, 0 }},
	} {
		words := layout(c.m, c.n, c.k, c.size, c.place)
		assert.Equal(t, c.lanes, layoutLanes(c.m, c.n, c.k, c.size, words), "%s: lanes", c.name)
	}
	nvidia16 := layout(16, 16, 16, 32, nvidia)
	swapped := slices.Clone(nvidia16) // two numbers of a column of B, but of no row of A
	for l := range 32 {
		swapped[256+l], swapped[256+32+l] = swapped[256+32+l], swapped[256+l]
	}
	same := slices.Clone(nvidia16) // two components of the same place
	for i := range 2 * 256 / 32 / 2 {
		copy(same[64*i+32:64*i+64], same[64*i:])
	}
	outside := slices.Clone(nvidia16)
	outside[300] = 1 << 31
	for name, words := range map[string][]uint32{"nil": nil, "too few": nvidia16[:700], "zeros": make([]uint32, 768),
		"ones":      slices.Repeat([]uint32{^uint32(0)}, 768),
		"another B": swapped, "a place twice": same, "no element": outside} {
		assert.Equal(t, 0, layoutLanes(16, 16, 16, 32, words), "%s: lanes", name)
	}
}

// For all sizes: every row, token and step has a workgroup, no part is empty, and scratch memory is
// as large as the plan needs.
func TestLinearPlanRules(t *testing.T) {
	for _, variant := range []string{opkit.Base, opkit.CM} {
		for _, n := range []int{8, 64, 72, 1536, 32768} {
			for _, k := range []int{32, 64, 1056, 4096, 16384} {
				for _, f := range weightFormatsHere {
					o := planned(t, LinearConfig{N: n, K: k, Weights: f}, variant, 4)
					for _, d := range kindOf[*tokens1to8](o).passes {
						assert.False(t, d.rows*d.tokens > 16 || d.lanes > rowWorkgroup || d.lanes < 8 ||
							d.rows != 2 && d.rows != 4, "%dx%d %v: %+v", n, k, f, d)
					}
					for _, tokens := range []int{1, 3, 9, 16, 17, 33, 64, 65, 129, 1000, 5000} {
						p := o.plan(tokens, math.MaxInt32)
						assert.False(t, p.splits > 1 && (p.splits-1)*p.splitSteps*p.step >= k,
							"%dx%d %v, %d tokens: an empty part of %d", n, k, f, tokens, p.splits)
						need := 0
						if p.splits > 1 {
							need = p.splits * tokens * (n - p.whole)
						}
						assert.False(t, p.whole > 0 &&
							(p.rows == 0 || p.whole%p.rows != 0 || p.whole >= n || p.whole/p.rows+int(p.grid[1]) != o.rowTiles(p.rows)),
							"%dx%d %v, %d tokens: %d whole rows of %v", n, k, f, tokens, p.whole, p.grid)
						assert.Equal(t, need, o.ScratchLen(tokens), "%dx%d %v, %d tokens: scratch", n, k, f, tokens)
						less := o.plan(tokens, need-1)
						assert.False(t, need > 0 && less.splits > 1 && less.splits*tokens*(n-less.whole) >= need,
							"%dx%d %v, %d tokens: %d parts in too little memory", n, k, f, tokens, less.splits)
					}
				}
			}
		}
	}
}

// Layers of a step of one token have few kernels between them.
func TestRowDivisionsAlike(t *testing.T) {
	for _, c := range []struct {
		weights     Format
		n, k, group int
		rows, lanes int
	}{
		{FormatFP8F32, 1536, 4096, 1, 4, 128}, {FormatFP8F32, 1024, 4096, 8, 4, 128},
		{FormatFP8F32, 4096, 8192, 1, 4, 128}, {FormatFP8F32, 7168, 16384, 1, 4, 128},
		{FormatFP8F32, 32768, 1024, 1, 4, 32}, {FormatFP8F32, 8192, 1024, 1, 4, 32}, {FormatFP8F32, 65536, 1536, 1, 4, 32}, {FormatFP8F32, 1024, 96, 1, 4, 8},
		{FormatBF16, 2048, 4096, 1, 2, 128}, {FormatBF16, 1024, 4096, 1, 2, 128},
		{FormatBF16, 512, 4096, 1, 2, 128}, {FormatBF16, 64, 4096, 1, 2, 128},
		{FormatBF16, 1024, 4096, 8, 4, 128}, {FormatBF16, 4096, 8192, 1, 4, 128},
	} {
		alike := c.weights.row().alike == alikeAlways || c.n*c.group <= profile(t, "hopper").Linear.Tokens1to8.SmallRows
		for tokens := 1; tokens == 1 || tokens == 2 && alike; tokens++ {
			l := layerFor(t, &vk.Caps{}, LinearConfig{N: c.n, K: c.k, Groups: c.group, Weights: c.weights}, opkit.CMB, 4)
			if d := l.divideRows(tokens); d.rows != c.rows || d.lanes != c.lanes {
				t.Errorf("%v, %d groups of %d x %d, %d tokens: %d rows and %d lanes, want %d and %d",
					c.weights, c.group, c.n, c.k, tokens, d.rows, d.lanes, c.rows, c.lanes)
			}
		}
	}
}
