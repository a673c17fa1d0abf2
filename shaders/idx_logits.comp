// Indexer logits over paged keys: for entry n of token t's request, first <= n < first+width and n
// < lens[t],
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
// With BLOCKS, S, column c of a token is entry side[t][c/S]*S + c%S, and lens counts columns.
// The key scale s_k is FP8's; MXFP4 rows have a scale for each 32 numbers instead. An entry whose
// page is not in the table, or not in the pool, gets -inf. Other columns are not written.
// Bindings:  those of lib/index_logits.glsl (dst and keys not with ADDRESSED).
// Workgroup: 128 entries of one token and all of its heads, HEADS at a time, by 128 invocations.
//   Each step decodes 16 numbers of entries and heads to shared memory; an invocation multiplies
//   HEADS/8 heads by 8 entries.
// Constants: 0 page (keys), 1 format (1 FP8, 2 MXFP4), 2 UNROLL, numbers of a step that are
//   multiplied without a loop, a power of two up to 16, 3 BLOCKS: entries of a candidate
//   block, or 0: columns are entries, 4 HEADS: 32 or 64.
// Shared memory: 12288 bytes with 64 heads, with DOT2 half of it.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with DOT2 shaderFloat16,
//   shaderMixedFloatDotProductFloat16AccFloat32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/index_logits.glsl"
#include "lib/dot2.glsl"
#ifdef DOT2
#include "lib/cm_element.glsl"
#include "lib/cm_index_codes.glsl"
#endif
#include "lib/half_loads.glsl"
#include "lib/lifted.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 2) const uint UNROLL = 4u;
layout(constant_id = 3) const uint BLOCKS = 0u;
layout(constant_id = 4) const uint HEADS = 64u;

KV_POOL(keys, 7)

const uint KEYS = 128u, STEP = 16u, FOURS = HEADS / 32u; // fours of heads of an invocation
const uint QP = HEADS / 4u, KP = KEYS / 4u, KL = KEYS / 8u;

const uint EACH = HALVES ? 2u : 1u;                    // numbers of a word: f16, or f32
const uint LINES = UNROLL < EACH ? 1u : UNROLL / EACH; // of words, multiplied without a loop

shared uvec4 q_s[STEP / EACH * QP]; // [STEP, HEADS], EACH numbers a word
shared uvec4 k_s[STEP / EACH * KP]; // [STEP, 128 entries]; at the end sums of eight heads, [8, 128]

// Eight numbers as they are stored.
struct Eight {
    uvec2 w;     // MXFP4: the first word only
    uint scales; // MXFP4: of the row
};

// decode: words of eight numbers from d on, of halves four. Which of them are a pair does not
// matter as long as queries and keys have the same ones. FP8's halves are moved to where none is
// subnormal; as f32 its numbers come 2^8 times too large.
// UNSCALE: what the sums lack. row_scale: of an MXFP4 row, what its numbers lack.
#ifdef DOT2
const float UNSCALE = FORMAT == INDEX_FP8 ? 1.0 : CM_UNSCALE;

void decode(Eight r, uint d, out uint v[8]) {
    uvec4 w;
    if (FORMAT == INDEX_FP8) {
        w = cm_fp8x8(r.w);
        [[unroll]] for (uint e = 0u; e < 4u; e++) w[e] = packFloat2x16(unpackFloat2x16(w[e]) * cm_scale(127u));
    } else w = cm_fp4x8(r.w.x, cm_fp4_scale(r.scales, d / INDEX_BLOCK));
    [[unroll]] for (uint e = 0u; e < 4u; e++) v[e] = w[e];
}

float row_scale(uint scales) { return cm_row_scale(scales); }

void multiply(inout vec4 acc, uint q, uvec4 k) {
    [[unroll]] for (uint i = 0u; i < 4u; i++) acc[i] = dot2(unpackFloat2x16(q), unpackFloat2x16(k[i]), acc[i]);
}
#else
const float UNSCALE = FORMAT == INDEX_FP8 ? LIFTED_E4M3 * LIFTED_E4M3 : 1.0;

void decode(Eight r, uint d, out uint v[8]) {
    vec4 a, b;
    if (FORMAT == INDEX_FP8) {
        a = lifted_e4m3x4(r.w.x);
        b = lifted_e4m3x4(r.w.y);
    } else {
        const float scale = ue8m0_scale(logit_block_scale(r.scales, d / INDEX_BLOCK));
        a = lifted_e2m1x4(r.w.x) * LIFTED_E2M1 * scale;
        b = lifted_e2m1x4(r.w.x >> 16) * LIFTED_E2M1 * scale;
    }
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        v[e] = floatBitsToUint(a[e]);
        v[4u + e] = floatBitsToUint(b[e]);
    }
}

float row_scale(uint scales) { return 1.0; }

void multiply(inout vec4 acc, uint q, uvec4 k) { acc += uintBitsToFloat(q) * uintBitsToFloat(k); }
#endif

// fetch_q, fetch_k: numbers d .. d+7 of a head, of an entry.
Eight fetch_q(uint t, uint h, uint d) {
    Eight r;
    const uint head = t * pc.heads + min(h, pc.heads - 1u);
    if (FORMAT == INDEX_FP8) {
        r.w = q_at(head * 16u + d / 8u);
        r.scales = 0u;
    } else {
        const uvec2 w = q_at(head * 8u + d / 16u);
        r.w = uvec2((d & 8u) == 0u ? w.x : w.y, 0u);
        r.scales = q_scale_at(head);
    }
    return r;
}

