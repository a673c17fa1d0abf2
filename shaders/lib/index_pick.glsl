// Picks by the launch that scores: for idx_logits_lanes.comp with PICKS. The shares of a row are
// taken `group` at a time; whichever workgroup comes last of such a slice selects the K best of its
// scores, and whichever slice comes last selects from the lists of all and writes the row's picks.
// Who comes last decides nothing: slices and lists are read in their order. What is selected is
// what idx_topk_lanes.comp selects, with its code.
//
// Shared memory: the queries' becomes that of keys, codes' that of bins.
#ifndef LIB_INDEX_PICK_GLSL
#define LIB_INDEX_PICK_GLSL
#include "order_key.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) coherent readonly buffer PickSeen4 { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer PickWord { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer PickResult { int v; };

const uint TEAMS = SUBGROUPS;
const uint OWN = ((1u << BITS) + THREADS - 1u) / THREADS; // bins of an invocation
const uint BINS = OWN * THREADS;
const uint CELLS = (CAPACITY + 4u * THREADS - 1u) / (4u * THREADS); // of an invocation at most: four entries in a row
const uint COUNTERS = 17u; // of a row: its slices that are done, and of each of 16 slices the shares

shared uint sum_s[TEAMS];
shared uvec3 found_s;
shared uint last_s;
#define key_s query_s

#include "topk_scan.glsl"

uint cells_of(uint total) { return (total + 4u * THREADS - 1u) / (4u * THREADS); }

// arrive: this workgroup is the last of `all` that come to counter i of its row, and sees what all
// have stored. The counter is 0 before the first and after the last.
bool arrive(uint i, uint all) {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0u) {
        const uint64_t at = pc.arrived_addr + uint64_t(t_ * COUNTERS + i) * 4u;
        const uint before = atomicAdd(PickWord(at).v, 1u, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        last_s = before + 1u == all ? 1u : 0u;
        if (last_s != 0u) PickWord(at).v = 0u;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
    return last_s != 0u;
}

int pick_slot(uint entry) {
    const uint column = entry / SLOT_PAGE;
    if (uint(request_) >= pc.slot_requests || column >= pc.slot_width) return -1;
    const int block = Read_int(pc.slot_table_addr).v[uint(request_) * pc.slot_width + column];
    return block < 0 ? -1 : block * int(SLOT_PAGE) + int(entry % SLOT_PAGE);
}

void put_pick(uint p, int entry) {
    PickResult(pc.picks_addr + uint64_t(t_ * pc.k + p) * 4u).v = entry;
    if (SLOT_PAGE > 0u) PickResult(pc.slots_addr + uint64_t(t_ * pc.k + p) * 4u).v = entry < 0 ? -1 : pick_slot(uint(entry));
}

// pick: of the row whose share this workgroup has scored.
void pick() {
    const uint me = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    const uint K = pc.k, stride = (K + 3u) & ~3u, len = min(end_, pc.limit), tiles = (len + CM_M - 1u) / CM_M;
    if (len <= K) {
        if (gl_WorkGroupID.x > 0u) return;
        if (SLOT_PAGE > 0u && me == 0u) PickResult(pc.counts_addr + t_ * 4u).v = int(len);
        [[dont_unroll]] for (uint p = me; p < K; p += THREADS) put_pick(p, p < len ? int(p) : -1);
        return;
    }
    const uint per = pc.group * share_, parts = (tiles + per - 1u) / per, slice = gl_WorkGroupID.x / pc.group;
    if (slice >= parts) return;
    if (!arrive(1u + slice, min(pc.group, gl_NumWorkGroups.x - slice * pc.group))) return;
    const uint begin = slice * per * CM_M;
    uint total = min(len - begin, per * CM_M), cells = cells_of(total);
    const uint64_t scores = pc.dst_addr + uint64_t(t_ * pc.width + begin) * 4u;
    const uint64_t lists = pc.lists_addr + uint64_t(t_ * pc.slices * stride) * 8u, columns = lists + parts * stride * 4u;
    bool from_lists = false;
    uvec4 raw[CELLS];
    for (;;) {
        const uint64_t from = from_lists ? lists : scores;
        [[unroll]] for (uint j = 0u; j < CELLS; j++)
            if (j < cells) raw[j] = PickSeen4(from + uint64_t(min(me * cells + j, (total - 1u) / 4u)) * 16u).v;
#include "topk_best.glsl"
        if (parts == 1u || from_lists) {
            if (SLOT_PAGE > 0u && me == 0u) PickResult(pc.counts_addr + t_ * 4u).v = int(best);
            [[dont_unroll]] for (uint p = me; p < K; p += THREADS) {
                int entry = -1;
                if (p < best) {
                    const uint e = pool_s[p];
                    entry = int(from_lists ? PickWord(columns + e * 4u).v : e);
                }
                put_pick(p, entry);
            }
            return;
        }
        const uint64_t mine = uint64_t(slice * stride) * 4u;
        [[dont_unroll]] for (uint p = me; p < stride; p += THREADS) {
            uint e = 0u, x = 0u;
            if (p < best) {
                e = pool_s[p];
                x = key_s[e / 4u][e & 3u];
            }
            PickWord(lists + mine + p * 4u).v = x;
            PickWord(columns + mine + p * 4u).v = begin + e;
        }

        // TIE RULE: lists before columns, ascending. Here these are the lists of slices, in order.
        if (!arrive(0u, parts)) return;
        from_lists = true;
        total = parts * stride;
        cells = cells_of(total);
    }
}

#endif
