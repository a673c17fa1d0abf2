// How a slot stores its 512 numbers: a constant RECORD of the kernel, which is never told from the
// width of a slot. A page has the data of all its slots first and then their scales.
//
// A record has a file kv_record_NAME.glsl with its layout. It is named below by its number, that of
// cache.Record, and in RECORD_OF; then nothing compiles unless its file has
//
//   RECORD_NAME_ROW        bytes of a slot's data
//   RECORD_NAME_SCALES     bytes of its scales
//   RECORD_NAME_BLOCK      numbers that share a scale
//   RECORD_NAME_NIBBLES    true: E2M1 codes with E4M3 scales; false: E4M3 codes with UE8M0 scales
//
// code * scale is exact in bf16. Include kv_page.glsl first.
#ifndef LIB_KV_RECORD_GLSL
#define LIB_KV_RECORD_GLSL
#include "bf16.glsl"
#include "quantise.glsl"

#include "kv_record_v4.glsl"
#include "kv_record_fp8.glsl"
#include "kv_record_fp4.glsl"

const uint RECORD_V4 = 0u, RECORD_FP8 = 1u, RECORD_FP4 = 2u;

// RECORD_OF: what the file of a record calls NAME.
#define RECORD_OF(record, NAME) \
    ((record) == RECORD_V4 ? RECORD_V4_##NAME : (record) == RECORD_FP8 ? RECORD_FP8_##NAME : RECORD_FP4_##NAME)

uint record_row_bytes(uint record) { return RECORD_OF(record, ROW); }
uint record_scale_bytes(uint record) { return RECORD_OF(record, SCALES); }
uint record_block(uint record) { return RECORD_OF(record, BLOCK); }
bool record_nibbles(uint record) { return RECORD_OF(record, NIBBLES); }

// record_row_byte, record_scale_byte: where slot t of a page keeps its data and its scales.
uint record_row_byte(uint record, uint t) { return t * record_row_bytes(record); }
uint record_scale_byte(uint record, uint page_slots, uint t) {
    return page_slots * record_row_bytes(record) + t * record_scale_bytes(record);
}

// fp4_scale: the E4M3 byte of max(amax, 6*2^-9)/6, to nearest; amax >= 0.
uint fp4_scale(float amax) {
    precise float s = uintBitsToFloat(max(floatBitsToUint(amax), 0x3C400000u)) * UE8M0_INV_E2M1;
    return e4m3_encode(s);
}

// fp4_code: bf16 bits in the upper half of a word, over a scale s, to an E2M1 nibble. It counts the
// midpoints of E2M1 below the quotient and divides nothing; midpoint times s is exact. Magnitudes
// compare as integers. A NaN becomes +6.
uint fp4_code(uint bits, float s) {
    const uint a = bits & 0x7FFFFFFFu;
    uint code = 0u;
    code += a > floatBitsToUint(0.25 * s) ? 1u : 0u;
    code += a >= floatBitsToUint(0.75 * s) ? 1u : 0u;
    code += a > floatBitsToUint(1.25 * s) ? 1u : 0u;
    code += a >= floatBitsToUint(1.75 * s) ? 1u : 0u;
    code += a > floatBitsToUint(2.5 * s) ? 1u : 0u;
    code += a >= floatBitsToUint(3.5 * s) ? 1u : 0u;
    code += a > floatBitsToUint(5.0 * s) ? 1u : 0u;
    return a > 0x7F800000u ? 7u : code | ((bits >> 28) & 8u);
}

// fp4_codes4: four bf16 in two words to four nibbles in 16 bits.
uint fp4_codes4(uvec2 w, float s) {
    return fp4_code(w.x << 16, s) | (fp4_code(w.x & 0xFFFF0000u, s) << 4)
         | (fp4_code(w.y << 16, s) << 8) | (fp4_code(w.y & 0xFFFF0000u, s) << 12);
}

// record_scale: the scale byte of a block whose largest magnitude is amax.
uint record_scale(uint record, float amax) {
    return record_nibbles(record) ? fp4_scale(amax) : ue8m0_encode(amax, UE8M0_EPS_KV, UE8M0_INV_E4M3);
}

// fp4_bf16x8: eight nibbles, times the scale of an E4M3 byte, as bf16.
uvec4 fp4_bf16x8(uint codes, uint scale_byte) {
    const float s = e4m3_decode(scale_byte);
    uvec4 w;
    for (uint i = 0u; i < 4u; i++) w[i] = bf16_pack2_exact(e2m1_decode(codes >> (8u * i)) * s, e2m1_decode(codes >> (8u * i + 4u)) * s);
    return w;
}

#endif
