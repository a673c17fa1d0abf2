// Sparse MLA of one (token, head group, split) with cooperative matrices, for workgroups that have all the heads that fit:
// lib/cm_mla_core.glsl says what is computed. Rows of t+2 are on their way in registers while tile t is worked on, with two
// barriers a tile:
//
//   load t+2 | acc += P V of t, scores of t+1 | weights of t+1, rows of t+2 to shared memory
//
// After the include and before lib/cm_sparse_mla_loop.glsl the kernel declares how rows come in:
//
//   struct CmRow                                            one invocation's raw share of a row
//   uvec2 cm_find(uint t, uint j)                           reads what says where entry j lies
//   void cm_fetch(uvec2 found, uint j, bool inside, out CmRow row)   starts loading; no branch
//   void cm_keep(CmRow row, uint at)                        writes the share to row `at` of kv_s, zeros where masked,
//                                                           and says through cm_set_valid whether it counts
//
// Shared memory, bytes: 2*TILE*1040 + KSPLIT*HG*(4*TILE + 16) + HG*(2*TILE + 24) + 8*TILE + 4: 47236 for HG 64, TILE 16, KSPLIT 2.
#ifndef LIB_CM_SPARSE_MLA_GLSL
#define LIB_CM_SPARSE_MLA_GLSL
#include "cm_mla_core.glsl"

shared uvec4 valid_s[2u * QUADS]; // [2, TILE] 1: the row counts
shared float ref_s[HG];           // [HG] m

void cm_set_valid(uint at, bool valid) {
    if (cm_part == 0u) valid_s[at / 4u][at % 4u] = valid ? 1u : 0u;
}

// cm_load_q: through kv_s into fragments, some head tiles at a time. The next ones are on their way before the fragments of
// these are loaded. Ends with a barrier.
void cm_load_q(uint t, uint head0) {
    const uint STAGE = 2u * TILE / CM_M < HEAD_TILES ? 2u * TILE / CM_M : HEAD_TILES; // head tiles at a time
    const uint COUNT = (STAGE * CM_M * 64u + THREADS - 1u) / THREADS;
    uvec4 w[COUNT];
    [[unroll]] for (uint i = 0u; i < COUNT; i++) {
        const uint at = i * THREADS + cm_tid, head = head0 + at / 64u;
        w[i] = q.rows[(t * pc.heads + min(head, pc.heads - 1u)) * 64u + at % 64u];
        if (head >= pc.heads) w[i] = uvec4(0u);
    }
    [[unroll]] for (uint first = 0u; first < HEAD_TILES; first += STAGE) {
        if (first > 0u) barrier(); // fragments of the stage before have been loaded
        [[unroll]] for (uint i = 0u; i < COUNT; i++) {
            const uint at = i * THREADS + cm_tid;
            if (at < STAGE * CM_M * 64u) kv_s[at / 64u * KV_PITCH + at % 64u] = cm_from_bf16x8(w[i]);
        }
        if (first + STAGE < HEAD_TILES) {
            [[unroll]] for (uint i = 0u; i < COUNT; i++) {
                const uint at = i * THREADS + cm_tid, head = head0 + (first + STAGE) * CM_M + at / 64u;
                w[i] = q.rows[(t * pc.heads + min(head, pc.heads - 1u)) * 64u + at % 64u];
                if (head >= pc.heads) w[i] = uvec4(0u);
            }
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            const uint tile = cm_heads * QK_TILES + i;
            if (tile >= first && tile < first + STAGE) {
                [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
                    coopMatLoad(q_f[i][k], kv_s, (tile - first) * CM_M * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }
    barrier();
}

bvec4 cm_valid(uint buf, uint quad) { return notEqual(valid_s[buf * QUADS + quad], uvec4(0u)); }

// cm_score4: four scores of a head in base 2, the masked ones at the floor.
vec4 cm_score4(uint head, uint quad, bvec4 valid) {
    vec4 s = score_s[head * S_PITCH + quad];
    [[unroll]] for (uint k = 1u; k < KSPLIT; k++) s += score_s[(k * HG + head) * S_PITCH + quad];
    return mix(vec4(MLA_FLOOR), s * pc.scale_log2e, valid);
}

// cm_weights: scores to weights, in p_s. What is added to l stays in l_add_ until it is known that no score was stale.
void cm_weights(uint buf) {
    bool stale = false;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
        const bvec4 valid = cm_valid(buf, quad);
        const vec4 s = cm_score4(head, quad, valid);
        const float top = cm_max4(s);
        top_[u] = max(top_[u], top);
        stale = stale || top > m_[u] + CM_STALE;
        const vec4 p = mix(vec4(0.0), exp2(s - m_[u]), valid); // exactly 0 where masked
        l_add_[u] = (p.x + p.y) + (p.z + p.w);
        const uvec2 w = cm_pack(p);
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u] = w.x;
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u + 1u] = w.y;
    }
    if (stale) atomicOr(stale_s, 1u);
}

// cm_rescale: makes m the maximum over all tiles up to the one whose scores lie in score_s, and brings l and acc along.
// Rarely needed after the first tile. score_s must be complete (a barrier before); two barriers inside.
void cm_rescale(uint buf) {
    for (uint head = cm_tid; head < HG; head += THREADS) {
        float top = ref_s[head];
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) top = max(top, cm_max4(cm_score4(head, quad, cm_valid(buf, quad))));
        factor_s[head / 4u][head % 4u] = exp2(ref_s[head] - top);
        ref_s[head] = top;
    }
    barrier();
    if (cm_tid == 0u) stale_s = 0u;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint head = (u * THREADS + cm_tid) / QUADS % HG;
        m_[u] = ref_s[head];
        l_[u] *= factor_s[head / 4u][head % 4u];
    }
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C factor; // stride 0: every column the same
        coopMatLoad(factor, factor_s, i * CM_M / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] *= factor;
    }
    barrier();
}

#endif
