// Sparse MLA of one (token, head group, split) with cooperative matrices, for prefill and for workgroups with few heads:
// lib/cm_mla_core.glsl says what is computed. It asks less of registers than lib/cm_sparse_mla.glsl: where the rows of a tile lie
// is worked out once, by one invocation for each row, and kept in shared memory for those that bring them in; and their loads
// begin when the products with V are done. Two barriers a tile:
//
//   acc += P V of t, load t+2, scores of t+1 | weights of t+1, rows of t+2 to shared memory, places of t+3
//
// With CM_ONE_BUFFER there is one tile in shared memory, twice as large: what a tile waits for, it waits for half as often. Four barriers:
//
//   load t+1, weights of t | acc += P V of t | rows of t+1 to shared memory, places | scores of t+1
//
// Besides what the core needs, THREADS is at least RING*TILE. With CM_TOP defined the true maximum of the scores is kept. After
// the include and before lib/cm_mla_ring_loop.glsl the kernel declares how rows come in:
//
//   struct CmRow                                            one invocation's raw share of a row
//   uvec2 cm_find(uint t, uint j)                           reads what says where entry j lies
//   uvec4 cm_locate(uvec2 found, uint j, bool inside)       its place, as cm_fetch wants it; .w is ~0 if the row counts, else 0
//   void cm_fetch(uvec4 where, out CmRow row)               starts loading; no branch
//   void cm_move(inout CmRow to, CmRow from)                copies a share
//   void cm_keep(CmRow row, uint mask, uint at)             writes the share to row `at` of kv_s, zeros where masked
//
// Shared memory, bytes: 2*TILE*1040 (with CM_ONE_BUFFER half of that) + KSPLIT*HG*(4*TILE + 16) + HG*(2*TILE + 20) + 80*TILE + 4: 48132 for
// HG 64, TILE 16, KSPLIT 2.
#ifndef LIB_CM_MLA_RING_GLSL
#define LIB_CM_MLA_RING_GLSL
#include "cm_mla_core.glsl"

const uint RING = 4u; // tiles of which it is known where their rows lie

shared vec4 bias_s[RING * QUADS];  // [RING, TILE] 0, or CM_MASKED where a row does not count
shared uvec4 where_s[RING * TILE]; // [RING, TILE] of cm_locate

// A masked score lies so far below any m that its weight is 0.
const float CM_MASKED = 2.0 * MLA_FLOOR;

// cm_score4: four dot products of a head.
vec4 cm_score4(uint head, uint quad) {
    vec4 s = score_s[head * S_PITCH + quad];
    [[unroll]] for (uint k = 1u; k < KSPLIT; k++) s += score_s[(k * HG + head) * S_PITCH + quad];
    return s;
}

// cm_weights: scores of a tile to weights, in p_s. What is added to l stays in l_add_ until it is known that no score was stale.
void cm_weights(uint tile) {
    bool stale = false;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
#ifdef CM_TOP
        const vec4 s = cm_score4(head, quad) * pc.scale_log2e + bias_s[tile % RING * QUADS + quad];
        top_[u] = max(top_[u], cm_max4(s));
        const vec4 d = s - m_[u];
#else
        const vec4 d = cm_score4(head, quad) * pc.scale_log2e + (bias_s[tile % RING * QUADS + quad] - m_[u]);
#endif
        stale = stale || cm_max4(d) > CM_STALE;
        const vec4 p = exp2(d);
        l_add_[u] = (p.x + p.y) + (p.z + p.w);
        const uvec2 w = cm_pack_weights(p);
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u] = w.x;
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u + 1u] = w.y;
    }
    if (stale) atomicOr(stale_s, 1u);
}

// cm_rescale: makes m the maximum over all tiles up to this one, whose scores lie in score_s, and brings l and acc along.
// Rarely needed after the first tile. score_s must be complete (a barrier before); two barriers inside.
void cm_rescale(uint tile) {
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) { // maxima of fours, in the place of weights that nobody needs any more
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
        p_s[head * P_PITCH + quad / 4u][quad % 4u] = floatBitsToUint(cm_max4(cm_score4(head, quad) * pc.scale_log2e + bias_s[tile % RING * QUADS + quad]));
    }
    barrier();
    if (cm_tid == 0u) stale_s = 0u;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS;
        float top = m_[u];
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) top = max(top, uintBitsToFloat(p_s[head * P_PITCH + quad / 4u][quad % 4u]));
        const float factor = exp2(m_[u] - top);
        m_[u] = top;
        l_[u] *= factor;
        if (unit % QUADS == 0u) factor_s[head / 4u][head % 4u] = factor;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C factor; // stride 0: every column the same
        coopMatLoad(factor, factor_s, i * CM_M / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] *= factor;
    }
}

#endif
