package gguf

// IQ2_XS: 256 values in 74 bytes: f16 d; u16 q[32]; u8 s[8]. Each q stands for 8 values: a row of
// the grid in nine bits, below seven bits of signs (see signs8). Each nibble of s is the scale of
// 16 values.
//
//	x = d * (0.5 + scale) / 4 * grid, signed
func iq2XS(dst []float32, b []byte) {
	d, s := half(b), b[66:74]
	for i := range 32 {
		q := uint32(le.Uint16(b[2+2*i:]))
		scale := d * (0.5 + float32(s[i/4]>>(i%4/2*4)&15)) * 0.25
		signed(dst[8*i:], scale, gridIQ2XS[8*(q&511):][:8], signs8(q>>9))
	}
}

// gridIQ2XS has 512 rows of 8 values.
var gridIQ2XS = grid(8, gridIQ2, ""+
	"AAICAgICAgICAgICAgQCAgICAgICBAIGAgICBAIEAgoCAgICAgICAgICBgICAgQCBgYEAgYSAgICBAIGCgIGBA4IFAIC"+
	"AgICAgIEAgYCAgIEAgIECgIGEgICAgQCBgoCBgoIHAIGDgQCHBgCAgICAgIGBAYCBgYMEggCAgYSHAYUEgYsBAoCAgIC"+
	"AgICBAIGAgICBAIGCAICBhICAgIEAgYKAgYSDAIOAgIEEhIkAgICBAIGCgIEAgwGHAIGEjYMFjACBgIQDBQWBC5EKgIC"+
	"AgICAgIGCgIGEhIKAgYSBhAgFCIYBAIGEAI2HAogDBA8BAYCChYUDjoMGAwmBAIUAgICAgICAgQCBgICAgICAgYEBgIG"+
	"EgICAgQCBgoCBhIEEAgCBgIOAjYCAgIEAgQCCgIGEgwQAgYMBiwKCBYGLgIGEgQICCIKFAYQIE4CAgIEAgYGBAIGEhwC"+
	"BgQOAjQeMgICBgoIEgoSCAYwBiggFggMEAgiHAoCbhgCBhIMCAwUAmYOHhAOTBIELFg0MkAiCCICAgIEAgYIAgIGEgIW"+
	"AgICAgQSCgYmEiQCEAYEAgYCAg4SEBQeLhQmHAYQFgoCFghgIgYICgQCBhIOEBgUHEoUFAQaBgZAJgIsWigmPCAkAgQC"+
	"CgguLgYiBAIEFBwSJCiQARQUCgIEMAYGNgIuAiYQ")
