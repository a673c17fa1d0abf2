// The loop over tiles, its beginning and its end; goes with lib/cm_mla_ring.glsl, which see.
#ifndef LIB_CM_MLA_RING_LOOP_GLSL
#define LIB_CM_MLA_RING_LOOP_GLSL

// Past the end the last entry is looked up again and masked: a load that is always made can be on its way early.
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

const uint Q_STAGE = KV_ROWS / CM_M < HEAD_TILES ? KV_ROWS / CM_M : HEAD_TILES; // head tiles at a time
const uint Q_EACH = (Q_STAGE * CM_M * 64u + THREADS - 1u) / THREADS;

#ifdef CM_NORMS
#include "cm_q_norm.glsl"
#else
// cm_q_place: which of the units of some head tiles an invocation brings in as its i-th.
uint cm_q_place(uint i) { return i * THREADS + cm_tid; }
#endif

void cm_fetch_q(uint t, uint head0, uint first, out uvec4 w[Q_EACH]) {
    [[unroll]] for (uint i = 0u; i < Q_EACH; i++) w[i] = cm_q_word(t, head0, first * CM_M * 64u + cm_q_place(i));
}

// cm_load_q: Q through kv_s into fragments, some head tiles at a time, of which the first two lots have been fetched. Ends with
// a barrier.
void cm_load_q(uint t, uint head0, uvec4 w[Q_EACH], uvec4 next[Q_EACH]) {
    [[dont_unroll]] for (uint first = 0u; first < HEAD_TILES; first += Q_STAGE) {
        [[unroll]] for (uint i = 0u; i < Q_EACH; i++) {
            const uint at = cm_q_place(i);
            if (at < Q_STAGE * CM_M * 64u) kv_s[at / 64u * KV_PITCH + at % 64u] = cm_from_bf16x8(w[i]);
        }
        [[unroll]] for (uint i = 0u; i < Q_EACH; i++) w[i] = next[i];
        if (HEAD_TILES > 2u * Q_STAGE) cm_fetch_q(t, head0, first + 2u * Q_STAGE, next);
        barrier();
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            const uint tile = cm_heads * QK_TILES + i;
            if (tile >= first && tile < first + Q_STAGE) {
                [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
                    coopMatLoad(q_f[i][k], kv_s, (tile - first) * CM_M * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        barrier();
    }
}

// cm_loop: positions [cm_begin, cm_end) of token t, cm_begin < cm_end; the first lots of Q have been fetched.
void cm_loop(uint t, uint head0, uvec4 w0[Q_EACH], uvec4 w1[Q_EACH]) {
    const uint tiles = (cm_end - cm_begin + TILE - 1u) / TILE;
#ifdef CM_ONE_BUFFER
    {
        const uint at = cm_begin + min(cm_tid, RING * TILE - 1u);
        const uvec2 found = cm_find_row(t, at);
#ifdef CM_NORMS
        cm_find_angles();
        if (cm_norms()) cm_q_sums(w0);
#endif
        if (cm_tid < RING * TILE) cm_keep_where(found, at, cm_tid);
        barrier();
        CmRow row;
        cm_fetch_tile(0u, row);
#ifdef CM_NORMS
        if (cm_norms()) cm_q_norm(w0);
#endif
        cm_load_q(t, head0, w0, w1);
        cm_keep_tile(row, 0u, 0u);
    }
    barrier();
    cm_scores(0u);

    uint tile = 0u;
    [[dont_unroll]] while (tile < tiles) { // again only when a score outgrew m
        barrier();
        cm_rescale(tile);
        [[dont_unroll]] for (;;) {
            CmRow row;
            uvec2 found;
            const uint at = cm_begin + (tile + 2u) * TILE + cm_tid % TILE;
            if (tile + 1u < tiles) { // parts of few tokens mostly have one tile
                cm_fetch_tile(tile + 1u, row);
                found = cm_find_row(t, at);
            }
            cm_weights(tile);
            barrier();
            if (stale_s != 0u) break;
            cm_accumulate(0u);
            tile++;
            if (tile >= tiles) break;
            barrier();
            cm_keep_tile(row, tile, 0u);
            if (cm_tid < TILE) cm_keep_where(found, at, (tile + 1u) % RING * TILE + cm_tid);
            barrier();
            cm_scores(0u);
            barrier();
        }
    }
#else
    {
        const uint at = cm_begin + min(cm_tid, RING * TILE - 1u);
        const uvec2 found = cm_find_row(t, at);
        if (cm_tid < RING * TILE) cm_keep_where(found, at, cm_tid);
        barrier();
        CmRow row, row1;
        cm_fetch_tile(0u, row);
        cm_fetch_tile(1u, row1);
        cm_load_q(t, head0, w0, w1);
        [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
            cm_keep_tile(row, x, x);
            cm_move(row, row1);
        }
    }
    barrier();
    cm_scores(0u);

    uint tile = 0u, buf = 0u;
    [[dont_unroll]] while (tile < tiles) { // again only when a score outgrew m
        barrier();
        cm_rescale(tile);
        cm_weights(tile);
        [[dont_unroll]] for (;;) {
            barrier();
            if (stale_s != 0u) break;
            cm_accumulate(buf);
            tile++;
            if (tile >= tiles) break;
            CmRow row;
            cm_fetch_tile(tile + 1u, row);
            const uint at = cm_begin + (tile + 2u) * TILE + cm_tid % TILE;
            const uvec2 found = cm_find_row(t, at);
            cm_scores(buf ^ 1u);
            barrier();
            cm_weights(tile);
            cm_keep_tile(row, tile + 1u, buf);
            if (cm_tid < TILE) cm_keep_where(found, at, (tile + 2u) % RING * TILE + cm_tid);
            buf ^= 1u;
        }
    }
#endif
    barrier();
}

#ifdef CM_TURNS
// An invocation writes the same 8 numbers of every head; of the last 64 these are four pairs to be turned back.
bool cm_turns() { return (pc.flags & TURN) != 0u && cm_tid % 64u >= 56u; }

void cm_find_turn(uint t, out vec4 near, out vec4 far) {
    near = vec4(0.0);
    far = vec4(0.0);
    if (!cm_turns()) return;
    const uint row = uint(clamp(positions.v[t], 0, int(pc.table_rows) - 1)), pair = (cm_tid % 64u - 56u) * 4u;
    near = table_cos_sin2(row, pair, false) * vec4(1.0, -1.0, 1.0, -1.0);
    far = table_cos_sin2(row, pair + 2u, false) * vec4(1.0, -1.0, 1.0, -1.0);
}
#endif

// cm_attend: positions [begin, end) of token t for the heads from head0 on. Writes the finished rows when there is one
// split, else the partial ones; m, l and top are, for the invocation head - head0, what lse and max_logits need.
void cm_attend(uint t, uint head0, uint split, uint begin, uint end, uvec4 w0[Q_EACH], uvec4 w1[Q_EACH], out float m, out float l, out float top) {
    cm_sub = gl_SubgroupID;
    cm_row = cm_tid / ROW_PARTS;
    cm_part = cm_tid % ROW_PARTS;
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
    if (begin < end) cm_loop(t, head0, w0, w1);

    // Sums and maxima of a head from those of its fours, in order.
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (unit < UNITS) score_s[unit] = vec4(l_[u], top_[u], m_[u], 0.0);
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
        if (begin >= end) return; // its accumulator is never read
        if (head0 + HG <= pc.heads) {
            [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
                [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                    coopMatStore(acc_f[i][j], part_out.rows, ((t * pc.splits + split) * pc.heads + head0 + i * CM_M) * 128u + (cm_sub * OUT_TILES + j) * CM_N / 4u,
                                 128u, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            return;
        }
    }
#ifdef CM_TURNS
    vec4 near, far;
    cm_find_turn(t, near, far);
#endif
    barrier();

    // One head tile of acc after the other through shared memory, where rows can be told apart.
    [[dont_unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint x = 0u; x < HEAD_TILES; x++) {
            if (x == i) {
                [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                    coopMatStore(acc_f[x][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        barrier();
        [[dont_unroll]] for (uint at = cm_tid; at < CM_M * 64u; at += THREADS) {
            const uint r = at / 64u, c = at % 64u, h = i * CM_M + r;
            if (head0 + h >= pc.heads) break;
            const vec4 a = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u]), b = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u + 1u]);
            if (pc.splits == 1u) {
                const float f = factor_s[h / 4u][h % 4u];
                const vec4 x = a * f, y = b * f;
#ifndef CM_ONE_BUFFER
                const uvec4 w = uvec4(bf16_pack2(x.x, x.y), bf16_pack2(x.z, x.w), bf16_pack2(y.x, y.y), bf16_pack2(y.z, y.w));
#else
                uvec4 w = uvec4(cm_out2(x.xy), cm_out2(x.zw), cm_out2(y.xy), cm_out2(y.zw));
                if (cm_turns()) w = rope_bf16_words(w, near, far);
#endif
                dst.rows[(t * pc.heads + head0 + h) * 64u + c] = w;
            } else {
                const uint out_row = ((t * pc.splits + split) * pc.heads + head0 + h) * 128u;
                part_out.rows[out_row + c * 2u] = a;
                part_out.rows[out_row + c * 2u + 1u] = b;
            }
        }
        barrier();
    }
}

#endif
