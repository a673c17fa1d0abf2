// Indexer logits over paged keys: for entry n, pc.first <= n < pc.first+width, n < lens[t], of token t's request,
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h], the key scale s_k only for FP8: MXFP4 rows
// carry a scale for each 32 numbers. -inf where the entry's page is not in the table or not in the pool. Other columns: not written.
// bindings: lib/index_logits.glsl; the last two (dst, keys) only without KV_DA.
// One workgroup of 128: 128 entries of one token, one invocation each; all heads, HG at a time, in order.
// Constants: 0 page (keys), 1 format (1 FP8, 2 MXFP4). Shared memory: 8192 B.
// Features: none; KV_DA: bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/index_logits.glsl"
#include "lib/e4m3.glsl"
#include "lib/e2m1.glsl"

layout(local_size_x = 128) in;

KV_POOL(keys, 7)

const uint HG = 16u;   // heads at a time
const uint PIECES = 8u; // a row in pieces of 16 numbers
const uint PIECE_WORDS = FORMAT == INDEX_FP8 ? 2u : 1u; // of 8 bytes

shared vec4 q_s[HG * 32u]; // [HG, 128]

// numbers: the 16 numbers of piece i of a row, from its one or two 8-byte words and, for MXFP4, its scales.
void numbers(uint i, uvec2 a, uvec2 b, uint scales, out vec4 v[4]) {
    if (FORMAT == INDEX_FP8) {
        v = vec4[4](e4m3_decode4(a.x), e4m3_decode4(a.y), e4m3_decode4(b.x), e4m3_decode4(b.y));
    } else {
        const float scale = ue8m0_scale(logit_block_scale(scales, i / 2u));
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            const uint w = a[j / 2u] >> (j % 2u * 16u);
            v[j] = vec4(e2m1_decode(w), e2m1_decode(w >> 4), e2m1_decode(w >> 8), e2m1_decode(w >> 12)) * scale;
        }
    }
}

void load_heads(uint t, uint head0) {
    const uint lid = gl_LocalInvocationIndex;
    const uint h = lid / PIECES, i = lid % PIECES, head = t * pc.heads + min(head0 + h, pc.heads - 1u);
    const uint at = head * PIECES * PIECE_WORDS + i * PIECE_WORDS;
    vec4 v[4];
    numbers(i, q_at(at), q_at(at + PIECE_WORDS - 1u), FORMAT == INDEX_FP8 ? 0u : q_scale_at(head), v);
    [[unroll]] for (uint j = 0u; j < 4u; j++) q_s[h * 32u + i * 4u + j] = v[j];
}

void main() {
    const uint t = gl_WorkGroupID.y, n0 = pc.first + gl_WorkGroupID.x * 128u, n = n0 + gl_LocalInvocationIndex;
    const uint end = logit_end(t);
    if (n0 >= end) return;
    uint page = logit_page(token_to_req_at(t), n);
    const bool there = page < pc.keys_pages;
    if (!there) page = 0u; // read, and not used
    const uint slot = n % PAGE, row = index_row_byte(FORMAT, slot);
    const uint scale = keys_word(page, index_scale_byte(FORMAT, PAGE, slot));

    float sum = 0.0;
    for (uint head0 = 0u; head0 < pc.heads; head0 += HG) {
        barrier();
        load_heads(t, head0);
        barrier();
        float s[HG];
        [[unroll]] for (uint h = 0u; h < HG; h++) s[h] = 0.0;
        for (uint i = 0u; i < PIECES; i++) {
            const uint at = row + i * PIECE_WORDS * 8u;
            vec4 k[4];
            numbers(i, keys_word2(page, at), keys_word2(page, at + (PIECE_WORDS - 1u) * 8u), scale, k);
            [[unroll]] for (uint h = 0u; h < HG; h++) {
                [[unroll]] for (uint j = 0u; j < 4u; j++) s[h] += dot(q_s[h * 32u + i * 4u + j], k[j]);
            }
        }
        [[unroll]] for (uint h = 0u; h < HG; h++) {
            if (head0 + h < pc.heads) sum += max(s[h], 0.0) * weights_at(t * pc.heads + head0 + h);
        }
    }
    if (FORMAT == INDEX_FP8) sum *= uintBitsToFloat(scale);
    if (n < end) logit_store(t, n - pc.first, there ? sum : LOGIT_NONE);
}
