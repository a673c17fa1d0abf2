// How rows and queries come in, and how a split ends; goes with lib/cm_mla.glsl, after which the
// kernel declares
//
//   struct CmRow                                        an invocation's share of a row in memory
//   uvec2 cm_find(uint t, uint j)                       reads what says where entry j lies
//   uvec4 cm_locate(uvec2 found, uint j, bool inside)   its place for cm_fetch; .w is ~0 if the
//                                                       row counts, else 0
//   void cm_fetch(uvec4 where, out CmRow row)           starts loading; no branch
//   void cm_keep(CmRow row, uint mask, uint at)         writes the share to row `at` of kv_s,
//                                                       zeros where masked
//   uint cm_q_place(uint i)                             the unit of some head tiles that an
//                                                       invocation brings in as its i-th
//   void cm_prepare_output(uint t)                      begins what cm_output needs
//   uvec4 cm_output(vec4 x, vec4 y)                     8 neighbouring output numbers as bf16
//
// The kernel has the loop over tiles:
//
//   cm_fetch_q, cm_start, the loop if there is anything to attend, cm_finish
#ifndef LIB_CM_MLA_TILES_GLSL
#define LIB_CM_MLA_TILES_GLSL
#include "cm_write.glsl"

// Past the end the last entry is looked up again and masked: an unconditional load can start early.
uint cm_begin, cm_end;

uvec2 cm_find_row(uint t, uint at) { return cm_find(t, min(at, cm_end - 1u)); }

void cm_keep_where(uvec2 found, uint at, uint slot) {
    const uvec4 where = cm_locate(found, min(at, cm_end - 1u), at < cm_end);
    where_s[slot] = where;
    bias_s[slot / 4u][slot % 4u] = where.w != 0u ? 0.0 : CM_MASKED;
}

void cm_fetch_tile(uint tile, out CmRow row) { cm_fetch(where_s[tile % RING * TILE + cm_row], row); }

void cm_keep_tile(CmRow row, uint tile, uint buf) {
    const uint slot = tile % RING * TILE + cm_row;
    cm_keep(row, where_s[slot].w, buf * TILE + cm_row);
}

// cm_q_word: 8 numbers of Q, zeros beyond the last head.
uvec4 cm_q_word(uint t, uint head0, uint at) {
    const uint head = head0 + at / 64u;
    const uvec4 w = q.rows[(t * pc.heads + min(head, pc.heads - 1u)) * 64u + at % 64u];
    return head < pc.heads ? w : uvec4(0u);
}

void cm_fetch_q(uint t, uint head0, uint first, out uvec4 w[Q_EACH]) {
    [[unroll]] for (uint i = 0u; i < Q_EACH; i++) w[i] = cm_q_word(t, head0, first * CM_M * 64u + cm_q_place(i));
}

// cm_load_q: Q through kv_s into fragments, some head tiles at a time, of which the first two lots
// have been fetched. Ends with a barrier.
void cm_load_q(uint t, uint head0, uvec4 w[Q_EACH], uvec4 next[Q_EACH]) {
    [[dont_unroll]] for (uint first = 0u; first < HEAD_TILES; first += Q_STAGE) {
        [[unroll]] for (uint i = 0u; i < Q_EACH; i++) {
            const uint at = cm_q_place(i);
            if (at < Q_STAGE * CM_M * 64u) kv_s[at / 64u * KV_PITCH + CM_POSITION(at % 64u)] = cm_from_bf16x8(w[i]);
        }
        [[unroll]] for (uint i = 0u; i < Q_EACH; i++) w[i] = next[i];
        if (HEAD_TILES > 2u * Q_STAGE) cm_fetch_q(t, head0, first + 2u * Q_STAGE, next);
        barrier();
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            const uint tile = cm_heads * QK_TILES + i;
            if (tile >= first && tile < first + Q_STAGE) {
                [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
                    coopMatLoad(q_f[i][k], kv_s, (tile - first) * CM_M * KV_PITCH + CM_VECTORS(cm_dims * QK_STEPS + k, CM_K, 8u), KV_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        barrier();
    }
}

// cm_start: positions [begin, end) of a token, before any is attended.
void cm_start(uint begin, uint end) {
    cm_sub = gl_SubgroupID;
    cm_row = cm_tid / ROW_PARTS;
    cm_part = cm_tid % ROW_PARTS;
    if (ROWS != 0u && ROW_PARTS >= 8u && TILE % 16u == 0u) { // rows 12 apart side by side, whose halves meet in no bank
        const uint eight = cm_tid / 16u, row = eight / (ROW_PARTS / 8u);
        cm_part = cm_tid % 8u + eight % (ROW_PARTS / 8u) * 8u;
        cm_row = (row / 8u * 16u + row % 8u) ^ (cm_tid / 8u % 2u * 12u);
    }
    cm_heads = cm_sub / KSPLIT % HEAD_PARTS;
    cm_columns = cm_sub / KSPLIT / HEAD_PARTS;
    cm_dims = cm_sub % KSPLIT;
    cm_begin = begin;
    cm_end = end;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        m_[u] = MLA_FLOOR;
        l_[u] = 0.0;
        top_[u] = MLA_FLOOR;
    }
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] = CM_C(0.0);
    }
    if (cm_tid == 0u) stale_s = 0u;
}

// cm_finish: writes the rows of token t for the heads from head0 on, finished if there is one
// split, else partial. m, l and top are, for the invocation head - head0, what lse and max_logits
// need.
void cm_finish(uint t, uint head0, uint split, out float m, out float l, out float top) {
    // Sums and maxima of a head from those of its fours, in order.
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (unit < UNITS) score_s[unit] = vec4(CM_FINAL_L(l_[u]), top_[u], CM_FINAL_M(m_[u]), 0.0);
    }
    barrier();
    m = MLA_FLOOR;
    l = 0.0;
    top = MLA_FLOOR;
    const uint head = head0 + cm_tid;
    if (cm_tid < HG) {
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) {
            const vec4 x = score_s[cm_tid * QUADS + quad];
            l += x.x;
            top = max(top, x.y);
            m = x.z;
        }
        factor_s[cm_tid / 4u][cm_tid % 4u] = mla_factor(m, l, mla_sink_of(min(head, pc.heads - 1u)));
        if (pc.splits > 1u && head < pc.heads) part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m, l, top, 0.0);
    }
    if (pc.splits > 1u) {
        if (cm_begin >= cm_end) return; // its accumulator is never read
        if (ROWS == 0u && head0 + HG <= pc.heads) {
            cm_write_parts(t, head0, split);
            return;
        }
    }
    cm_prepare_output(t);
    barrier();

    // One head tile of acc after the other through shared memory, where rows can be told apart.
    [[dont_unroll]] for (uint i = 0u; i < HEAD_TILES * OUT_PARTS; i++) {
        const uint part = i % OUT_PARTS, first = part * 128u / OUT_PARTS;
        [[unroll]] for (uint x = 0u; x < HEAD_TILES; x++) {
            if (x == i / OUT_PARTS && cm_sub * OUT_PARTS / SUBGROUPS == part) {
                [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                    coopMatStore(acc_f[x][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u - first, OUT_PITCH,
                                 gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        barrier();
        [[dont_unroll]] for (uint at = cm_tid; at < CM_M * 64u; at += THREADS) {
            const uint r = at / 64u, c = at % 64u, h = i / OUT_PARTS * CM_M + r;
            if (head0 + h >= pc.heads) break;
            if (CM_POSITION(c) * OUT_PARTS / 64u == part) cm_write(t, head0, split, h, c);
        }
        barrier();
    }
}

#endif
