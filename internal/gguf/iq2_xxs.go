package gguf

// IQ2_XXS: 256 values in 66 bytes: f16 d; for every 32 values u8 q[4] and u32 a. Each q is a row of
// the grid, of 8 values; a has seven bits of signs for each (see signs8) and a scale above them.
//
//	x = d * (0.5 + scale) / 4 * grid, signed
func iq2XXS(dst []float32, b []byte) {
	d := half(b)
	for i := range 8 {
		q, a := b[2+8*i:], le.Uint32(b[6+8*i:])
		scale := d * (0.5 + float32(a>>28)) * 0.25
		for g := range 4 {
			signed(dst[32*i+8*g:], scale, gridIQ2XXS[8*int(q[g]):][:8], signs8(a>>(7*g)))
		}
	}
}

// gridIQ2 are the values in the grids of two bits.
var gridIQ2 = []uint8{8, 25, 43}

// gridIQ2XXS has 256 rows of 8 values.
var gridIQ2XXS = grid(8, gridIQ2, ""+
	"AAICAgICAgYCBAICAgYGBAIGAgYMCAIGBA4eDAwCEiQaAgYKAgYCBAwKAgYMBgIEDA4UAgoYAhIeEgYEAgYMBAIGAhYY"+
	"GDgKRgIGCggSDAYEDgYMEggKMAoyBgwEDBQqICIORAIGEhwaBEQuLAIGFhAIAjIIMAJQAgYSDigcFGAYDDB+NAIGBgQC"+
	"BgYIBAoCBhISHAgEGAgYCAoeBgwkEBYKPFICBhIEMioECjggEgYEBgIkBhgaLkZQAhhKJioKBiA8PE4GEhgeKDgeJARW"+
	"Ai6GAdYBAgYUHBwMDEBIAgYEDhIkICIWFBImUlhKBgwGLhYoOjIUCli0ASySASIWHkpgiAIw")
