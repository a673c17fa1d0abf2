package attention_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
)

// Every E4M3 code but NaN comes through the kernels without matrix units exactly, with scales from
// end to end of what bf16 holds: each token attends one row, so that its output is a copy of it.
// Any of the eight codes that are converted together may be one below 2^-6.
func TestDecodeCodes(t *testing.T) {
	dev := testkit.Device(t)
	const rows = 73
	s := step{1, make([]uint16, rows*cache.D), set(t, 64, rows, normal(rand.New(rand.NewPCG(testkit.Seed(t), 11)), rows*cache.D)), nil, nil}
	slots := make([]int32, rows)
	for r := range rows {
		slots[r] = int32(5 + r)
		s.win.Indices[r*s.win.Width], s.win.Lens[r] = slots[r], 1
		codes, scales := s.win.Pool[s.win.Layout.RowOffset(int64(slots[r])):], s.win.Pool[s.win.Layout.ScaleOffset(int64(slots[r])):]
		for d := range 448 {
			block := 7*r + d/64 // of 511: all codes in four, eight with each scale, in four of them a small code in each eight
			code := byte(block%4*64 + d%64)
			if block/4%2 == 1 && d%8 == r%8 {
				code = code&0x80 | byte(d/8)%8
			}
			if code&0x7F == 0x7F {
				code--
			}
			codes[d], scales[d/64] = code, byte(10+block/8*15/4) // up to 246
		}
	}
	want := make([]uint16, rows*cache.D)
	require.NoError(t, cache.GatherSlotsRef(want, s.win.Pool, s.win.Layout, slots))
	for _, v := range []string{opkit.Base, opkit.DA} {
		if attention.CanDecode(dev.Adapter(), v, s.heads) != nil || testkit.LeftOut(v) {
			continue
		}
		out, _ := s.decode(t, dev, s.config(v))
		for i, x := range out {
			if x != want[i] && x|want[i] != 0x8000 { // 0 may lose its sign
				t.Fatalf("%s, row %d, dim %d: %#x, want %#x", v, i/cache.D, i%cache.D, x, want[i])
			}
		}
	}
}
