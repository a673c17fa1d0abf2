package projection

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/spirv"
)

// Which layers are computed by pairs of steps on an H100, and what the shader demands of
// the tiles on every device.
func TestLinearWholeRules(t *testing.T) {
	for _, c := range []struct {
		cfg    LinearConfig
		tokens int
		want   bool
	}{
		{LinearConfig{N: 32768, K: 1024, Weights: FormatBF16}, 4096, true},
		{LinearConfig{N: 32768, K: 1024, Weights: FormatFP8F32}, 4096, true},
		{LinearConfig{N: 32768, K: 1024, Weights: FormatFP8}, 129, true},
		{LinearConfig{N: 32768, K: 1024, Weights: FormatNVFP4}, 4096, true},
		{LinearConfig{N: 1536, K: 4096, Weights: FormatFP8F32}, 4096, true},
		{LinearConfig{N: 1024, K: 4096, Groups: 8, Weights: FormatFP8F32, Activations: ActivationFP8Packed}, 4096, true},
		{LinearConfig{N: 1024, K: 4096, Groups: 8, Weights: FormatFP8, Activations: ActivationFP8}, 4096, true},
		{LinearConfig{N: 1024, K: 4096, Groups: 8, Weights: FormatFP8F32, Activations: ActivationFP8}, 4096, true},
		{LinearConfig{N: 32768, K: 1024, Weights: FormatFP8F32}, 127, false}, // not a whole tile
		{LinearConfig{N: 32768 + 64, K: 1024, Weights: FormatFP8F32}, 4096, false},
		{LinearConfig{N: 32768, K: 1056, Weights: FormatFP8F32}, 4096, false},
		{LinearConfig{N: 32768, K: 1088, Weights: FormatFP8F32}, 4096, false},
		{LinearConfig{N: 32768, K: 1088, Weights: FormatFP8x32}, 4096, true}, // each quad has its scale
		{LinearConfig{N: 32768, K: 1088, Weights: FormatBF16}, 4096, true},
		{LinearConfig{N: 128, K: 1 << 25, Weights: FormatBF16}, 4096, false},
		{LinearConfig{N: 128, K: 1 << 17, Groups: 256, Weights: FormatBF16}, 4096, false},
	} {
		o := planned(t, c.cfg, opkit.CMB, 4)
		m := kindOf[*matrixTiles](o).tile(c.tokens, math.MaxInt32)
		assert.Equal(t, c.want, m.of(c.tokens).pairs, "%+v, %d tokens: by pairs", c.cfg, c.tokens)
		step := 2 * m.bk
		if span := c.cfg.Weights.row().span; span > 0 { // a block of scales
			step = span
		}
		p := o.plan(c.tokens, math.MaxInt32)
		assert.False(t, c.want && p.step != step, "%+v, %d tokens: %d numbers a turn", c.cfg, c.tokens, p.step)
	}
	caps, small := knowncaps.Matrix["H100"], linearTiling{m: 16, n: 16, k: 16, bm: 64, bn: 64, bk: 32, wm: 16, wn: 32, subgroup: 32}
	for f, want := range map[Format]bool{FormatBF16: true, FormatFP8F32: false} {
		l := layerFor(t, &caps, LinearConfig{N: 1024, K: 1024, Weights: f}, opkit.CMB, 4)
		assert.Equal(t, want, l.wholeTile(small) != nil, "%v, two passes over the rows: by pairs", f)
	}
	for device, caps := range knowncaps.Matrix {
		for variant, element := range matrixElement {
			m, err := spirv.Parse(code(t, opkit.Stem("proj_linear_whole", variant)))
			require.NoError(t, err)
			var found matrixTiles
			if err := found.find(profile(t, "hopper"), &caps, variant); err != nil {
				continue // TestLinearTilingRules says where that may be
			}
			for _, cfg := range []LinearConfig{{Weights: FormatBF16}, {Weights: FormatFP8F32}, {Weights: FormatFP8x32}, {Weights: FormatNVFP4},
				{Weights: FormatFP8F32, Activations: ActivationFP8}} {
				cfg.N, cfg.K = 1024, 1024
				l := layerFor(t, &caps, cfg, variant, 4)
				for i, d := range found.tiles {
					x := l.wholeTile(d.linearTiling)
					assert.False(t, device == "H100" && (x != nil) != (i == 0),
						"%s, %s, %v: %+v by pairs: %v", device, element, cfg.Weights, d, x != nil)
					if x == nil {
						continue
					}
					name := fmt.Sprintf("%s, %s, %v: %+v", device, element, cfg.Weights, x.linearTiling)
					constants := append([]uint32{cfg.Weights.row().word(), uint32(cfg.Activations)}, x.constants()...)
					got, err := m.SharedBytes(constants...)
					require.NoError(t, err, name)
					assert.Equal(t, x.sharedBytes(), got, name)
					assert.LessOrEqual(t, got, int(caps.SharedMemory), name)
					act := 8
					if cfg.Activations != ActivationBF16 {
						act = 16
					}
					quad := cfg.Weights.row().quad
					weights := struct{ rows, quad, span int }{x.bn, quad, 2 * x.bk}
					if x.blocks > 0 && l.linesFit() {
						weights = struct{ rows, quad, span int }{x.bn / 2, quad, ScaleBlock}
					}
					for _, loads := range []struct{ rows, quad, span int }{{x.bm, act, 2 * x.bk}, weights} {
						lines := x.threads() * loads.quad / loads.span
						assert.Equal(t, 0, loads.rows%(2*lines), "%s: %d rows at a time", name, lines)
						assert.LessOrEqual(t, lines*wholeRowBytes, math.MaxUint32+1, "%s: %d rows at a time", name, lines)
					}
					require.Equal(t, 0, ScaleBlock%x.span(),
						"%s: a turn crosses blocks, or rows are not of five quads", name)
					assert.Equal(t, 32, x.bk, "%s: a turn crosses blocks, or rows are not of five quads", name)
				}
			}
		}
	}
}
