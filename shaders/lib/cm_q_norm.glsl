// Norms and rotates queries on their way to shared memory; goes with lib/cm_mla.glsl. The kernel
// binds positions and a table of angles, and pc has eps and table_rows.
//
// 32 invocations bring in a head, with two units of 8 numbers each, 32 units apart. So each holds
// what it does in proj_q_insert.comp, and sums go in the same order. They pass through score_s,
// which nothing else needs yet.
#ifndef LIB_CM_Q_NORM_GLSL
#define LIB_CM_Q_NORM_GLSL
#define rms_of score_s
#include "rms.glsl"
#include "q_norm.glsl"

// Queries have to come normed where invocations hold other shares, or not all of Q at once, where
// their sums find no room, and where an invocation has parts of more than two heads, each with a
// copy of the code: normsQueries in attention/matrix.go.
const uint Q_ODD = Q_EACH % 2u | (Q_EACH * THREADS ^ HG * 64u) | (Q_EACH > 4u ? 1u : 0u);
const bool Q_PAIRS = (Q_EACH / 2u * THREADS <= 4u * KSPLIT * HG * S_PITCH ? Q_ODD : 1u) == 0u;
const uint Q_HEADS = Q_EACH / 2u; // of an invocation

bool cm_norms() { return Q_PAIRS && (pc.flags & NORM_Q) != 0u; }

// cm_q_place: which unit an invocation brings in as its i-th.
uint cm_q_place(uint i) {
    return Q_PAIRS ? (i / 2u * THREADS + cm_tid) / 32u * 64u + i % 2u * 32u + cm_tid % 32u : i * THREADS + cm_tid;
}

int cm_position_;     // of the token
vec4 cm_near, cm_far; // cosines and sines of the four pairs of the last unit of a head

// cm_find_angles: without a branch, so that nothing waits for it. Row 0 stands in where nothing
// rotates.
void cm_find_angles() {
    const uint row = cm_norms() ? uint(clamp(cm_position_, 0, int(pc.table_rows) - 1)) : 0u, pair = max(cm_tid % 32u, 24u) * 4u - 96u;
    cm_near = table_cos_sin2(row, pair, false);
    cm_far = table_cos_sin2(row, pair + 2u, false);
}

// cm_q_sums: an invocation's shares of sums of squares. A barrier follows.
void cm_q_sums(uvec4 w[Q_EACH]) {
    [[unroll]] for (uint i = 0u; i < Q_HEADS; i++) {
        precise float sum = rms_squares(w[2u * i]) + rms_squares(w[2u * i + 1u]);
        score_s[(i * THREADS + cm_tid) / 4u][cm_tid % 4u] = sum;
    }
}

void cm_q_norm(inout uvec4 w[Q_EACH]) {
    const uint lane = cm_tid % 32u;
    const bool turns = lane >= 24u;
    [[unroll]] for (uint i = 0u; i < Q_HEADS; i++) {
        const float all = rms_sum32(i * THREADS + cm_tid - lane);
        const float r = rms_factor(all, 1.0 / 512.0, pc.eps);
        uvec4 a = w[2u * i], b = w[2u * i + 1u];
        if (all < RMS_MOST) {
            w[2u * i] = uvec4(q_scaled(a.x, r), q_scaled(a.y, r), q_scaled(a.z, r), q_scaled(a.w, r));
            if (turns) b = uvec4(q_turned(b.x, r, cm_near.xy), q_turned(b.y, r, cm_near.zw),
                                 q_turned(b.z, r, cm_far.xy), q_turned(b.w, r, cm_far.zw));
            else b = uvec4(q_scaled(b.x, r), q_scaled(b.y, r), q_scaled(b.z, r), q_scaled(b.w, r));
            w[2u * i + 1u] = b;
        } else {
            w[2u * i] = q_unusual(a, r, cm_near, cm_far, false);
            w[2u * i + 1u] = q_unusual(b, r, cm_near, cm_far, turns);
        }
    }
}

#endif
