// Exact top-k in one launch, with subgroup operations: what idx_topk.comp computes, of rows that
// are read once. Who selects from lists runs the code that made them.
// Bindings:  0 logits [T, width] f32 by fours, width a multiple of 4   1 lens [T] i32
//            2 lists [T][2][slices*KS] u32, KS = K rounded up to 4: the keys that each slice
//            picked, 0 after the last, then their columns
//            3 arrived [T] i32, slices that are done, 0 before and after   4 out [T, K] i32
//            with PAGE: 5 block_table [requests, table_width] i32   6 token_to_req [T] i32
//            7 slots [T, K] i32   8 counts [T] i32; see idx_topk.comp
// Workgroup: a slice (y) of `per` columns of a row (x). Of several slices the last to end selects
//   from what all have picked. Which that is decides nothing: lists are read in the order of
//   slices.
// Constants: 0 invocations, a multiple of SUBGROUP; 1 CAPACITY, entries of a slice or of all lists
//   at most, a multiple of 4; 2 BITS of a digit, 2^BITS a multiple of the invocations; 3 PLACES,
//   the larger of 2^BITS and K; 4 PAGE, slots of a page, or 0: no slots are written; 5 SUBGROUP.
// Shared memory: (CAPACITY + PLACES + invocations/SUBGROUP)*4 + 16 bytes.
// Features:  subgroupShuffle, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint CAPACITY = 1024u;
layout(constant_id = 2) const uint BITS = 8u;
layout(constant_id = 3) const uint PLACES = 1024u;
layout(constant_id = 4) const uint PAGE = 0u;
layout(constant_id = 5) const uint SUBGROUP = 8u;
const uint THREADS = gl_WorkGroupSize.x;
const uint TEAMS = THREADS / SUBGROUP;
const uint BINS = 1u << BITS;
const uint OWN = BINS / THREADS;                                     // bins of an invocation
const uint CELLS = (CAPACITY + 4u * THREADS - 1u) / (4u * THREADS); // of an invocation at most: four entries in a row

layout(std430, set = 0, binding = 0) readonly buffer Logits { uvec4 v[]; } logits;
layout(std430, set = 0, binding = 1) readonly buffer Lens { int v[]; } lens;
layout(std430, set = 0, binding = 2) coherent buffer Lists { uvec4 v[]; } lists;
layout(std430, set = 0, binding = 3) coherent buffer Arrived { uint v[]; } arrived;
layout(std430, set = 0, binding = 4) writeonly buffer Dst { int v[]; } dst;
layout(std430, set = 0, binding = 5) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 6) readonly buffer TokenToReq { int v[]; } token_to_req;
layout(std430, set = 0, binding = 7) writeonly buffer Slots { int v[]; } slots;
layout(std430, set = 0, binding = 8) writeonly buffer Counts { int v[]; } counts;

layout(push_constant) uniform Push {
    uint k;      // K
    uint width;  // columns of logits, a multiple of 4
    uint limit;  // entries of a row at most: lens counts up to here, and width
    uint shift;  // a row has 2^shift slices,
    uint solo;   // or one if it has no more entries than this
    uint per;    // columns of a slice of the longest row, a multiple of 4
    uint requests; // rows and columns of block_table
    uint table_width;
} pc;
#include "lib/order_key.glsl"
#include "lib/paged_index.glsl"

shared uvec4 key_s[CAPACITY / 4u];
shared uint pool_s[PLACES]; // bins, 0 when nobody counts; or the entries that are taken
shared uint sum_s[TEAMS];
shared uvec3 found_s;
shared uint last_s;

uint cells_of(uint total) { return (total + 4u * THREADS - 1u) / (4u * THREADS); }

// An invocation's columns of a slice, those past the end in any way; no load waits for another.
void load_columns(inout uvec4 raw[CELLS], uint row, uint begin, uint per, uint me) {
    const uint from = min(begin, pc.width - 4u), last = min(per, pc.width - from) / 4u - 1u, cells = cells_of(per);
    [[unroll]] for (uint j = 0u; j < CELLS; j++)
        if (j < cells) raw[j] = logits.v[(row + from) / 4u + min(me * cells + j, last)];
}

#include "lib/topk_scan.glsl"

void main() {
    const uint me = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    const uint t = gl_WorkGroupID.x, slice = gl_WorkGroupID.y, K = pc.k, stride = (K + 3u) & ~3u, row = t * pc.width;
    uvec4 raw[CELLS];
    uint begin = slice * pc.per, cells = cells_of(pc.per);
    load_columns(raw, row, begin, pc.per, me); // does not wait for the length, which may be that of the longest row

    const int request = PAGE > 0u ? token_to_req.v[t] : 0; // early, too
    const uint len = min(uint(max(lens.v[t], 0)), pc.limit);
    const bool whole = len <= K;
    const uint parts = len <= pc.solo ? 1u : 1u << pc.shift; // slices of this row
    if (slice >= parts) return;
    uint per = pc.per;
    if (pc.shift > 0u && (parts == 1u || len + per <= pc.width)) { // or a slice would have nothing
        per = parts == 1u ? (len + 3u) & ~3u : (((len - 1u) >> pc.shift) + 32u) & ~31u;
        begin = slice * per;
        cells = cells_of(per);
        load_columns(raw, row, begin, per, me);
    }
    uint total = whole || begin >= len ? 0u : min(per, len - begin); // entries to select from
    bool from_lists = false;
    const uint keys = (t << pc.shift) * stride * 2u; // of lists
    for (;;) {
#include "lib/topk_best.glsl"
        const uint taken = whole ? len : best;
        if (parts == 1u || from_lists) {
            if (PAGE > 0u && me == 0u) counts.v[t] = int(taken);
            [[dont_unroll]] for (uint p = me; p < K; p += THREADS) {
                int entry = -1;
                if (p < taken) {
                    if (whole) entry = int(p);
                    else {
                        const uint e = pool_s[p], column = keys + parts * stride + e;
                        entry = int(from_lists ? lists.v[column / 4u][column & 3u] : e);
                    }
                }
                dst.v[t * K + p] = entry;
                if (PAGE > 0u) slots.v[t * K + p] = entry < 0 ? -1 : paged_slot(request, uint(entry), PAGE);
            }
            return;
        }
        [[dont_unroll]] for (uint p = me; p < stride; p += THREADS) {
            const uint key = keys + slice * stride + p, column = key + parts * stride;
            uint e = 0u, x = 0u;
            if (p < taken) {
                e = pool_s[p];
                x = key_s[e / 4u][e & 3u];
            }
            lists.v[key / 4u][key & 3u] = x;
            lists.v[column / 4u][column & 3u] = begin + e;
        }

        // Whoever comes last goes on with the lists of all.
        memoryBarrierBuffer();
        barrier();
        if (me == 0u) {
            last_s = atomicAdd(arrived.v[t], 1u);
            if (last_s == parts - 1u) arrived.v[t] = 0u;
        }
        barrier();
        if (last_s != parts - 1u) return;
        memoryBarrierBuffer();
        from_lists = true;
        total = parts * stride;
        cells = cells_of(total);
        // TIE RULE: lists before columns, ascending. Here these are the lists of slices, in order.
        [[unroll]] for (uint j = 0u; j < CELLS; j++)
            if (j < cells) raw[j] = lists.v[keys / 4u + min(me * cells + j, total / 4u - 1u)];
    }
}
