// Sparse MLA of one (token, heads, split) for prefill, in lanes; lib/cm_lanes.glsl has the formula.
// Two barriers a tile:
//
//   load rows of t+1, scores of t |
//   weights of t, acc += P V of t-1, rows of t+1 to shared memory over those of t-1
#ifndef LIB_CM_PREFILL_LANES_GLSL
#define LIB_CM_PREFILL_LANES_GLSL
#include "cm_lanes.glsl"

const uint WORDS_EACH = ROW_WORDS / ROW_PARTS;
const uint CM_NOWHERE = ~0u;

uint index_; // an entry of the list: tile lane/SUB_ROWS of LOOKUP, row lane%SUB_ROWS of the subgroup's
uint place_; // of the row to load next, or CM_NOWHERE

struct CmRow {
    uvec4 w[WORDS_EACH];
};

// cm_locate: where this lane's row of a tile lies. Past the end of the list its last entry is read,
// and masked.
void cm_locate(uint tile) {
    [[dont_flatten]] if (tile % LOOKUP == 0u) {
        subgroupMemoryBarrierShared(); // keeps this a branch, which saves every tile 12 instructions
        const uint at = cm_begin + (tile + cm_lane / SUB_ROWS) * TILE + cm_sub * SUB_ROWS + cm_lane % SUB_ROWS;
        index_ = indices.v[cm_t * pc.width + min(at, pc.width - 1u)];
    }
    const uint at = subgroupShuffle(index_, tile % LOOKUP * SUB_ROWS + cm_lane / ROW_PARTS);
    place_ = cm_begin + tile * TILE + cm_row < cm_end && at < pc.rows ? at : CM_NOWHERE; // a negative index is a large one
}

// cm_fetch: starts loading; row 0 stands in for one that does not count, and is masked when it is
// kept.
void cm_fetch(out CmRow row, out bool valid) {
    valid = place_ != CM_NOWHERE;
    WorkspaceRow from = WorkspaceRow(pc.kv_addr + uint64_t(valid ? place_ : 0u) * (KV_D * 2u) + cm_part * 16u);
    [[unroll]] for (uint i = 0u; i < WORDS_EACH; i++) row.w[i] = from.w[i * ROW_PARTS];
}

uvec4 cm_ready(uvec4 w) { return READY != 0u ? w : cm_from_bf16x8(w); }

#define CM_KEEP(buf, word) \
    [[unroll]] for (uint i = 0u; i < WORDS_EACH; i++) { \
        kv_s[(buf) * KV_TILE + cm_sub * (SUB_ROWS * KV_PITCH) + cm_lane / ROW_PARTS * KV_PITCH + cm_part + i * ROW_PARTS] = word; \
    }

// cm_keep_first: a row of the first two tiles, zeros where it does not count.
void cm_keep_first(CmRow row, bool valid, uint buf) {
    const uint mask = valid ? ~0u : 0u;
    CM_KEEP(buf, cm_ready(row.w[i] & mask))
    cm_keep_bias(valid, buf);
}

// cm_keep: a row of a later tile. Where it does not count, what lies there stays: zeros, or a row
// that counts. Its weight is 0, and if it is not finite, neither is the result.
void cm_keep(CmRow row, bool valid, uint buf) {
    if (valid) CM_KEEP(buf, cm_ready(row.w[i]))
    cm_keep_bias(valid, buf);
}

// cm_pass: all tiles, with the maximum of the first tile as m, or in the second pass with m as it
// is. The rows of the first two have been fetched.
void cm_pass(uint pass, CmRow row0, CmRow row1, bool valid0, bool valid1) {
    const uint tiles = (cm_end - cm_begin + TILE - 1u) / TILE;
    CM_B v[OUT_TILES];
    CM_FIRST_TILES(pass > 0u)
    cm_weights();
    barrier();
    [[dont_unroll]] for (uint tile = 1u; tile < tiles; tile++) {
        const uint buf = tile & 1u, here = buf * KV_TILE;
        CmRow row;
        bool valid;
        cm_fetch(row, valid);
        cm_put_weights();
        subgroupMemoryBarrierShared(); // what is above stays above
        cm_scores(here, KV_TILE - here, v);
        barrier();
        CM_A p0[QUARTER], p1[QUARTER];
        CM_LOAD_WEIGHTS(p0, PART0)
        CM_LOAD_WEIGHTS(p1, PART1)
        CM_ACCUMULATE(p0, v, PART0)
        CM_LOAD_WEIGHTS(p0, PART2)
        CM_ACCUMULATE(p1, v, PART1)
        CM_LOAD_WEIGHTS(p1, PART3)
        cm_keep(row, valid, buf ^ 1u);
        CM_ACCUMULATE(p0, v, PART2)
        CM_ACCUMULATE(p1, v, PART3)
        cm_sum_scores(buf);
        cm_weights();
        cm_locate(tile + 2u);
        barrier();
    }
    cm_put_weights();
    CM_LAST_TILE(tiles - 1u)
}

void cm_fetch_first(out CmRow row0, out CmRow row1, out bool valid0, out bool valid1) {
    cm_locate(0u);
    cm_fetch(row0, valid0);
    cm_locate(1u);
    cm_fetch(row1, valid1);
    cm_locate(2u);
}

// cm_attend: entries [cm_begin, cm_end) of the token's list for the heads from head0 on. l_ is of
// the lane's own columns, m_ and top_ of whole rows.
void cm_attend(uint head0) {
    if (cm_begin >= cm_end) {
        CM_NO_ROWS
        CM_NO_OUTPUT
        return;
    }
    if (gl_LocalInvocationIndex == 0u) stale_s = 0u;
    CmRow row0, row1;
    bool valid0, valid1;
    {
        uvec4 w[Q_ALL];
        const int position = NORM ? positions.v[cm_t] : 0;
        cm_fetch_q(head0, w);
        cm_fetch_first(row0, row1, valid0, valid1);
        if (NORM) cm_find_angles(position); // it came with the first indices
        // Touches the list, so that places come from a cache when they are looked up. The condition
        // below never holds, but no compiler knows.
        const uint touch = indices.v[cm_t * pc.width + min(gl_LocalInvocationIndex * 8u, pc.width - 1u)];
        if (NORM) cm_load_q_normed(w);
        else cm_load_q(w);
        if (touch == CM_NOWHERE && pc.rows == CM_NOWHERE) stale_s = 1u;
    }
    [[dont_unroll]] for (uint pass = 0u; pass < 2u; pass++) {
        cm_pass(pass, row0, row1, valid0, valid1);
        if (pass > 0u) break;
        CM_BREAK_UNLESS_STALE
        cm_fetch_first(row0, row1, valid0, valid1);
    }
}

#endif
