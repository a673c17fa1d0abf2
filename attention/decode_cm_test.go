package attention

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

func TestCMTiling(t *testing.T) {
	for _, c := range []struct {
		device, element string
		heads           int
		want            cmTiling
	}{
		{"H100", "f16", 128, cmTiling{16, 16, 16, 64, 16, 32, 8, 2}},
		{"H100", "bf16", 64, cmTiling{16, 16, 16, 64, 16, 32, 8, 2}},
		{"H100", "f16", 61, cmTiling{16, 16, 16, 64, 16, 32, 8, 2}},
		{"H100", "f16", 17, cmTiling{16, 16, 16, 32, 16, 32, 8, 4}},
		{"H100", "f16", 1, cmTiling{16, 16, 16, 16, 16, 32, 8, 8}},
		{"RDNA3", "f16", 128, cmTiling{16, 16, 16, 32, 16, 32, 8, 4}},
		{"RDNA3", "bf16", 8, cmTiling{16, 16, 16, 16, 16, 32, 8, 8}},
		{"Intel", "bf16", 128, cmTiling{8, 16, 16, 16, 16, 8, 32, 16}},
		{"lavapipe", "f16", 64, cmTiling{8, 8, 8, 16, 8, 8, 32, 16}},
		{"lavapipe", "f16", 8, cmTiling{8, 8, 8, 8, 8, 8, 16, 16}},
	} {
		caps := knowncaps.Matrix[c.device]
		got, err := cmChoose(&caps, c.element, c.heads)
		if err != nil || got != c.want {
			t.Errorf("%s %s, %d heads: %+v, %v, want %+v", c.device, c.element, c.heads, got, err, c.want)
		}
	}
	for device, element := range map[string]string{"lavapipe": "bf16", "Intel": "s8"} {
		caps := knowncaps.Matrix[device]
		if got, err := cmChoose(&caps, element, 64); !errors.Is(err, vk.ErrMissingFeature) {
			t.Errorf("%s %s: %+v, %v, want ErrMissingFeature", device, element, got, err)
		}
	}
	small := knowncaps.Matrix["H100"]
	small.SharedMemory = 32768 // two buffers of 16 rows do not fit
	if got, err := cmChoose(&small, "f16", 64); !errors.Is(err, vk.ErrMissingFeature) {
		t.Errorf("32 KiB: %+v, %v, want ErrMissingFeature", got, err)
	}
}

// TestCMTilingFits holds every tiling against what the shaders assume, and the sum
// of shared memory against the modules.
func TestCMTilingFits(t *testing.T) {
	modules := map[string]*spirv.Module{}
	for _, name := range []string{"attn_decode_cm", "attn_decode_cmb", "attn_prefill_cm", "attn_prefill_cmb"} {
		k, err := shaders.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if modules[name], err = spirv.Parse(k.SPIRV); err != nil {
			t.Fatal(err)
		}
	}
	for device, caps := range knowncaps.Matrix {
		for heads := 1; heads <= MaxHeads; heads++ {
			t.Run(fmt.Sprint(device, "/", heads), func(t *testing.T) {
				c, err := cmChoose(&caps, caps.CoopMat[len(caps.CoopMat)-1].A, heads)
				if err != nil {
					t.Fatal(err)
				}
				for what, ok := range map[string]bool{
					"HG % M":                        c.heads%c.m == 0,
					"TILE % M, N, K, 8":             c.tile%c.m == 0 && c.tile%c.n == 0 && c.tile%c.k == 0 && c.tile%8 == 0,
					"subgroups % KSPLIT":            c.subgroups%c.kSplit == 0,
					"HG/M % (subgroups/KSPLIT)":     (c.heads/c.m)%(c.subgroups/c.kSplit) == 0,
					"512 % (KSPLIT*K)":              D%(c.kSplit*c.k) == 0,
					"512 % (subgroups*N)":           D%(c.subgroups*c.n) == 0,
					"threads % TILE":                c.threads()%c.tile == 0,
					"threads >= HG":                 c.threads() >= c.heads,
					"threads >= RING*TILE":          c.threads() >= cmRing*c.tile,
					"shared memory":                 c.sharedBytes() <= int(caps.SharedMemory),
					"no group with padding only":    c.heads < 2*max(heads, c.m),
					"no more than the device's max": c.threads() <= int(caps.MaxWorkgroupInvocations),
				} {
					if !ok {
						t.Errorf("%+v: %s", c, what)
					}
				}
				for name, m := range modules {
					constants := append([]uint32{uint32(c.heads), uint32(c.tile)}, c.constants()...)
					want := c.sharedBytes()
					if strings.HasPrefix(name, "attn_decode") {
						constants = append([]uint32{64, 2}, constants...)
					}
					if name == "attn_decode_cm" || name == "attn_decode_cmb" { // flags of two tiles in the place of a ring, and references
						want += 2*4*c.tile - 20*cmRing*c.tile + 4*c.heads
					}
					if got, err := m.SharedBytes(constants...); err != nil || got != want {
						t.Errorf("%s: %d bytes of shared memory, %v, want %d", name, got, err, want)
					}
				}
			})
		}
	}
}

