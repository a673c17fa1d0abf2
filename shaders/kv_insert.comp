// Quantise and insert: for token i with slot s = slots[i] >= 0, page s/PAGE, t = s%PAGE,
//   block b = 0..6:  sb = byte of 2^ceil(log2(max(amax, 1e-4)/448)), amax over k[i, 64b..64b+63]
//                    code[d] = e4m3(k[i, d] * 2^(127-sb)), scale[b] = sb;  scale[7] = 0
//   d = 448..511:    the bf16 bits of k[i, d] unchanged
// Bindings:  0 k [N, 512] bf16   1 slots [T] i64, T <= N
//            2 pool [pages, stride] u8 (not with ADDRESSED)
// Workgroup: 2 tokens, 64 invocations each; an invocation has 8 neighbouring values, 8 of them a
//   block.
// Constants: 0 PAGE, slots per page, 1 RECORD; the formula is that of RECORD_V4, lib/kv_record.glsl
//   has the others.  Shared memory: 568 bytes, of other records 768.
// Features:  none; with ADDRESSED bufferDeviceAddress, shaderInt64.
// A slot beyond the pool is skipped like -1.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"
#include "lib/quantise.glsl"
#include "lib/kv_record.glsl"

const uint TOKENS = 2u;  // of a workgroup
const uint LANES = 64u;  // of a token
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint RECORD = 0u; // lib/kv_record.glsl

layout(std430, set = 0, binding = 0) readonly buffer K { uvec4 k[]; };
layout(std430, set = 0, binding = 1) readonly buffer Slots { uvec2 slots[]; };

layout(push_constant) uniform Push {
    ADDRESS pool_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint tokens;      // T
} pc;
KV_POOL_RW(pool, 2)

shared uint amax_of[TOKENS * LANES];      // bf16 bits without sign: they order like the numbers
const uint SCALES = RECORD == RECORD_V4 ? KV_BLOCKS : RECORD_OF(RECORD, SCALES); // of a slot
shared uint scale_of[TOKENS * SCALES]; // scale bytes

// store_record: a lane's 8 numbers of a record other than V4's; all lanes of a workgroup call it.
void store_record(bool live, uint page, uint t, uint local_token, uint lane, uvec4 w) {
    const uint sharers = record_block(RECORD) / 8u; // lanes of a block
    const uint first = local_token * LANES + lane / sharers * sharers;
    uint amax = 0u;
    for (uint j = 0u; j < sharers; j++) amax = max(amax, amax_of[first + j]);
    const uint sb = record_scale(RECORD, uintBitsToFloat(amax << 16));
    if (lane % sharers == 0u) scale_of[local_token * SCALES + lane / sharers] = sb;
    barrier();
    if (!live) return;
    const uint row = record_row_byte(RECORD, t);
    if (record_nibbles(RECORD)) {
        const float s = e4m3_decode(sb);
        pool_store_word(page, row + lane * 4u, fp4_codes4(w.xy, s) | (fp4_codes4(w.zw, s) << 16));
    } else {
        const float inverse = ue8m0_inverse(sb);
        pool_store_word2(page, row + lane * 8u, uvec2(quantise4(w.xy, inverse), quantise4(w.zw, inverse)));
    }
    if (lane < SCALES / 4u) {
        const uint s = local_token * SCALES + 4u * lane;
        pool_store_word(page, record_scale_byte(RECORD, PAGE, t) + 4u * lane,
            scale_of[s] | (scale_of[s + 1u] << 8) | (scale_of[s + 2u] << 16) | (scale_of[s + 3u] << 24));
    }
}

void main() {
    uint local_token = gl_LocalInvocationID.x / LANES;
    uint lane = gl_LocalInvocationID.x % LANES;
    uint block_of = lane / 8u; // 7 is the rope part
    uint i = gl_WorkGroupID.x * TOKENS + local_token;

    // No early return: both barriers are for every invocation.
    uvec2 slot = i < pc.tokens ? slots[i] : uvec2(0xFFFFFFFFu);
    uint page = slot.x / PAGE;
    uint t = slot.x % PAGE;
    bool live = slot.y == 0u && page < pc.pool_pages; // a negative slot has a high word
    uvec4 w = live ? k[i * LANES + lane] : uvec4(0u);

    amax_of[gl_LocalInvocationID.x] = max(quantise_amax(w.xy), quantise_amax(w.zw));
    barrier();
    if (RECORD != RECORD_V4) {
        store_record(live, page, t, local_token, lane, w);
        return;
    }
    uint first = local_token * LANES + block_of * 8u;
    uint amax = 0u;
    for (uint j = 0u; j < 8u; j++) amax = max(amax, amax_of[first + j]);
    uint sb = ue8m0_encode(uintBitsToFloat(amax << 16), UE8M0_EPS_KV, UE8M0_INV_E4M3);
    if (lane % 8u == 0u && block_of < KV_BLOCKS) scale_of[local_token * KV_BLOCKS + block_of] = sb;
    barrier();
    if (!live) return;

    uint row = kv_row_byte(t);
    if (block_of < KV_BLOCKS) {
        float inverse = ue8m0_inverse(sb);
        pool_store_word2(page, row + lane * 8u, uvec2(quantise4(w.xy, inverse), quantise4(w.zw, inverse)));
        return;
    }
    uint rope = row + KV_ROPE_BYTE + (lane % 8u) * 16u;
    pool_store_word2(page, rope, w.xy);
    pool_store_word2(page, rope + 8u, w.zw);
    if (lane == LANES - 1u) {
        uint s = local_token * KV_BLOCKS;
        pool_store_word2(page, kv_scale_byte(PAGE, t), uvec2(
            scale_of[s] | (scale_of[s + 1u] << 8) | (scale_of[s + 2u] << 16) | (scale_of[s + 3u] << 24),
            scale_of[s + 4u] | (scale_of[s + 5u] << 8) | (scale_of[s + 6u] << 16)));
    }
}
