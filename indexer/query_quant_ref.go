package indexer

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// QueryQuantRef is the definition of QueryQuant on host memory, for queries q
// [T, heads, 128] bf16, positions [T], weights [T, heads] bf16 and table [rows, 64],
// a bf16 one widened. With x the numbers of head h of token t:
//
//	e, o = x[64+2i], x[65+2i];  c, s = table[p][i], table[p][32+i]      i = 0..31
//	x[64+2i], x[65+2i] = bf16(e*c - o*s), bf16(o*c + e*s)
//	x[i] = bf16(128^-0.5 * sum_j (-1)^popcount(i&j) x[j])               with cfg.Hadamard
//	FP8:    sb of all 128, codes = e4m3(x / 2^(sb-127)),
//	        out = (w * 2^(sb-127)) * softmax * head
//	MXFP4:  sb of each 32, codes = e2m1(x / 2^(sb-127)), out = (w * softmax) * head
//
// where each product and sum is rounded to f32, sb-127 = ceil(log2(max(max|x|, eps) / M)), and
// eps, M are 1e-4, 448 for FP8 and 6*2^-126, 6 for MXFP4. It writes codes, out and, for MXFP4,
// scales, of the sizes that QueryQuantArgs gives. Its error is a *vk.ArgumentError; then nothing
// was written.
func QueryQuantRef(q []uint16, heads int, positions []int32, weights []uint16, table []float32,
	cfg QueryQuantConfig, codes, scales []byte, out []float32) error {
	const op = "query quant reference"
	n, row := len(positions)*heads, cfg.Format.RowBytes()
	switch {
	case cfg.Format != cache.IndexKeyFP8 && cfg.Format != cache.IndexKeyMXFP4:
		return checkFormat(op, cfg.Format)
	case heads < 1 || len(q) != n*cache.IndexDim || len(weights) != n:
		return pkg.Wrong(op, "q, weights", fmt.Sprintf("%d and %d values", len(q), len(weights)),
			"[%d, %d, %d] and [%d, %d]", len(positions), heads, cache.IndexDim, len(positions), heads)
	case len(table) < cache.RopeDim || len(table)%cache.RopeDim != 0:
		return pkg.Wrong(op, "table", fmt.Sprintf("%d values", len(table)), "rows of %d", cache.RopeDim)
	case len(codes) != n*row || len(out) != n || cfg.Format == cache.IndexKeyMXFP4 && len(scales) != n*Blocks:
		return pkg.Wrong(op, "codes, scales, out", fmt.Sprintf("%d, %d, %d", len(codes), len(scales), len(out)),
			"%d, %d, %d", n*row, n*Blocks, n)
	}
	softmax, head := cmp.Or(cfg.SoftmaxScale, DefaultSoftmaxScale), cmp.Or(cfg.HeadScale, DefaultHeadScale(heads))
	for i := range n {
		p := min(max(int(positions[i/heads]), 0), len(table)/cache.RopeDim-1)
		x := cache.RotateRef(q[i*cache.IndexDim:(i+1)*cache.IndexDim], table[p*cache.RopeDim:][:cache.RopeDim])
		if cfg.Hadamard {
			mix(x)
		}
		key, scale := cache.QuantiseKeyRef(x, cfg.Format) // as the keys are
		copy(codes[i*row:], key)
		w := numfmt.BF16Decode(weights[i])
		if cfg.Format == cache.IndexKeyMXFP4 {
			copy(scales[i*Blocks:], scale[:])
		} else {
			w *= math.Float32frombits(binary.LittleEndian.Uint32(scale[:]))
		}
		out[i] = float32(w*softmax) * head
	}
	return nil
}

// mix multiplies 128 bf16 numbers with the Sylvester-Hadamard matrix, scales with 128^-0.5 and
// rounds to bf16. The sums are those of the fast transform, nearest neighbours first, in f32.
func mix(bits []uint16) {
	x := numfmt.BF16DecodeSlice(nil, bits)
	for far := 1; far < cache.IndexDim; far *= 2 {
		for i := range x {
			if i&far == 0 {
				a, b := x[i], x[i+far]
				x[i], x[i+far] = a+b, a-b
			}
		}
	}
	for i := range x {
		bits[i] = numfmt.BF16Encode(x[i] * DefaultSoftmaxScale)
	}
}
