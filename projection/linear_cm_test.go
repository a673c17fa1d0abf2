package projection

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/vkmla/vkmla/internal/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// NewLinearTiled is NewLinear with tiles of one kind, for the tests: BM, BN, BK, WM,
// WN, BUFFERS.
func NewLinearTiled(dev *vk.Device, cfg LinearConfig, kind [6]int) (*Linear, error) {
	return newLinear(dev, cfg, func(caps *vk.Caps, element string) ([]linearTiling, error) {
		return fitTilings(caps, element, []linearTiling{{bm: kind[0], bn: kind[1], bk: kind[2], wm: kind[3], wn: kind[4], buffers: kind[5]}})
	})
}

// What the shader's comments demand of a tiling, on every device, and the shared
// memory that the SPIR-V has with it.
func TestLinearTilingRules(t *testing.T) {
	for device, caps := range knowncaps.Matrix {
		for element, name := range map[string]string{"f16": "proj_linear_cm", "bf16": "proj_linear_cmb"} {
			m, err := spirv.Parse(code(t, name))
			if err != nil {
				t.Fatal(err)
			}
			list, err := linearTilings(&caps, element)
			if err != nil {
				if device != "lavapipe" || element == "f16" {
					t.Errorf("%s, %s: %v", device, element, err)
				}
				continue
			}
			if device == "H100" && len(list) != len(linearShapes) {
				t.Errorf("%s, %s: %d kinds of tiles, want %d", device, element, len(list), len(linearShapes))
			}
			for i, x := range list {
				name := fmt.Sprintf("%s, %s: %+v", device, element, x)
				each := x.threads() / (x.bk / 8)
				switch {
				case x.wm%x.m != 0 || x.wn%x.n != 0 || x.bk%x.k != 0 || x.bm%x.wm != 0 || x.bn%x.wn != 0:
					t.Errorf("%s: a part is not whole", name)
				case each < 1 || x.bm%each != 0 || x.bn%each != 0:
					t.Errorf("%s: rows do not divide among the invocations", name)
				case x.bn > ScaleBlock || ScaleBlock%x.bk != 0:
					t.Errorf("%s: rows lie in more than two blocks, or a step in more than one", name)
				case i > 0 && x.bm >= list[i-1].bm:
					t.Errorf("%s: not the most tokens first", name)
				case x.sharedBytes() > int(caps.SharedMemory):
					t.Errorf("%s: %d bytes of shared memory", name, x.sharedBytes())
				}
				constants := append([]uint32{uint32(WeightFP8), 0}, x.constants()...)
				if got, err := m.SharedBytes(constants...); err != nil || got != x.sharedBytes() {
					t.Errorf("%s: %d bytes of shared memory, %v, want %d", name, got, err, x.sharedBytes())
				}
			}
		}
	}
	none := knowncaps.Matrix["H100"]
	none.SharedMemory = 2048
	if _, err := linearTilings(&none, "f16"); !errors.Is(err, vk.ErrMissingFeature) {
		t.Errorf("2 KiB of shared memory: %v, want a missing feature", err)
	}
}

func code(t *testing.T, name string) []byte {
	t.Helper()
	k, err := shaders.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return k.SPIRV
}

// planned is a Linear of which only the plan is asked, as on an H100.
func planned(t *testing.T, cfg LinearConfig, variant string) *Linear {
	t.Helper()
	cfg.Groups, cfg.Workgroups, cfg.Out = max(cfg.Groups, 1), 264, tensor.BF16
	o := &Linear{cfg: cfg, variant: variant, few: map[int]fewKernel{}}
	pass := fewPass
	if o.matrices() {
		pass = fewPassMatrix
		caps := knowncaps.Matrix["H100"]
		list, err := linearTilings(&caps, "f16")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			o.matrix = append(o.matrix, matrixKernel{linearTiling: d})
		}
	}
	for n := 1; n <= pass; n *= 2 {
		rows, lanes := fewDivision(cfg, n)
		o.few[n] = fewKernel{tokens: n, rows: rows, lanes: lanes}
	}
	return o
}

