package cache

var recordFP8 = recordRow{name: "fp8", row: D, scales: D / 32, page: 512, align: 16,
	encode: func(row, scales []byte, x []uint16) { encodeE4M3(row, scales, x, 32) },
	decode: func(x []uint16, row, scales []byte) { decodeE4M3(x, row, scales, 32) },
}
