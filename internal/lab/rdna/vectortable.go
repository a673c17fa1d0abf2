package rdna

import "math"

// vectorOps are the instructions that compute every lane on its own, by their names without the
// encoding.
var vectorOps = map[string]vectorOp{
	"v_mov_b32":        int1(func(a uint32) uint32 { return a }),
	"v_mov_b16":        {1, fWord, fWord, each1(func(a uint32) uint32 { return a })},
	"v_not_b32":        int1(func(a uint32) uint32 { return ^a }),
	"v_cvt_f32_u32":    {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(a)) })},
	"v_cvt_f32_i32":    {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(int32(a))) })},
	"v_cvt_f32_ubyte0": {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(a & 255)) })},
	"v_cvt_f32_ubyte1": {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(a >> 8 & 255)) })},
	"v_cvt_f32_ubyte2": {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(a >> 16 & 255)) })},
	"v_cvt_f32_ubyte3": {1, fInt, fFloat, each1(func(a uint32) uint32 { return asBits(float32(a >> 24)) })},
	"v_cvt_u32_f32":    {1, fFloat, fInt, each1(toUnsigned)},
	"v_cvt_i32_f32":    {1, fFloat, fInt, each1(toSigned)},
	"v_cvt_u32_u16":    {1, fWord, fInt, each1(func(a uint32) uint32 { return a })},
	"v_cvt_f16_f32":    {1, fFloat, fHalf, each1(func(a uint32) uint32 { return toHalf(float64(asFloat(a))) })},
	"v_cvt_f32_f16":    {1, fHalf, fFloat, each1(func(a uint32) uint32 { return asBits(fromHalf(a)) })},

	"v_exp_f32":   float1(func(a float32) float32 { return float32(math.Exp2(float64(a))) }),
	"v_log_f32":   float1(func(a float32) float32 { return float32(math.Log2(float64(a))) }),
	"v_rcp_f32":   float1(func(a float32) float32 { return float32(1 / float64(a)) }),
	"v_rsq_f32":   float1(func(a float32) float32 { return float32(1 / math.Sqrt(float64(a))) }),
	"v_sqrt_f32":  float1(func(a float32) float32 { return float32(math.Sqrt(float64(a))) }),
	"v_rndne_f32": float1(func(a float32) float32 { return float32(math.RoundToEven(float64(a))) }),
	"v_ceil_f32":  float1(func(a float32) float32 { return float32(math.Ceil(float64(a))) }),
	"v_floor_f32": float1(func(a float32) float32 { return float32(math.Floor(float64(a))) }),
	"v_trunc_f32": float1(func(a float32) float32 { return float32(math.Trunc(float64(a))) }),
	"v_fract_f32": float1(func(a float32) float32 { return float32(float64(a) - math.Floor(float64(a))) }),

	"v_add_f32":    {2, fFloat, fFloat, addLanes},
	"v_sub_f32":    float2(func(a, b float32) float32 { return a - b }),
	"v_subrev_f32": float2(func(a, b float32) float32 { return b - a }),
	"v_mul_f32":    {2, fFloat, fFloat, mulLanes},
	"v_max_f32":    pick2(larger),
	"v_min_f32":    pick2(smaller),
	"v_ldexp_f32": {2, fFloat, fFloat, each2(func(a, b uint32) uint32 {
		return flush(asBits(float32(math.Ldexp(float64(asFloat(flush(a))), int(int32(b))))))
	})},
	"v_fma_f32":    {3, fFloat, fFloat, fusedLanes},
	"v_fmac_f32":   {3, fFloat, fFloat, fusedLanes},
	"v_fmaak_f32":  {3, fFloat, fFloat, fusedLanes},
	"v_fmamk_f32":  {3, fFloat, fFloat, fusedLanes},
	"v_max3_f32":   pick3(func(a, b, c uint32) uint32 { return larger(larger(a, b), c) }),
	"v_min3_f32":   pick3(func(a, b, c uint32) uint32 { return smaller(smaller(a, b), c) }),
	"v_maxmin_f32": pick3(func(a, b, c uint32) uint32 { return smaller(larger(a, b), c) }),
	"v_minmax_f32": pick3(func(a, b, c uint32) uint32 { return larger(smaller(a, b), c) }),
	"v_med3_f32":   pick3(middle),

	"v_add_nc_u32":    {2, fInt, fInt, addIntLanes},
	"v_sub_nc_u32":    int2(func(a, b uint32) uint32 { return a - b }),
	"v_subrev_nc_u32": int2(func(a, b uint32) uint32 { return b - a }),
	"v_and_b32":       {2, fInt, fInt, andLanes},
	"v_or_b32":        int2(func(a, b uint32) uint32 { return a | b }),
	"v_xor_b32":       int2(func(a, b uint32) uint32 { return a ^ b }),
	"v_xnor_b32":      int2(func(a, b uint32) uint32 { return ^(a ^ b) }),
	"v_lshlrev_b32":   {2, fInt, fInt, shiftLeftLanes},
	"v_lshrrev_b32":   {2, fInt, fInt, shiftRightLanes},
	"v_ashrrev_i32":   int2(func(a, b uint32) uint32 { return uint32(int32(b) >> (a & 31)) }),
	"v_max_u32":       int2(func(a, b uint32) uint32 { return max(a, b) }),
	"v_min_u32":       int2(func(a, b uint32) uint32 { return min(a, b) }),
	"v_max_i32":       signed2(func(a, b int32) int32 { return max(a, b) }),
	"v_min_i32":       signed2(func(a, b int32) int32 { return min(a, b) }),
	"v_mul_lo_u32":    int2(func(a, b uint32) uint32 { return a * b }),
	"v_mul_hi_u32":    int2(func(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }),
	"v_mul_u32_u24":   int2(func(a, b uint32) uint32 { return a & 0xffffff * (b & 0xffffff) }),
	"v_bcnt_u32_b32":  int2(func(a, b uint32) uint32 { return countOnes(a) + b }),
	"v_bfm_b32":       int2(func(a, b uint32) uint32 { return (1<<(a&31) - 1) << (b & 31) }),
	"v_pack_b32_f16":  {2, fHalf, fInt, each2(func(a, b uint32) uint32 { return a | b<<16 })},

	"v_max3_u32":      int3(func(a, b, c uint32) uint32 { return max(a, b, c) }),
	"v_min3_u32":      int3(func(a, b, c uint32) uint32 { return min(a, b, c) }),
	"v_med3_u32":      int3(func(a, b, c uint32) uint32 { return max(min(a, b), min(max(a, b), c)) }),
	"v_maxmin_u32":    int3(func(a, b, c uint32) uint32 { return min(max(a, b), c) }),
	"v_minmax_u32":    int3(func(a, b, c uint32) uint32 { return max(min(a, b), c) }),
	"v_max3_i32":      signed3(func(a, b, c int32) int32 { return max(a, b, c) }),
	"v_min3_i32":      signed3(func(a, b, c int32) int32 { return min(a, b, c) }),
	"v_med3_i32":      signed3(func(a, b, c int32) int32 { return max(min(a, b), min(max(a, b), c)) }),
	"v_maxmin_i32":    signed3(func(a, b, c int32) int32 { return min(max(a, b), c) }),
	"v_minmax_i32":    signed3(func(a, b, c int32) int32 { return max(min(a, b), c) }),
	"v_add3_u32":      int3(func(a, b, c uint32) uint32 { return a + b + c }),
	"v_or3_b32":       int3(func(a, b, c uint32) uint32 { return a | b | c }),
	"v_xor3_b32":      int3(func(a, b, c uint32) uint32 { return a ^ b ^ c }),
	"v_xad_u32":       int3(func(a, b, c uint32) uint32 { return (a ^ b) + c }),
	"v_lshl_add_u32":  int3(func(a, b, c uint32) uint32 { return a<<(b&31) + c }),
	"v_add_lshl_u32":  int3(func(a, b, c uint32) uint32 { return (a + b) << (c & 31) }),
	"v_lshl_or_b32":   int3(func(a, b, c uint32) uint32 { return a<<(b&31) | c }),
	"v_and_or_b32":    int3(func(a, b, c uint32) uint32 { return a&b | c }),
	"v_bfe_u32":       int3(func(a, b, c uint32) uint32 { return a >> (b & 31) & (1<<(c&31) - 1) }),
	"v_bfe_i32":       int3(signedField),
	"v_bfi_b32":       int3(func(a, b, c uint32) uint32 { return a&b | ^a&c }),
	"v_alignbit_b32":  int3(func(a, b, c uint32) uint32 { return uint32(wide(b, a) >> (c & 31)) }),
	"v_alignbyte_b32": int3(func(a, b, c uint32) uint32 { return uint32(wide(b, a) >> (8 * (c & 3))) }),
	"v_mad_u32_u24":   int3(func(a, b, c uint32) uint32 { return a&0xffffff*(b&0xffffff) + c }),
	"v_perm_b32":      int3(permute),

	"v_and_b16":     word2(func(a, b uint32) uint32 { return a & b }),
	"v_or_b16":      word2(func(a, b uint32) uint32 { return a | b }),
	"v_xor_b16":     word2(func(a, b uint32) uint32 { return a ^ b }),
	"v_lshlrev_b16": word2(func(a, b uint32) uint32 { return b << (a & 15) }),
	"v_lshrrev_b16": word2(func(a, b uint32) uint32 { return b >> (a & 15) }),

	"v_add_f16":    half2(fHalf, func(a, b float64) float64 { return a + b }),
	"v_sub_f16":    half2(fHalf, func(a, b float64) float64 { return a - b }),
	"v_mul_f16":    half2(fHalf, func(a, b float64) float64 { return a * b }),
	"v_max_f16":    {2, fHalf, fHalf, each2(largerHalf)},
	"v_min_f16":    {2, fHalf, fHalf, each2(smallerHalf)},
	"v_fma_f16":    {3, fHalf, fHalf, each3(fusedHalf)},
	"v_pk_add_f16": half2(fPair, func(a, b float64) float64 { return a + b }),
	"v_pk_mul_f16": half2(fPair, func(a, b float64) float64 { return a * b }),
	"v_pk_max_f16": {2, fPair, fPair, each2(largerHalf)},
	"v_pk_min_f16": {2, fPair, fPair, each2(smallerHalf)},
	"v_pk_fma_f16": {3, fPair, fPair, each3(fusedHalf)},

	"v_dot2_f32_f16":  {3, fInt, fFloat, each3(dotHalves)},
	"v_dot2c_f32_f16": {3, fInt, fFloat, each3(dotHalves)},
}

