package gguf

// IQ3_S: 256 values in 110 bytes: f16 d; u8 q[64]; u8 h[8]; u8 sign[32]; u8 s[4]. Each q is a row
// of the grid, of 4 values, with a ninth bit in h; the signs of 8 values are the bits of a byte.
// Each nibble of s is the scale of 32 values.
//
//	x = d * (1 + 2 scale) * grid, signed
func iq3S(dst []float32, b []byte) {
	d, q, h, signs, s := half(b), b[2:66], b[66:74], b[74:106], b[106:110]
	for i := range 64 {
		row := int(q[i]) | int(h[i/8]>>(i%8)&1)<<8
		scale := d * float32(1+2*int(s[i/16]>>(i%16/8*4)&15))
		signed(dst[4*i:], scale, gridIQ3S[4*row:][:4], signs[i/2]>>(i%2*4))
	}
}

// gridIQ3S has 512 rows of 4 values.
var gridIQ3S = grid(4, []uint8{1, 3, 5, 7, 9, 11, 13, 15}, ""+
	"AAEBAwIBAQECAgIBBAYFAgMCAgIFAgcDAwEBAQIEAQQDAwQCBAcNBAUGAQQCAQMDAwQDBAYDAgICDQMIBgQDAgcCAwYE"+
	"Ag0CBAMLBAIDBgYDBg8KAgwCBAUGBAIPBQsDAg4RDwcCAgwCBAUNBBQBAQIEAQICAgECBwMCDgIDCQYBAgMCBAUHAwYH"+
	"Ag4GAgoDAgEEBgYDCgMKBwMDAQMGBgEEBREGCwIFAg0CBwQCBBUHAwYHAg8nBAMNAhsCBQIHDAQRBggBAgICAQICAgMC"+
	"BAECBwICAwINAQMCAwIGAwQDAwQDBgcYAwMKAgUHAgoECgMEAgMECQIFAgcGDgsGCQMHAwQZAwcFCQ0BCw0IAgUKHAQU"+
	"BA0CCwUaBwICAgMHAgIFAgMCCgYIAgIHBQINEAoEAgoGCgIMGQcEBQIEAQkCBAYOCAYFBAcRBgQNBwILBQoKDRMTIAIN"+
	"AgsjBAYGBAMDBwcQCgUCAgcGBQYGBBQCBQUECgUPAwYMBQIFAgcEIwISCwEZDAIKIRkRFBgFCwsGGQYEBg4EAwMMBgUC"+
	"AgUHCSAGCQoFBg0XBQEPDQUMBgYDDAoMJAwTAjcgAg43AgIMAhUQEAcdFhIGCwUGCAwFDzUODw4DGRQVGykCNQQDCQIM"+
	"AgwGEAcLDwIcAwQGAwcRGRgDDhYEBgUYKhAgFyc")
