// Norms and rotates queries on their way to fragments; goes with lib/cm_lanes.glsl. The kernel
// binds positions and a table of angles, and pc has eps and table_rows.
//
// An invocation has units of 8 numbers of several heads. Sums of squares of units pass through
// kv_s, which nothing else needs yet, and factors of heads through factor_s. Sums go in the order
// of proj_q_insert.comp, which adds units u and u + 32 first: the bits are the same.
#ifndef LIB_CM_LANES_Q_NORM_GLSL
#define LIB_CM_LANES_Q_NORM_GLSL
#define RMS_OF(i) (uintBitsToFloat(kv_s[i]) + uintBitsToFloat(kv_s[(i) + 8u]))
#include "rms.glsl"
#include "q_norm.glsl"

// Quads of sums of a head, padded against bank conflicts where there is room.
const uint SUMS_PITCH = 2u * KV_TILE < 17u * HG ? 16u : 17u;

// Cosines and sines of the four pairs of a unit that turns. All such units of a lane have the same.
vec4 cm_near, cm_far;

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
            kv_s[CM_Q_HEAD(0u, turn, i, at) * SUMS_PITCH + unit / 4u][unit % 4u] = floatBitsToUint(rms_squares(w[i * Q_EACH + x]));
        }
    }
    barrier();
    const uint head = cm_sub * SUBGROUP + cm_lane;
    if (head < HG) {
        const float all = rms_sum32(head * SUMS_PITCH * 4u), r = rms_factor(all, 1.0 / 512.0, pc.eps);
        const uint odd = floatBitsToUint(all) >= floatBitsToUint(RMS_MOST) ? 0x80000000u : 0u;
        factor_s[head / 4u][head % 4u] = uintBitsToFloat(floatBitsToUint(r) | odd);
    }
    barrier();
}

// cm_q_usual: a unit of a row without NaNs and infinities.
uvec4 cm_q_usual(uvec4 w, float r, bool turns) {
    const vec4 angles[4] = { cm_near, cm_near.zwxy, cm_far, cm_far.zwxy };
    [[unroll]] for (uint k = 0u; k < 4u; k++) w[k] = turns ? q_turned(w[k], r, angles[k].xy) : q_scaled(w[k], r);
    return w;
}

// cm_load_q_normed: cm_load_q of raw queries, normed in shared memory by a loop, so that there is
// one copy of the code for each head tile.
void cm_load_q_normed(uvec4 w[Q_ALL]) {
    cm_q_factors(w);
    const uint base = cm_heads % Q_PARTS * (CM_M * KV_PITCH) + cm_dims * Q_WORDS, turn = cm_dims * OWN;
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
        [[unroll]] for (uint x = 0u; x < Q_EACH; x++) {
            const uint at = x * SUBGROUP + cm_lane;
            kv_s[base + at / Q_WORDS * KV_PITCH + at % Q_WORDS] = w[i * Q_EACH + x];
        }
        cm_subgroup_sync();
        // Eight units of several heads at a time, which all turn or none of them does.
        [[dont_unroll]] for (uint turn8 = 0u; turn8 < CM_M * Q_WORDS / SUBGROUP; turn8++) {
            const uint eight = turn8 % (Q_WORDS / 8u) * 8u;
            const uint at = (turn8 / (Q_WORDS / 8u) * (SUBGROUP / 8u) + cm_lane / 8u) * Q_WORDS + eight + cm_lane % 8u;
            const uint head = CM_Q_HEAD(0u, turn, i, at), place = base + at / Q_WORDS * KV_PITCH + at % Q_WORDS;
            const float r = factor_s[head / 4u][head % 4u];
            const bool turns = cm_dims * Q_WORDS + eight == ROW_WORDS - 8u;
            uvec4 unit = kv_s[place];
            if (floatBitsToUint(r) < 0x80000000u) {
                if (turns) unit = cm_q_usual(unit, r, true);
                else unit = cm_q_usual(unit, r, false);
            }
            else unit = q_unusual(unit, abs(r), cm_near, cm_far, turns);
            kv_s[place] = cm_from_bf16x8(unit);
        }
        cm_subgroup_sync();
        [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
            coopMatLoad(q_f[i][k], kv_s, base + k * (CM_K / 8u), KV_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        cm_subgroup_sync();
    }
}

#endif
