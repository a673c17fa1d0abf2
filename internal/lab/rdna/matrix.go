package rdna

import (
	"fmt"
	"strings"
)

// matrix compiles v_wmma: D = A B + C of 16 by 16 by 16, sums of float32. In which order sums are
// made is not specified: here each has one rounding.
func (c compiler) matrix(l line) (step, error) {
	read := map[string]func(w *wave, reg, lane, at int) float32{
		"f16": func(w *wave, reg, lane, at int) float32 {
			return fromHalf(w.v[reg+at/2][lane] >> (16 * (at & 1)) & 0xffff)
		},
		"bf16":    func(w *wave, reg, lane, at int) float32 { return asFloat(w.v[reg+at/2][lane] >> (16 * (at & 1)) << 16) },
		"fp8_fp8": func(w *wave, reg, lane, at int) float32 { return fromE4M3(w.v[reg+at/4][lane] >> (8 * (at & 3)) & 255) },
	}[strings.TrimPrefix(l.op, "v_wmma_f32_16x16x16_")]
	if c.size != 32 {
		return nil, fmt.Errorf("matrices of waves of %d are not known", c.size)
	}
	if read == nil || len(l.args) != 4 || len(l.mods) > 0 || c.gfx < 11 {
		return nil, fmt.Errorf("matrices that are not known")
	}
	d, a, b, add := l.args[0].reg, l.args[1].reg, l.args[2].reg, l.args[3]
	for _, o := range l.args {
		if o.neg || o.abs || o.half != 0 {
			return nil, fmt.Errorf("matrices with signs that are not known")
		}
	}
	twice := c.gfx == 11 // lanes 16 to 31 repeat the first of A and B
	return func(w *wave) {
		if twice {
			w.repeated(a)
			w.repeated(b)
		}
		var x, y [16][16]float64
		for i := range 16 {
			for k := range 16 {
				lane, at := i, k
				if !twice {
					lane, at = i+k/8*16, k%8
				}
				x[i][k], y[i][k] = float64(read(w, a, lane, at)), float64(read(w, b, lane, at))
			}
		}
		var out [8][32]uint32
		for m := range 16 {
			for n := range 16 {
				r, lane := m/2, n+m%2*16
				if !twice {
					r, lane = m%8, n+m/8*16
				}
				sum := float64(asFloat(add.bits))
				if add.kind == kindVector {
					sum = float64(asFloat(w.v[add.reg+r][lane]))
				}
				out[r][lane] = asBits(float32(sum + dot16(&x[m], &y[n])))
			}
		}
		for r := range out {
			copy(w.v[d+r][:32], out[r][:])
		}
	}, nil
}

func dot16(a, b *[16]float64) (s float64) {
	var t float64
	for i := 0; i < 16; i += 2 {
		s += a[i] * b[i]
		t += a[i+1] * b[i+1]
	}
	return s + t
}

// repeated reports a matrix of RDNA3 whose two halves of lanes differ.
func (w *wave) repeated(reg int) {
	for r := range 8 {
		v := &w.v[reg+r]
		if [16]uint32(v[:16]) != [16]uint32(v[16:32]) {
			w.fault("lanes 16 to 31 of a matrix do not repeat lanes 0 to 15", uint64(reg+r))
			return
		}
	}
}
