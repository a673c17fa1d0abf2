package picture

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRoofline holds where points and the roof are: at what was measured.
func TestRoofline(t *testing.T) {
	limits := Limits{CopyGBs: 100, MatrixTFLOPs: 10, MatrixKind: "f32 fma"}
	groups := []Group{{"a step", []Bar{{Name: "c4a", US: 120, Parts: []Part{
		{Name: "wq_b", US: 100, Bytes: 1e6, Flop: 1e7, Share: 0.5}, {Name: "norm", US: 100}}}}}}
	p := DrawRoofline(limits, groups)
	require.NotNil(t, p)
	require.Len(t, p.Points, 1)
	at := func(ticks []tick, text string) float64 {
		i := slices.IndexFunc(ticks, func(x tick) bool { return x.Text == text })
		require.GreaterOrEqual(t, i, 0, "no %s", text)
		return ticks[i].At
	}
	assert.InDelta(t, at(p.GridX, "10"), p.Points[0].X, 1e-9, "10 FLOP a byte")
	assert.InDelta(t, at(p.GridY, "100"), p.Points[0].Y, 1e-9, "100 GFLOP/s")
	assert.Equal(t, "wq_b, c4a, a step: 100 us, 50 % of the limit", p.Points[0].Title)
	assert.Contains(t, p.Roof, fmt.Sprintf(" %.1f,%.1f ", at(p.GridX, "100"), at(p.GridY, "10000")), "the ridge")
	assert.Nil(t, DrawRoofline(Limits{}, groups))
	assert.Nil(t, DrawRoofline(limits, nil))
}

// TestBars holds that lengths are as times are, within a group, and that long names are cut.
func TestBars(t *testing.T) {
	long := strings.Repeat("x", 60)
	p := DrawBars([]Group{{"a", []Bar{{Name: long, US: 10}, {Name: "y", US: 5, Limit: 2.5}}},
		{"b", []Bar{{Name: "z", US: 1000}}}, {"c", nil}})
	require.Len(t, p.Parts, 3)
	assert.InEpsilon(t, 2, p.Parts[0].W/p.Parts[1].W, 1e-9)
	assert.InEpsilon(t, p.Parts[0].W, p.Parts[2].W, 1e-9, "a group has its own scale")
	require.Len(t, p.Limits, 1)
	assert.InEpsilon(t, p.Parts[1].W/2, p.Limits[0].X-p.Parts[1].X, 1e-9)
	has := func(text string) bool {
		return slices.ContainsFunc(p.Labels, func(l label) bool { return l.Text == text })
	}
	assert.True(t, has("5.00 us, 50 % of the limit"))
	assert.True(t, has(long[:45]+"..."))
	assert.Nil(t, DrawBars([]Group{{"c", []Bar{{Name: "never timed"}}}}))
}
