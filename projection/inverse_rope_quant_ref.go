package projection

import (
	"fmt"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// InverseRopeQuantRef is the definition of InverseRopeQuant on host memory, for o
// [T, groups*heads, 512] bf16, positions [T] and cosSin [rows, 64]. With x the numbers of
// head j of group g of token t, the last 64 turned back as InverseRopeRef does but not
// rounded to bf16, and block c = 0..3 of 128 of them:
//
//	sb = 127 + ceil(log2(max(max|x|, 1e-10)/448))
//	codes[g][t][j*512+d] = e4m3(x[d] / 2^(sb-127)),  scales[g][j*4+c][t] = sb
//
// It writes codes [groups, T, heads*512] and scales, the UE8M0 bytes [groups, heads*4, T],
// which the layouts of InverseRopeQuant spell as numbers or pack four by four. The error
// is a *vk.ArgumentError, and then nothing was written.
func InverseRopeQuantRef(o []uint16, groups, heads int, positions []int32, cosSin []float32, codes, scales []byte) error {
	const op = "inverse rope quant reference"
	n := len(positions)
	if err := checkOutput(op, o, groups*heads, positions, cosSin); err != nil {
		return err
	}
	if len(codes) != len(o) || len(scales) != n*groups*heads*HeadBlocks {
		return pkg.Wrong(op, "codes, scales", fmt.Sprintf("%d, %d bytes", len(codes), len(scales)),
			"%d, %d", len(o), n*groups*heads*HeadBlocks)
	}
	for i := range n * groups * heads {
		t, g, j := i/(groups*heads), i%(groups*heads)/heads, i%heads
		x := numfmt.BF16DecodeSlice(nil, o[i*cache.D:][:cache.D])
		turnBack(x[cache.NopeDim:], cosSinOf(cosSin, positions[t]))
		for c := range HeadBlocks {
			block, amax := x[c*BlockDim:][:BlockDim], float32(0)
			for _, v := range block {
				amax = max(amax, v, -v)
			}
			sb := numfmt.UE8M0Encode(amax, numfmt.ActivationEps, numfmt.E4M3InvMax)
			for d, v := range block {
				codes[((g*n+t)*heads+j)*cache.D+c*BlockDim+d] = numfmt.E4M3Encode(v * numfmt.UE8M0Inverse(sb))
			}
			scales[((g*heads+j)*HeadBlocks+c)*n+t] = sb
		}
	}
	return nil
}