func TestFewTiling(t *testing.T) {
	for _, c := range []struct {
		device, element string
		heads           int
		want            cmTiling
		norms           bool
	}{
		{"H100", "bf16", 32, cmTiling{16, 16, 16, 32, 32, 32, 8, 2}, false},
		{"H100", "f16", 16, cmTiling{16, 16, 16, 16, 32, 32, 16, 4}, true},
		{"RDNA3", "bf16", 16, cmTiling{16, 16, 16, 16, 32, 32, 16, 8}, true},
		{"Intel", "bf16", 8, cmTiling{8, 16, 16, 8, 32, 8, 16, 8}, true},
		{"lavapipe", "f16", 8, cmTiling{8, 8, 8, 8, 16, 8, 16, 8}, true},
	} {
		caps := knowncaps.Matrix[c.device]
		full, err := cmChoose(&caps, c.element, c.heads)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := full.fitFew(&caps)
		if !ok || got != c.want || got.norms() != c.norms {
			t.Errorf("%s %s, %d heads: %+v, %t, norms %t, want %+v, %t", c.device, c.element, c.heads, got, ok, got.norms(), c.want, c.norms)
		}
	}
}

// TestFewTilingFits is TestCMTilingFits for attn_decode_few.
func TestFewTilingFits(t *testing.T) {
	for _, name := range []string{"attn_decode_few_cm", "attn_decode_few_cmb"} {
		k, err := shaders.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spirv.Parse(k.SPIRV)
		if err != nil {
			t.Fatal(err)
		}
		for device, caps := range knowncaps.Matrix {
			for heads := 1; heads <= MaxHeads; heads *= 2 {
				full, err := cmChoose(&caps, caps.CoopMat[len(caps.CoopMat)-1].A, heads)
				if err != nil {
					t.Fatal(err)
				}
				c, ok := full.fitFew(&caps)
				if !ok {
					continue
				}
				parts := c.subgroups / c.kSplit
				headParts := min(parts, c.heads/c.m)
				for what, ok := range map[string]bool{
					"TILE % M, N, K, 8":               c.tile%c.m == 0 && c.tile%c.n == 0 && c.tile%c.k == 0 && c.tile%8 == 0,
					"subgroups % KSPLIT":              c.subgroups%c.kSplit == 0 && parts%headParts == 0,
					"head tiles and row tiles":        c.heads/c.m%headParts == 0 && (c.tile/c.n%(parts/headParts) == 0 || parts/headParts%(c.tile/c.n) == 0),
					"512 % (KSPLIT*K), (subgroups*N)": D%(c.kSplit*c.k) == 0 && D%(c.subgroups*c.n) == 0,
					"threads % TILE, >= RING*TILE":    c.threads()%c.tile == 0 && c.threads() >= cmRing*c.tile,
					"acc through shared memory":       c.m*130 <= c.tile*65,
					"maxima in the place of weights":  (c.tile/4+3)/4 <= c.tile/8+1,
				} {
					if !ok {
						t.Errorf("%s: %+v: %s", device, c, what)
					}
				}
				constants := append([]uint32{64, 2, uint32(c.heads), uint32(c.tile)}, c.constants()...)
				if got, err := m.SharedBytes(constants...); err != nil || got != c.fewSharedBytes() || got > int(caps.SharedMemory) {
					t.Errorf("%s: %s: %d bytes of shared memory, %v, want %d", device, name, got, err, c.fewSharedBytes())
				}
			}
		}
	}
}
