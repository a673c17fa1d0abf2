package indexer

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// NewLogitsTiled is NewLogits with another division of the work than the device
// would choose, for the tests: a subgroup has at most `heads` heads, a workgroup has
// `tokens` tokens, and weights in registers unless heads is 16; then keys lie by rows, where lanes
// hold those as lavapipe's do.
func NewLogitsTiled(dev *vk.Device, cfg LogitsConfig, heads, tokens int) (*Logits, error) {
	return newLogits(dev, cfg, func(caps *vk.Caps, tune *tuning.Profile, element string, h, _ int) (cmTiling, error) {
		t, err := cmChoose(caps, tune, element, h, 1)
		if err != nil {
			return t, err
		}
		t.heads, t.tokens, t.held = max(t.m, min(t.heads, heads)), tokens, heads != 16
		if heads == 16 && t.m == 8 { // as lavapipe holds them
			t.rows = 2
		}
		if t.fill(&tune.Logits, h); t.threads() > int(caps.MaxWorkgroupInvocations) || t.sharedBytes() > int(caps.SharedMemory) {
			return t, vk.ErrMissingFeature
		}
		return t, nil
	}, false)
}

func TestCMTiling(t *testing.T) {
	for _, c := range []struct {
		device, element string
		heads, group    int
		want            cmTiling
	}{
		{"H100", "f16", 64, 1, cmTiling{16, 16, 16, 64, 1, 1, 4, 64, 32, true, 0, false, 0}},
		{"H100", "bf16", 64, 2, cmTiling{16, 16, 16, 64, 1, 2, 2, 64, 32, true, 0, false, 0}},
		{"H100", "f16", 64, 4096, cmTiling{16, 16, 16, 64, 1, 4, 1, 64, 32, true, 0, false, 0}},
		{"H100", "f16", 128, 1, cmTiling{16, 16, 16, 64, 2, 1, 2, 64, 32, true, 0, false, 0}},
		{"H100", "f16", 1, 1, cmTiling{16, 16, 16, 16, 1, 1, 4, 64, 32, true, 0, false, 0}},
		{"RDNA3", "f16", 64, 1, cmTiling{16, 16, 16, 16, 4, 1, 1, 64, 32, true, 0, false, 0}},
	} {
		caps := knowncaps.Matrix[c.device]
		got, err := cmChoose(&caps, hopper(), c.element, c.heads, c.group)
		assert.NoError(t, err, "%s, %s, %d heads, %d tokens", c.device, c.element, c.heads, c.group)
		assert.Equal(t, c.want, got, "%s, %s, %d heads, %d tokens", c.device, c.element, c.heads, c.group)
	}
	none := vk.Caps{SharedMemory: 4096, MaxWorkgroupInvocations: 128, MinSubgroupSize: 32, MaxSubgroupSize: 32,
		CoopMat: knowncaps.Matrix["H100"].CoopMat}
	_, err := cmChoose(&none, hopper(), "f16", 64, 1)
	assert.ErrorIs(t, err, vk.ErrMissingFeature, "4 KiB of shared memory")
}

// Codes of E4M3 are loaded 16 at a time: a product of fewer numbers does not fit them.
func TestCMTilingCodes(t *testing.T) {
	caps := knowncaps.Matrix["H100"]
	for k, want := range map[uint32]bool{8: false, 16: true, 32: true} {
		caps.CoopMat = []vk.CoopMatShape{{M: 16, N: 16, K: k, A: "e4m3", B: "e4m3", C: "f32", Result: "f32", Scope: "subgroup"}}
		_, err := cmChoose(&caps, hopper(), "e4m3", 64, 1)
		assert.Equal(t, want, err == nil, "K %d: %v", k, err)
	}
}

// Entries of candidate blocks take more registers. Where 32 heads leave too few, half as many keys
// come in at a time; never fewer than a tiling needs.
func TestCMTilingBlocks(t *testing.T) {
	xe2, err := tuning.Named("xe2")
	require.NoError(t, err)
	for _, c := range []struct {
		device           string
		tune             *tuning.Profile
		heads, registers int // 0: the profile's
		tile, want       int
	}{{"Arc B", xe2, 32, 0, 32, 16}, {"Arc B", xe2, 64, 0, 32, 32}, {"Arc B", xe2, 64, 1, 32, 16}, {"H100", hopper(), 32, 1, 64, 64}} {
		caps, name := knowncaps.Matrix[c.device], fmt.Sprintf("%s, %d heads, %d registers", c.device, c.heads, c.registers)
		x, err := cmChoose(&caps, c.tune, "f16", c.heads, 1)
		require.NoError(t, err)
		assert.Equal(t, c.tile, x.tile, name)
		tune := *c.tune
		tune.Device.MaxRegisters = cmp.Or(c.registers, tune.Device.MaxRegisters)
		x.ofBlocks(&caps, &tune, 8)
		assert.Equal(t, 8, x.block)
		assert.Equal(t, c.want, x.tile, name)
		assert.Zero(t, x.tile%(x.n*x.keyParts)+x.tile%x.heads+x.tile/x.subgroups()*8%x.subgroup, "%s: %+v", name, x)
	}
}

// For every device, head count and group: what the shader's comments demand of a
// tiling, and the shared memory that the SPIR-V has with it.
func TestCMTilingRules(t *testing.T) {
	k, err := shaders.Get("idx_logits_cm")
	require.NoError(t, err)
	m, err := spirv.Parse(k.SPIRV)
	require.NoError(t, err)
	for device, caps := range knowncaps.Matrix {
		for _, element := range []string{"f16", "bf16"} {
			for heads := 1; heads <= MaxHeads; heads++ {
				for _, group := range []int{1, 2, 3, 4, 100} {
					x, err := cmChoose(&caps, hopper(), element, heads, group)
					if err != nil {
						assert.False(t, caps.Features["coopmat."+element+".f32"],
							"%s: %s, %d heads, %d tokens: %v", device, element, heads, group, err)
						continue
					}
					name := fmt.Sprintf("%s, %s, %d heads, %d tokens: %+v", device, element, heads, group, x)
					own := x.tile / x.subgroups()
					switch {
					case x.heads*x.headParts < heads || x.tokens > max(group, 1)*2-1:
						t.Errorf("%s: heads or tokens do not fit", name)
					case x.heads%x.m != 0 || x.tile%(x.n*x.keyParts) != 0 || x.tile%x.heads != 0 || x.heads%4 != 0:
						t.Errorf("%s: a part is not whole", name)
					case x.tile*8%x.threads() != 0 || own*8%x.subgroup != 0 || own == 0:
						t.Errorf("%s: rows do not divide among the invocations", name)
					case x.alone() && own%x.n != 0:
						t.Errorf("%s: a subgroup needs rows of another", name)
					}
					constants := append([]uint32{64, 1}, x.constants()...)
					got, err := m.SharedBytes(constants...)
					assert.NoError(t, err, name)
					assert.Equal(t, x.sharedBytes(), got, name)
				}
			}
		}
	}
}