Eight fetch_k(uint page, uint row, uint scales, uint d) {
    Eight r;
    if (FORMAT == INDEX_FP8) {
        r.w = keys_word2(page, row + d);
        r.scales = 0u;
    } else {
        r.w = uvec2(keys_word(page, row + d / 2u), 0u);
        r.scales = scales;
    }
    return r;
}

const uint HALF = 4u / EACH; // of the words of eight numbers: from first to last they take Tiger Lake 3 % more clocks

void keep_q(uint at, uint line, uint v[8]) {
    [[unroll]] for (uint e = 0u; e < HALF; e++) {
        q_s[(at / EACH + e) * QP + line / 4u][line % 4u] = v[e];
        q_s[(at / EACH + HALF + e) * QP + line / 4u][line % 4u] = v[HALF + e];
    }
}

void keep_k(uint at, uint line, uint v[8]) {
    [[unroll]] for (uint e = 0u; e < HALF; e++) {
        k_s[(at / EACH + e) * KP + line / 4u][line % 4u] = v[e];
        k_s[(at / EACH + HALF + e) * KP + line / 4u][line % 4u] = v[HALF + e];
    }
}

uvec4 load_keys(uint at, uint lane) {
    if (HALVES) return HALF_LOAD(k_s, at, lane);
    return k_s[at];
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint t = gl_WorkGroupID.y, n0 = pc.first + gl_WorkGroupID.x * KEYS;
    const uint end = logit_end(t);
    if (n0 >= end) return;
    const uint n = n0 + tid;                         // the column that this invocation decodes, and stores the logit of;
    const uint head = tid % HEADS, eight = tid / HEADS * 8u % STEP; // it decodes eight numbers of a step of a head;
    const uint mine_h = tid / KL, mine_k = tid % KL; // which heads, and fours of entries in either half, it multiplies
    const uint entry = BLOCKS > 0u ? logit_entry(t, n, BLOCKS) : n;
    uint page = logit_page(token_to_req_at(t), entry);
    const bool there = page < pc.keys_pages;
    if (!there) page = 0u; // read, and not used
    const uint row = index_row_byte(FORMAT, entry % PAGE), scale = keys_word(page, index_scale_byte(FORMAT, PAGE, entry % PAGE));

    Eight q = fetch_q(t, head, eight), ka = fetch_k(page, row, scale, 0u), kb = fetch_k(page, row, scale, 8u);
    vec4 sum[2];
    sum[0] = vec4(0.0);
    sum[1] = vec4(0.0);
    [[dont_unroll]] for (uint h0 = 0u; h0 < pc.heads; h0 += HEADS) {
        vec4 acc[4u * FOURS][2];
        [[unroll]] for (uint i = 0u; i < 4u * FOURS; i++) {
            acc[i][0] = vec4(0.0);
            acc[i][1] = vec4(0.0);
        }
        [[dont_unroll]] for (uint d0 = 0u; d0 < INDEX_DIM; d0 += STEP) {
            uint v[8];
            barrier();
            if (tid < HEADS * STEP / 8u) { // with 32 heads the others would do the same
                decode(q, d0 + eight, v);
                keep_q(eight, head, v);
            }
            decode(ka, d0, v);
            keep_k(0u, tid, v);
            decode(kb, d0 + 8u, v);
            keep_k(8u, tid, v);
            barrier();
            const uint d = (d0 + STEP) % INDEX_DIM; // of the step that is on its way meanwhile
            q = fetch_q(t, (d == 0u ? h0 + HEADS : h0) + head, d + eight);
            ka = fetch_k(page, row, scale, d);
            kb = fetch_k(page, row, scale, d + 8u);
            [[dont_unroll]] for (uint s0 = 0u; s0 < STEP / EACH; s0 += LINES) {
                [[unroll]] for (uint s1 = 0u; s1 < LINES; s1++) {
                    const uint s = s0 + s1;
                    const uvec4 k0 = load_keys(s * KP + mine_k, mine_k), k1 = load_keys(s * KP + KL + mine_k, mine_k);
                    [[unroll]] for (uint f = 0u; f < FOURS; f++) {
                        const uvec4 qs = q_s[s * QP + mine_h * FOURS + f];
                        [[unroll]] for (uint i = 0u; i < 4u; i++) {
                            multiply(acc[4u * f + i][0], qs[i], k0);
                            multiply(acc[4u * f + i][1], qs[i], k1);
                        }
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < 4u * FOURS; i++) {
            const uint h = h0 + mine_h * 4u * FOURS + i;
            if (h < pc.heads) {
                float w = weights_at(t * pc.heads + h);
                if (FORMAT == INDEX_MXFP4) w *= row_scale(q_scale_at(t * pc.heads + h));
                sum[0] += max(acc[i][0], vec4(0.0)) * w;
                sum[1] += max(acc[i][1], vec4(0.0)) * w;
            }
        }
    }
    barrier();
    if (HALVES) {
        sum[0] = HALF_BACK(sum[0], mine_k);
        sum[1] = HALF_BACK(sum[1], mine_k);
    }
    k_s[mine_h * KP + mine_k] = floatBitsToUint(sum[0]);
    k_s[mine_h * KP + KL + mine_k] = floatBitsToUint(sum[1]);
    barrier();
    if (n >= end) return;
    float x = 0.0;
    for (uint i = 0u; i < 8u; i++) x += uintBitsToFloat(k_s[i * KP + tid / 4u][tid % 4u]);
    x *= UNSCALE * (FORMAT == INDEX_FP8 ? uintBitsToFloat(scale) : row_scale(scale));
    logit_store(t, n - pc.first, there ? x : LOGIT_NONE);
}
