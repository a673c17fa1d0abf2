package cache

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// latentRef is the latent of a pooled value v: v is rounded to bf16, divided by its root mean
// square, multiplied by the weight of the norm, and rounded to bf16. Computed in float64.
// Values may be off by tol; lo and hi are the bits that f32 may round to.
func latentRef(v, tol []float64, norm []float32, eps float32) (latent, lo, hi []uint16) {
	bf16 := func(x float64) float64 { return float64(numfmt.BF16Round(float32(x))) }
	n := len(v)
	square, spread := 0.0, 0.0 // of rounded values, and how much other roundings would change it
	for c := range v {
		x, a, b := bf16(v[c]), bf16(v[c]-tol[c]), bf16(v[c]+tol[c])
		square += x * x
		spread += math.Abs(b*b - a*a)
	}
	scale := 1 / math.Sqrt(square/float64(n)+float64(eps))
	off := compressTolerance
	if square > 0 {
		off += spread / square
	}
	latent, lo, hi = make([]uint16, n), make([]uint16, n), make([]uint16, n)
	for c := range v {
		w := float64(norm[c])
		latent[c] = numfmt.BF16Encode(float32(bf16(v[c]) * scale * w))
		a, b := bf16(v[c]-tol[c])*scale*w, bf16(v[c]+tol[c])*scale*w
		a, b = min(a, b), max(a, b)
		lo[c] = numfmt.BF16Encode(float32(a - off*math.Abs(a)))
		hi[c] = numfmt.BF16Encode(float32(b + off*math.Abs(b)))
	}
	return latent, lo, hi
}

// RotateRef turns the last 64 of bf16 numbers x by a row of 32 cosines and 32 sines, in f32, where
// each product and sum is rounded, and rounds to bf16.
func RotateRef(x []uint16, cosSin []float32) []uint16 {
	y := slices.Clone(x)
	for i := range RopeDim / 2 {
		d := len(x) - RopeDim + 2*i
		e, o, c, s := numfmt.BF16Decode(x[d]), numfmt.BF16Decode(x[d+1]), cosSin[i], cosSin[RopeDim/2+i]
		y[d] = numfmt.BF16Encode(float32(e*c) - float32(o*s))
		y[d+1] = numfmt.BF16Encode(float32(o*c) + float32(e*s))
	}
	return y
}

// Rotated is the entry of the latent x that token i completes, before it is quantised. The error is
// a *vk.ArgumentError.
func (in CompressHost) Rotated(i int, x []uint16) ([]uint16, error) {
	const op = "compress reference"
	in.RopeStep = max(in.RopeStep, 1)
	if err := in.check(op); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(in.Positions) || len(x) != in.Compression.Dim {
		return nil, pkg.Wrong(op, "token, latent", fmt.Sprintf("%d, %d values", i, len(x)),
			"below %d, %d", len(in.Positions), in.Compression.Dim)
	}
	return RotateRef(x, in.angles(int(in.Positions[i]))), nil
}

// latentEntry is the entry of token i with Compression.Latent.
func (in CompressHost) latentEntry(i int) CompressedEntry {
	c, p := in.Compression, int(in.Positions[i])
	var v, tol []float64
	if c.Ungated {
		v, tol = make([]float64, c.Dim), make([]float64, c.Dim) // an input: exact
		for d := range v {
			v[d] = float64(in.Rows[i*c.Dim+d])
		}
	} else {
		v, tol = in.pool(int(in.TokenToReq[i]), p)
		for d := range tol {
			tol[d] *= compressTolerance
		}
	}
	e := CompressedEntry{Token: i, Slot: in.Slots[i], Value: make([]float64, c.Dim), Tol: make([]float64, c.Dim)}
	e.Latent, e.LatentLo, e.LatentHi = latentRef(v, tol, in.Norm, in.Eps)
	for d, b := range RotateRef(e.Latent, in.angles(p)) {
		e.Value[d] = float64(numfmt.BF16Decode(b))
	}
	return e
}

// checkRows checks the rows that stand for groups with Compression.Ungated.
func (in CompressHost) checkRows(op string) error {
	c, tokens := in.Compression, len(in.Slots)
	if err := c.check(op); err != nil {
		return err
	}
	if len(in.Positions) < tokens || len(in.Rows) < tokens*c.Dim {
		return pkg.Wrong(op, "Positions, Rows", fmt.Sprintf("%d, %d values", len(in.Positions), len(in.Rows)),
			"%d tokens, rows of %d", tokens, c.Dim)
	}
	return nil
}
