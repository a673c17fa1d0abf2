// Sparse MLA of one (token, heads, split) for decode, in lanes; lib/cm_lanes.glsl has the formula.
// Two barriers a tile:
//
//   scores of t+1, V of t into registers
//   acc += P V of t, sums of the scores of t+1, rows of t+2 over those of t, load rows of t+3,
//   weights of t+1
//
// The kernel declares cm_find (lib/cm_decode.glsl) and cm_locate (lib/cm_locate.glsl).
#ifndef LIB_CM_DECODE_LANES_GLSL
#define LIB_CM_DECODE_LANES_GLSL
#include "cm_lanes.glsl"
#include "cm_lanes_row.glsl"

// Of row lane%SUB_ROWS in tile lane/SUB_ROWS of LOOKUP: its address, and how far behind it its
// scales lie (NOWHERE if it does not count).
uvec3 where_;
uvec3 next_; // the same of the row to load next

// What stands in for a row that does not count may be of either record where these differ. It is
// loaded as RECORD_FP4, the shorter one, with scales at its own place: within a page of either.
const uint NOWHERE = WIN_RECORD == COMP_RECORD ? 0u : 1u << 31;

void cm_keep_where(uvec2 found, uint j, bool inside) {
    const uvec4 w = cm_locate(found, j, inside);
    where_ = uvec3(w.xy, w.w == 0u ? NOWHERE : w.z);
}

// cm_entry: the entry of the list whose place this lane holds, of LOOKUP tiles from `tile` on.
uint cm_entry(uint tile) { return cm_begin + (tile + cm_lane / SUB_ROWS) * TILE + cm_sub * SUB_ROWS + cm_lane % SUB_ROWS; }

void cm_choose(uint tile) {
    const uint from = tile % LOOKUP * SUB_ROWS + cm_lane / ROW_PARTS;
    next_.x = subgroupShuffle(where_.x, from);
    next_.y = subgroupShuffle(where_.y, from);
    next_.z = subgroupShuffle(where_.z, from);
}

// cm_look_up: where this lane's row of a tile lies. Past the end of the list its last entry is
// read, and does not count.
void cm_look_up(uint tile) {
    [[dont_flatten]] if (tile % LOOKUP == 0u) {
        subgroupMemoryBarrierShared(); // keeps this a branch, which saves every tile 50 instructions
        const uint at = cm_entry(tile), j = min(at, cm_end - 1u);
        cm_keep_where(cm_find(cm_t, j), j, at < cm_end);
    }
    cm_choose(tile);
}

// cm_fetch: starts loading the row of next_; another one stands in for a row that does not count,
// and is not kept.
void cm_fetch(out CmRow row, out bool valid) {
    valid = next_.z != NOWHERE;
    cm_fetch_row(next_, row);
}

// cm_keep_first: a row of the first two tiles, zeros where it does not count.
void cm_keep_first(CmRow row, bool valid, uint buf) {
    cm_mask_row(row, valid ? ~0u : 0u);
    cm_keep_row(row, buf * TILE + cm_row)
    cm_keep_bias(valid, buf);
}

// cm_keep: a row of a later tile. Where it does not count, what lies there stays: zeros, or a row
// that counts. Its weight is 0, and if it is not finite, neither is the result.
void cm_keep(CmRow row, bool valid, uint buf) {
    [[dont_flatten]] if (valid) cm_keep_row(row, buf * TILE + cm_row)
    cm_keep_bias(valid, buf);
}

// cm_pass: all tiles, with the maximum of the first tile as m, or in the second pass with m as it
// is. The rows of the first two have been fetched.
void cm_pass(uint pass, CmRow row0, CmRow row1, bool valid0, bool valid1) {
    const uint tiles = (cm_end - cm_begin + TILE - 1u) / TILE;
    CM_B v[OUT_TILES];
    CM_FIRST_TILES(pass > 0u)
    uint tile = 0u;
    [[dont_unroll]] for (;;) {
        const uint buf = tile & 1u, here = buf * KV_TILE;
        // Loaded values must not live where the loop begins again: their copies would wait for
        // memory.
        CmRow row;
        bool valid;
        cm_look_up(tile + 2u);
        cm_fetch(row, valid);
        cm_weights();
        barrier();
        cm_put_weights();
        if (tile + 1u >= tiles) break;
        cm_scores(KV_TILE - here, here, v);
        barrier();
        CM_A p0[QUARTER], p1[QUARTER];
        CM_LOAD_WEIGHTS(p0, PART0)
        CM_LOAD_WEIGHTS(p1, PART1)
        CM_ACCUMULATE(p0, v, PART0)
        CM_LOAD_WEIGHTS(p0, PART2)
        CM_ACCUMULATE(p1, v, PART1)
        CM_LOAD_WEIGHTS(p1, PART3)
        CM_ACCUMULATE(p0, v, PART2)
        CM_ACCUMULATE(p1, v, PART3)
        cm_sum_scores(buf ^ 1u); // on their way while the row is being kept
        cm_keep(row, valid, buf);
        tile++;
    }
    CM_LAST_TILE(tile)
}

void cm_put_sink(float sink2) {
    const uint head = gl_LocalInvocationIndex;
    if (head < HG) factor_s[head / 4u][head % 4u] = sink2;
}

// cm_attend: entries [cm_begin, cm_end) of the token's list for the heads whose queries cm_fetch_q
// gave. sink2 is that of the invocation's head, and in factor_s at the end. l_ is of the lane's own
// columns, m_ and top_ of whole rows.
void cm_attend(float sink2, uvec4 w[Q_ALL]) {
    if (cm_begin >= cm_end) {
        CM_NO_ROWS
        CM_NO_OUTPUT
        cm_put_sink(sink2);
        barrier();
        return;
    }
    if (gl_LocalInvocationIndex == 0u) stale_s = 0u;
    CmRow row0, row1;
    bool valid0, valid1;
    {
        const uint at = cm_entry(0u), j = min(at, cm_end - 1u);
        const uvec2 found = cm_find(cm_t, j);
        cm_keep_where(found, j, at < cm_end);
        cm_choose(0u);
        cm_fetch(row0, valid0);
        cm_choose(1u);
        cm_fetch(row1, valid1);
        // Touches the lists, so that places come from a cache when they are looked up. The
        // condition below never holds, but no compiler knows.
        const uvec2 touch = cm_find(cm_t, min(cm_begin + gl_LocalInvocationIndex * 8u, cm_end - 1u));
        cm_load_q(w);
        cm_put_sink(sink2);
        if ((touch.x & touch.y) == ~0u && pc.heads == ~0u) stale_s = 1u;
    }
    [[dont_unroll]] for (uint pass = 0u; pass < 2u; pass++) {
        cm_pass(pass, row0, row1, valid0, valid1);
        if (pass > 0u) break;
        CM_BREAK_UNLESS_STALE
        cm_look_up(0u);
        cm_fetch(row0, valid0);
        cm_look_up(1u);
        cm_fetch(row1, valid1);
    }
}

#endif
