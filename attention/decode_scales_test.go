package attention_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
)

// scaleRow are the bytes of a slot whose block b has scale scales(b), and in turn all codes, from
// the first-th on, that are no NaN.
func scaleRow(x *attention.Slots, slot int64, first int, scales func(block int) byte) {
	r := x.Layout.Record
	row, at := x.Pool[x.Layout.RowOffset(slot):][:r.RowBytes()], x.Pool[x.Layout.ScaleOffset(slot):][:r.ScaleBytes()]
	for i := range row {
		if row[i] = byte(first + i); r == cache.RecordFP4 {
			row[i] = byte(i%8*0x22 + 0x10) // all sixteen in a block
		} else if row[i]&0x7F == 0x7F {
			row[i] = 0
		}
	}
	for b := range at {
		at[b] = scales(b)
	}
}

// A token that attends one row, with no scores to speak of, gives its numbers: of every scale byte,
// with every code. Kernels with matrices take large and small scales of RecordFP8 as
// shaders/lib/cm_element.glsl says, and with bf16 numbers below 2^-112 may be zeros.
func TestDecodeEveryScale(t *testing.T) {
	dev := testkit.Device(t)
	const heads, fp8, fp4 = 8, 16, 10
	s := step{heads: heads, q: make([]uint16, (fp8+fp4)*heads*cache.D)}
	zeros := func(n int) []uint16 { return make([]uint16, n*cache.D) }
	s.win = recordSet(t, cache.RecordFP8, 1, fp8+fp4, zeros(fp8))
	s.comp = recordSet(t, cache.RecordFP4, 1, fp8+fp4, zeros(fp4))
	for i := range fp8 {
		scaleRow(s.win, int64(5+i), 16*i, func(b int) byte { return byte(16*i + b) })
		s.win.Indices[i*s.win.Width], s.win.Lens[i], s.comp.Lens[i] = int32(5+i), 1, 0
	}
	for i := range fp4 {
		scaleRow(s.comp, int64(5+i), 0, func(b int) byte {
			switch scale := byte(32*i + b); {
			case i >= 8 && b == 3+2*i: // a row with a NaN has no other numbers
				return 0x7F | byte(i)<<7
			case i >= 8 || scale&0x7F == 0x7F:
				return 0x38
			default:
				return scale
			}
		})
		token := fp8 + i
		s.comp.Indices[token*s.comp.Width], s.comp.Lens[token], s.win.Lens[token] = int32(5+i), 1, 0
	}
	for _, v := range variants(t, dev, heads) {
		least, most, off, flushed := 0, 246, 0.0, 0x1p-112
		switch v {
		case opkit.CM:
			least, most, off, flushed = 105, 134, 0x1p-25, 0
		case opkit.CMB:
		default:
			continue
		}
		for _, splits := range []int{1, 2} {
			t.Run(fmt.Sprint(v, splits), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups, cfg.WindowRecord, cfg.CompressedRecord = splits, 1, cache.RecordFP8, cache.RecordFP4
				bothLayouts(t, cfg, func(t *testing.T) {
					out, _ := s.decode(t, dev, cfg)
					var want [cache.D]uint16
					for token := range fp8 + fp4 {
						x, slot := s.win, int64(5+token)
						if token >= fp8 {
							x, slot = s.comp, slot-fp8
						}
						r := x.Layout.Record
						row := x.Pool[x.Layout.RowOffset(slot):][:r.RowBytes()]
						scales := x.Pool[x.Layout.ScaleOffset(slot):][:r.ScaleBytes()]
						known := append([]byte{}, scales...)
						for b := range known {
							if known[b] = byte(min(int(scales[b]), most)); r == cache.RecordFP4 {
								known[b] = scales[b]
							}
						}
						r.DecodeRef(want[:], row, known)
						nan := token >= fp8+8
						for i, bits := range out[token*heads*cache.D:][:heads*cache.D] {
							d := i % cache.D
							y, z := float64(numfmt.BF16Decode(bits)), float64(numfmt.BF16Decode(want[d]))
							if r == cache.RecordFP8 && int(scales[d/32]) < least {
								z = 0
							}
							ok := y == z
							if r == cache.RecordFP8 {
								ok = ok || scales[d/32] < 112 && math.Abs(y-z) <= off || math.Abs(z) < flushed && math.Abs(y) <= flushed
							}
							if nan {
								ok = math.IsNaN(y) || !math.IsNaN(z)
							}
							require.True(t, ok, "token %d, head %d, dim %d: %g, want %g", token, i/cache.D, d, y, z)
						}
					}
				})
			})
		}
	}
}
