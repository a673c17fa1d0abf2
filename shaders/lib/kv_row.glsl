// One slot as 512 bf16 values, for the kernels that unpack a cache. An invocation gets 8
// neighbouring values as the four words in which they lie in memory. Include kv_page.glsl
// first, declare a pool named "pool" and a constant RECORD (lib/kv_record.glsl). Of RECORD_V4:
//
//   value d < 448:  e4m3(code[d]) * 2^(scale[d/64] - 127), exact in bf16
//   value d >= 448: the stored bf16 bits
#ifndef LIB_KV_ROW_GLSL
#define LIB_KV_ROW_GLSL
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/ue8m0.glsl"
#include "lib/kv_record.glsl"

const uint KV_ROW_LANES = 64u; // invocations that share a slot

// kv_row8: values 8*lane .. 8*lane+7 of slot t of a page.
uvec4 kv_row8(uint page, uint t, uint page_slots, uint lane) {
    if (RECORD != RECORD_V4) {
        const uint at = record_row_byte(RECORD, t), scales_at = record_scale_byte(RECORD, page_slots, t);
        const uint k = lane * 8u / record_block(RECORD);
        const uint scale_byte = (pool_word(page, scales_at + (k & ~3u)) >> (8u * (k & 3u))) & 0xFFu;
        if (record_nibbles(RECORD)) return fp4_bf16x8(pool_word(page, at + lane * 4u), scale_byte);
        const uvec2 w = pool_word2(page, at + lane * 8u);
        const vec4 c = e4m3_decode4(w.x) * ue8m0_scale(scale_byte), d = e4m3_decode4(w.y) * ue8m0_scale(scale_byte);
        return uvec4(bf16_pack2_exact(c.x, c.y), bf16_pack2_exact(c.z, c.w), bf16_pack2_exact(d.x, d.y), bf16_pack2_exact(d.z, d.w));
    }
    uint row = kv_row_byte(t);
    if (lane >= KV_NOPE / 8u) {
        uint rope = row + KV_ROPE_BYTE + (lane - KV_NOPE / 8u) * 16u;
        return uvec4(pool_word2(page, rope), pool_word2(page, rope + 8u));
    }
    uvec2 codes = pool_word2(page, row + lane * 8u);
    uvec2 scales = pool_word2(page, kv_scale_byte(page_slots, t));
    float scale = ue8m0_scale(kv_scale_of(scales, lane / 8u));
    vec4 a = e4m3_decode4(codes.x) * scale;
    vec4 b = e4m3_decode4(codes.y) * scale;
    return uvec4(bf16_pack2_exact(a.x, a.y), bf16_pack2_exact(a.z, a.w),
                 bf16_pack2_exact(b.x, b.y), bf16_pack2_exact(b.z, b.w));
}

#endif
