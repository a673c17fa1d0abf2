// Norms and rotates queries on their way in, and rotates the output back on its way out; goes with
// lib/cm_lanes.glsl. The kernel binds positions and a table of angles, and pc has eps and
// table_rows.
//
// An invocation has units of 8 numbers of several heads, so sums of squares of units pass through
// kv_s, which nothing else needs yet, and factors of heads through factor_s. Sums go in the order
// of proj_q_insert.comp, which adds units u and u + 32 first: the bits are the same.
#ifndef LIB_CM_LANES_ROPE_GLSL
#define LIB_CM_LANES_ROPE_GLSL
#define RMS_OF(i) (uintBitsToFloat(kv_s[i]) + uintBitsToFloat(kv_s[(i) + 8u]))
#include "rms.glsl"
#include "q_norm.glsl"

// 64 numbers of a head in kv_s, in quads, padded against bank conflicts where there is room: sums of
// squares, and the columns of the output that turn.
const uint HEAD_PITCH = 2u * KV_TILE < 17u * HG ? 16u : 17u;

vec4 cm_near, cm_far; // cosines and sines of the four pairs of a unit that turns: the same for all that a lane has

// cm_find_angles: without a branch, so that nothing waits for it. Subgroups are whole eights.
void cm_find_angles(int position) {
    const uint row = uint(clamp(position, 0, int(pc.table_rows) - 1)), pair = cm_lane % 8u * 4u;
    cm_near = table_cos_sin2(row, pair, false);
    cm_far = table_cos_sin2(row, pair + 2u, false);
}

// cm_q_factors: factors of heads to factor_s, negative where a row has infinities, NaNs, or numbers
// whose squares are.
void cm_q_factors(uvec4 w[Q_ALL]) {
    const uint turn = cm_dims * OWN;
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
        [[unroll]] for (uint x = 0u; x < Q_EACH; x++) {
            const uint at = x * SUBGROUP + cm_lane, unit = cm_dims * Q_WORDS + at % Q_WORDS;
            kv_s[CM_Q_HEAD(0u, turn, i, at) * HEAD_PITCH + unit / 4u][unit % 4u] = floatBitsToUint(rms_squares(w[i * Q_EACH + x]));
        }
    }
    barrier();
    const uint head = cm_sub * SUBGROUP + cm_lane;
    if (head < HG) {
        const float all = rms_sum32(head * HEAD_PITCH * 4u), r = rms_factor(all, 1.0 / 512.0, pc.eps);
        factor_s[head / 4u][head % 4u] = uintBitsToFloat(floatBitsToUint(r) | (floatBitsToUint(all) >= floatBitsToUint(RMS_MOST) ? 0x80000000u : 0u));
    }
    barrier();
}

// cm_q_usual: a unit of a row without NaNs and infinities.
uvec4 cm_q_usual(uvec4 w, float r, bool turns) {
    const vec4 angles[4] = { cm_near, cm_near.zwxy, cm_far, cm_far.zwxy };
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        precise vec2 y = bf16_unpack2(w[k]) * r;
        const vec2 z = rope_rotate(y, angles[k].xy);
        w[k] = rms_pack2(turns ? z.x : y.x, turns ? z.y : y.y);
    }
    return w;
}

// cm_q_norm: what cm_fetch_q gave, as cm_load_q wants it.
void cm_q_norm(inout uvec4 w[Q_ALL]) {
    cm_q_factors(w);
    const uint turn = cm_dims * OWN;
    float r[Q_ALL];
    bool turns[Q_ALL];
    bool odd = false;
    [[unroll]] for (uint n = 0u; n < Q_ALL; n++) {
        const uint at = n % Q_EACH * SUBGROUP + cm_lane, head = CM_Q_HEAD(0u, turn, n / Q_EACH, at);
        r[n] = factor_s[head / 4u][head % 4u];
        turns[n] = cm_dims * Q_WORDS + at % Q_WORDS >= ROW_WORDS - 8u;
        odd = odd || floatBitsToUint(r[n]) >= 0x80000000u;
    }
    if (!odd) {
        [[unroll]] for (uint n = 0u; n < Q_ALL; n++) w[n] = cm_q_usual(w[n], r[n], turns[n]);
        return;
    }
    // Rare, so one copy of the code. Units go round, since no index of an array may be a variable.
    [[dont_unroll]] for (uint n = 0u; n < Q_ALL; n++) {
        const uvec4 next = q_unusual(w[0], abs(r[0]), cm_near, cm_far, turns[0]);
        [[unroll]] for (uint x = 1u; x < Q_ALL; x++) {
            w[x - 1u] = w[x];
            r[x - 1u] = r[x];
            turns[x - 1u] = turns[x];
        }
        w[Q_ALL - 1u] = next;
    }
}

// cm_put_turning: finished rows, of which the last 64 numbers are rotated back. Their columns are
// of a subgroup, or a few; all of the workgroup turn them. cm_find_angles has been called.
void cm_put_turning(uint head0) {
    const bool mine = (cm_sub + 1u) * (OUT_TILES * CM_N) > KV_NOPE;
    cm_put_output(mine ? pc.heads : head0, 0u); // those subgroups wait with the others, and write nothing
    barrier();
    if (mine) {
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                coopMatStore(acc_f[i][j], kv_s, i * CM_M * HEAD_PITCH + ((cm_sub * OUT_TILES + j) * CM_N - KV_NOPE) / 4u, HEAD_PITCH,
                             gl_CooperativeMatrixLayoutRowMajor);
            }
        }
    }
    barrier();
    const vec4 back = vec4(1.0, -1.0, 1.0, -1.0); // a changed sign rounds nothing
    [[dont_unroll]] for (uint at = cm_sub * SUBGROUP + cm_lane; at < HG * 8u; at += THREADS) {
        const uint h = at / 8u, c = at % 8u, from = h * HEAD_PITCH + c * 2u;
        if (head0 + h >= pc.heads) break;
        const float f = factor_s[h / 4u][h % 4u];
        const uvec4 w = cm_output(uintBitsToFloat(kv_s[from]) * f, uintBitsToFloat(kv_s[from + 1u]) * f);
        dst.rows[(cm_t * pc.heads + head0 + h) * ROW_WORDS + ROW_WORDS - 8u + c] = rope_bf16_words(w, cm_near * back, cm_far * back);
    }
}

#endif
