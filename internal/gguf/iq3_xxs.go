package gguf

// IQ3_XXS: 256 values in 98 bytes: f16 d; u8 q[64]; u32 a[8]. Each q is a row of the grid, of 4
// values; each a has for 32 values four times seven bits of signs (see signs8) and a scale above
// them.
//
//	x = d * (0.5 + scale) / 2 * grid, signed
func iq3XXS(dst []float32, b []byte) {
	d, q := half(b), b[2:66]
	for i := range 32 {
		a := le.Uint32(b[66+4*(i/4):])
		scale, signs := d*(0.5+float32(a>>28))*0.5, signs8(a>>(7*(i%4)))
		signed(dst[8*i:], scale, gridIQ3XXS[4*int(q[2*i]):][:4], signs)
		signed(dst[8*i+4:], scale, gridIQ3XXS[4*int(q[2*i+1]):][:4], signs>>4)
	}
}

// gridIQ3XXS has 256 rows of 4 values.
var gridIQ3XXS = grid(4, []uint8{4, 12, 20, 28, 36, 44, 52, 62}, ""+
	"AAICBQIEAQIHCRkCBAIFAgcEAwIHCwwIAgIFBwIHAgQKBg4EBgECCyMTFAULDAIEBhMQMxcUBAIVDhACBQIHAgUCAgsB"+
	"GAIHBwIvAgUCBwciBgIOCQ0QCwQjKAQSEwxNDiACBwIFAgQDCR8CAgMCBwcbBAEIAgcGAQINAQ0UBwQsBCEOGBQKG0UC"+
	"CxccBwIHAhUNBQYCDgkLAhsCBQ0VEA8SPQ8TBgYMGx8SFSgVFAsOAgwETRQPARAGER4fJQshDhVNAwIOMhcXCAYQFx8O"+
	"IAgpHQsEIwgXTywOMhACDh0gHiUkBkYhJTEoDjICAgESECwKKhsFFg0OFSEQHwISRA")