// The rule of Linear's documentation, on layers of V4-Flash.
func TestLinearPlan(t *testing.T) {
	wqB := LinearConfig{N: 32768, K: 1024, Weights: WeightFP8}
	wqA := LinearConfig{N: 1536, K: 4096, Weights: WeightFP8}
	woA := LinearConfig{N: 1024, K: 4096, Groups: 8, Weights: WeightBF16}
	gate := LinearConfig{N: 64, K: 4096, Weights: WeightBF16}
	for _, c := range []struct {
		cfg     LinearConfig
		variant string
		t       int
		grid    [3]uint32
		splits  int
	}{
		{wqB, VariantCMB, 1, [3]uint32{1024, 1, 1}, 1},
		{wqB, VariantCMB, 4, [3]uint32{1024, 1, 1}, 1},
		{wqB, VariantCMB, 5, [3]uint32{1, 512, 1}, 1},
		{wqB, VariantCMB, 64, [3]uint32{1, 512, 1}, 1},
		{wqB, VariantCMB, 100, [3]uint32{1, 256, 1}, 1},
		{wqB, VariantCMB, 4096, [3]uint32{16, 256, 1}, 1},
		{wqB, VariantBase, 16, [3]uint32{1024, 2, 1}, 1},
		{wqB, VariantBase, 17, [3]uint32{1, 512, 1}, 1},
		{wqA, VariantCM, 1, [3]uint32{768, 1, 1}, 1},
		{wqA, VariantCM, 8, [3]uint32{768, 2, 1}, 1},
		{wqA, VariantCM, 32, [3]uint32{1, 24, 16}, 16},
		{wqA, VariantCM, 4096, [3]uint32{16, 12, 1}, 1},
		{woA, VariantCMB, 16, [3]uint32{1, 16, 32}, 4},
		{woA, VariantCMB, 4096, [3]uint32{16, 8, 8}, 1},
		{gate, VariantCMB, 1, [3]uint32{32, 1, 1}, 1},
		{gate, VariantCMB, 32, [3]uint32{1, 1, 16}, 16},
	} {
		o := planned(t, c.cfg, c.variant)
		p := o.plan(c.t, math.MaxInt32)
		if p.grid != c.grid || p.splits != c.splits {
			t.Errorf("%dx%d, %s, %d tokens: grid %v, %d parts; want %v, %d", c.cfg.N, c.cfg.K, c.variant, c.t, p.grid, p.splits, c.grid, c.splits)
		}
		if q := o.plan(c.t, 0); q.splits != 1 {
			t.Errorf("%dx%d, %d tokens, no scratch: %d parts", c.cfg.N, c.cfg.K, c.t, q.splits)
		}
	}
}

// For all sizes: every row, token and step is somebody's, no part is empty, and
// scratch memory is as large as the plan needs.
func TestLinearPlanRules(t *testing.T) {
	for _, variant := range []string{VariantBase, VariantCM} {
		for _, n := range []int{8, 64, 72, 1536, 32768} {
			for _, k := range []int{32, 64, 1056, 4096, 16384} {
				for _, f := range []WeightFormat{WeightBF16, WeightFP8, WeightNVFP4} {
					o := planned(t, LinearConfig{N: n, K: k, Weights: f}, variant)
					for _, d := range o.few {
						if d.rows*d.tokens > 16 || d.lanes > fewThreads || d.lanes < 8 || d.rows != 2 && d.rows != 4 {
							t.Errorf("%dx%d %v: %+v", n, k, f, d)
						}
					}
					for _, tokens := range []int{1, 3, 9, 16, 17, 33, 64, 65, 129, 1000, 5000} {
						p := o.plan(tokens, math.MaxInt32)
						if p.splits > 1 && (p.splits-1)*p.splitSteps*64 >= k {
							t.Errorf("%dx%d %v, %d tokens: an empty part of %d", n, k, f, tokens, p.splits)
						}
						need := 0
						if p.splits > 1 {
							need = p.splits * tokens * n
						}
						if got := o.ScratchLen(tokens); got != need {
							t.Errorf("%dx%d %v, %d tokens: scratch %d, want %d", n, k, f, tokens, got, need)
						}
						if less := o.plan(tokens, need-1); need > 0 && less.splits >= p.splits {
							t.Errorf("%dx%d %v, %d tokens: %d parts in too little memory", n, k, f, tokens, less.splits)
						}
					}
				}
			}
		}
	}
}
