// The loop over tiles and the end of a row; goes with lib/cm_sparse_mla.glsl, which see.
#ifndef LIB_CM_SPARSE_MLA_LOOP_GLSL
#define LIB_CM_SPARSE_MLA_LOOP_GLSL

// cm_loop: positions [begin, end) of token t, begin < end.
void cm_loop(uint t, uint head0, uint begin, uint end) {
    // Past the end the last entry is looked up again and masked: a load that is always made can be on its way early.
    #define CM_AT(tile) (begin + (tile) * TILE + cm_row)
    #define CM_FIND(tile) cm_find(t, min(CM_AT(tile), end - 1u))
    #define CM_FETCH(found, tile, row) cm_fetch(found, min(CM_AT(tile), end - 1u), CM_AT(tile) < end, row)
    const uint tiles = (end - begin + TILE - 1u) / TILE;
    CmRow row0, row1;
    const uvec2 found0 = CM_FIND(0u), found1 = CM_FIND(1u);
    uvec2 found = CM_FIND(2u);
    CM_FETCH(found0, 0u, row0);
    CM_FETCH(found1, 1u, row1);
    cm_load_q(t, head0);
    cm_keep(row0, cm_row);
    barrier();
    cm_scores(0u);
    cm_keep(row1, TILE + cm_row);

    uint tile = 0u, buf = 0u;
    [[dont_unroll]] while (tile < tiles) { // again only when a score outgrew m
        barrier();
        cm_rescale(buf);
        cm_weights(buf);
        [[dont_unroll]] for (;;) {
            CmRow row;
            CM_FETCH(found, tile + 2u, row);
            barrier();
            if (stale_s != 0u) break;
            const uvec2 next = CM_FIND(tile + 3u);
            cm_accumulate(buf);
            tile++;
            if (tile >= tiles) break;
            cm_scores(buf ^ 1u);
            barrier();
            cm_weights(buf ^ 1u);
            cm_keep(row, buf * TILE + cm_row);
            buf ^= 1u;
            found = next;
        }
    }
    barrier();
}

// cm_attend: positions [begin, end) of token t for the heads from head0 on. Writes the finished rows when there is one
// split, else the partial ones; m, l and top are, for the invocation head - head0, what lse and max_logits need.
void cm_attend(uint t, uint head0, uint split, uint begin, uint end, out float m, out float l, out float top) {
    cm_tid = gl_LocalInvocationIndex;
    cm_sub = gl_SubgroupID;
    cm_row = cm_tid / ROW_PARTS;
    cm_part = cm_tid % ROW_PARTS;
    cm_heads = cm_sub / KSPLIT % HEAD_PARTS;
    cm_columns = cm_sub / KSPLIT / HEAD_PARTS;
    cm_dims = cm_sub % KSPLIT;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        m_[u] = MLA_FLOOR;
        l_[u] = 0.0;
        top_[u] = MLA_FLOOR;
    }
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] = CM_C(0.0);
    }
    for (uint h = cm_tid; h < HG; h += THREADS) ref_s[h] = MLA_FLOOR;
    if (cm_tid == 0u) stale_s = 0u;
    barrier();
    if (begin < end) cm_loop(t, head0, begin, end);

    // Sums and maxima of a head from those of its fours, in order.
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (unit < UNITS) score_s[unit] = vec4(l_[u], top_[u], 0.0, 0.0);
    }
    barrier();
    m = MLA_FLOOR;
    l = 0.0;
    top = MLA_FLOOR;
    const uint head = head0 + cm_tid;
    if (cm_tid < HG) {
        m = ref_s[cm_tid];
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) {
            const vec4 x = score_s[cm_tid * QUADS + quad];
            l += x.x;
            top = max(top, x.y);
        }
        factor_s[cm_tid / 4u][cm_tid % 4u] = mla_factor(m, l, mla_sink_of(min(head, pc.heads - 1u)));
        if (pc.splits > 1u && head < pc.heads) part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m, l, top, 0.0);
    }
    if (pc.splits > 1u && begin >= end) return; // its accumulator is never read

    if (pc.splits > 1u && head0 + HG <= pc.heads) {
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                coopMatStore(acc_f[i][j], part_out.rows, ((t * pc.splits + split) * pc.heads + head0 + i * CM_M) * 128u + (cm_sub * OUT_TILES + j) * CM_N / 4u,
                             128u, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        return;
    }
    // One head tile of acc after the other through shared memory, where rows can be told apart.
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            coopMatStore(acc_f[i][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (uint at = cm_tid; at < CM_M * 64u; at += THREADS) {
            const uint r = at / 64u, c = at % 64u, h = i * CM_M + r;
            if (head0 + h >= pc.heads) break;
            const vec4 a = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u]), b = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u + 1u]);
            if (pc.splits == 1u) {
                const float f = factor_s[h / 4u][h % 4u];
                const vec4 x = a * f, y = b * f;
                dst.rows[(t * pc.heads + head0 + h) * 64u + c] =
                    uvec4(bf16_pack2(x.x, x.y), bf16_pack2(x.z, x.w), bf16_pack2(y.x, y.y), bf16_pack2(y.z, y.w));
            } else {
                const uint out_row = ((t * pc.splits + split) * pc.heads + head0 + h) * 128u;
                part_out.rows[out_row + c * 2u] = a;
                part_out.rows[out_row + c * 2u + 1u] = b;
            }
        }
    }
}

#endif