// Names that differ between generations.
func init() {
	for name, same := range map[string]string{
		"v_max_num_f32": "v_max_f32", "v_min_num_f32": "v_min_f32", "v_max3_num_f32": "v_max3_f32", "v_min3_num_f32": "v_min3_f32",
		"v_med3_num_f32": "v_med3_f32", "v_maxmin_num_f32": "v_maxmin_f32", "v_minmax_num_f32": "v_minmax_f32",
		"v_max_num_f16": "v_max_f16", "v_min_num_f16": "v_min_f16", "v_pk_max_num_f16": "v_pk_max_f16", "v_pk_min_num_f16": "v_pk_min_f16",
		"v_s_rcp_f32": "v_rcp_f32", "v_s_exp_f32": "v_exp_f32", "v_s_log_f32": "v_log_f32", "v_s_rsq_f32": "v_rsq_f32",
		"v_s_sqrt_f32": "v_sqrt_f32", "v_dot2acc_f32_f16": "v_dot2c_f32_f16",
	} {
		vectorOps[name] = vectorOps[same]
	}
}

func toUnsigned(a uint32) uint32 { return uint32(toInteger(asFloat(a), 0, math.MaxUint32)) }

func toSigned(a uint32) uint32 {
	return uint32(int32(toInteger(asFloat(a), math.MinInt32, math.MaxInt32)))
}

