package cache

import "encoding/binary"

var recordV4 = recordRow{name: "v4", row: rowBytes, scales: scaleBytes, page: strideAlign, align: 8,
	encode: func(row, scales []byte, x []uint16) {
		encodeE4M3(row[:NopeDim], scales[:blocks], x[:NopeDim], blockDim)
		scales[blocks] = 0
		for d := NopeDim; d < D; d++ {
			binary.LittleEndian.PutUint16(row[NopeDim+2*(d-NopeDim):], x[d])
		}
	},
	decode: func(x []uint16, row, scales []byte) {
		decodeE4M3(x[:NopeDim], row, scales, blockDim)
		for d := NopeDim; d < D; d++ {
			x[d] = binary.LittleEndian.Uint16(row[NopeDim+2*(d-NopeDim):])
		}
	},
}
