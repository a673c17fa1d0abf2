package cache

import "github.com/vkmla/vkmla/internal/numfmt"

var recordFP4 = recordRow{name: "fp4", row: D / 2, scales: D / 16, page: 512, align: 16,
	encode: func(row, scales []byte, x []uint16) {
		for b := range scales {
			block := x[16*b : 16*b+16]
			scales[b] = numfmt.FP4Scale(amaxOf(block))
			s := numfmt.E4M3Decode(scales[b])
			for d := 0; d < 16; d += 2 {
				row[8*b+d/2] = numfmt.E2M1Pack(numfmt.FP4Encode(numfmt.BF16Decode(block[d]), s),
					numfmt.FP4Encode(numfmt.BF16Decode(block[d+1]), s))
			}
		}
	},
	decode: func(x []uint16, row, scales []byte) {
		for d := range x {
			even, odd := numfmt.E2M1Unpack(row[d/2])
			x[d] = numfmt.BF16Encode(numfmt.E2M1Decode([2]byte{even, odd}[d%2]) * numfmt.E4M3Decode(scales[d/16]))
		}
	},
}