func middle(a, b, c uint32) uint32 {
	if isNaN(a) || isNaN(b) || isNaN(c) {
		return smaller(smaller(a, b), c)
	}
	return larger(smaller(a, b), smaller(larger(a, b), c))
}

func signedField(a, b, c uint32) uint32 {
	n := c & 31
	if n == 0 {
		return 0
	}
	return uint32(int32(a>>(b&31)<<(32-n)) >> (32 - n))
}

// permute picks four bytes of eight, or signs, or constants.
func permute(a, b, c uint32) (r uint32) {
	all := wide(b, a)
	for i := range 4 {
		x := uint32(0)
		switch s := c >> (8 * i) & 255; {
		case s < 8:
			x = uint32(all>>(8*s)) & 255
		case s < 12:
			x = uint32(all>>(16*(s-8)+15)&1) * 255
		case s > 12:
			x = 255
		}
		r |= x << (8 * i)
	}
	return r
}

func largerHalf(a, b uint32) uint32 {
	return toHalf(float64(asFloat(larger(asBits(fromHalf(a)), asBits(fromHalf(b))))))
}

func smallerHalf(a, b uint32) uint32 {
	return toHalf(float64(asFloat(smaller(asBits(fromHalf(a)), asBits(fromHalf(b))))))
}

func fusedHalf(a, b, c uint32) uint32 {
	return toHalf(float64(fromHalf(a))*float64(fromHalf(b)) + float64(fromHalf(c)))
}

// dotHalves adds two products of halves to a float. The order is not specified: here there is one
// rounding.
func dotHalves(a, b, c uint32) uint32 {
	x := float64(fromHalf(a&0xffff)) * float64(fromHalf(b&0xffff))
	y := float64(fromHalf(a>>16)) * float64(fromHalf(b>>16))
	return flush(asBits(float32(x + y + float64(asFloat(flush(c))))))
}

// saturated are sums that stay within their range where clamp says so.
var saturated = map[string]func(d, a, b, c []uint32){
	"v_add_nc_u32": each2(func(a, b uint32) uint32 { return uint32(min(uint64(a)+uint64(b), math.MaxUint32)) }),
	"v_sub_nc_u32": each2(func(a, b uint32) uint32 { return max(a, b) - b }),
}

// The instructions that run most have loops of their own.

func addLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = flush(asBits(asFloat(flush(a[i])) + asFloat(flush(b[i]))))
	}
}

func mulLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = flush(asBits(asFloat(flush(a[i])) * asFloat(flush(b[i]))))
	}
}

func fusedLanes(d, a, b, c []uint32) {
	a, b, c = a[:len(d)], b[:len(d)], c[:len(d)]
	for i := range d {
		d[i] = flush(asBits(fused(asFloat(flush(a[i])), asFloat(flush(b[i])), asFloat(flush(c[i])))))
	}
}

func addIntLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func andLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] & b[i]
	}
}

func shiftLeftLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = b[i] << (a[i] & 31)
	}
}

func shiftRightLanes(d, a, b, _ []uint32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = b[i] >> (a[i] & 31)
	}
}
