// Exact top-k by tiles: computes what idx_topk.comp does, given the largest of every TILE entries
// (its top). A row is two selections: of the K tiles with the largest tops, the first of equal
// ones, and of the K largest of their entries. docs/design/select.md proves that this is exact.
// By address: logits [T, width] f32 and tops [T, tops_width] i32 (idx_logits_lanes.comp), both by
//   fours; lens [T] i32; dst [T, K] i32.
//   With PAGE: block_table [requests, table_width] i32; token_to_req [T] i32; slots [T, K] i32;
//     counts [T] i32; see idx_topk.comp.
// Workgroup: a row, whose numbers it holds in registers. Both selections run the same code, which
//   in a step comes from memory.
// Constants: 0 invocations, a multiple of SUBGROUP; 1 BITS of a digit, 2^BITS a multiple of the
//   invocations; 2 PLACES, the larger of 2^BITS and K; 3 PAGE, slots of a page, or 0: no slots are
//   written; 4 SUBGROUP; 5 TILE, a multiple of 4; 6 QUADS, fours that an invocation holds: together
//   they have room for K*TILE numbers, and for the tops of a row.
// Shared memory: (2*PLACES + invocations/SUBGROUP)*4 + 12 bytes.
// Features:  bufferDeviceAddress, shaderInt64, subgroupShuffle, subgroupSizeControl,
//   computeFullSubgroups.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#define ADDRESSED
#include "lib/tensors.glsl"
#include "lib/order_key.glsl"

layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint BITS = 8u;
layout(constant_id = 2) const uint PLACES = 1024u;
layout(constant_id = 3) const uint PAGE = 0u;
layout(constant_id = 4) const uint SUBGROUP = 8u;
layout(constant_id = 5) const uint TILE = 8u;
layout(constant_id = 6) const uint QUADS = 1u;
const uint THREADS = gl_WorkGroupSize.x;
const uint TEAMS = THREADS / SUBGROUP;
const uint BINS = 1u << BITS;
const uint OWN = BINS / THREADS; // bins of an invocation
const uint ROOM = 4u * QUADS * THREADS;

layout(push_constant) uniform Push {
    uint64_t logits_addr;
    uint64_t tops_addr;
    uint64_t lens_addr;
    uint64_t dst_addr;
    uint64_t block_table_addr;
    uint64_t token_to_req_addr;
    uint64_t slots_addr;
    uint64_t counts_addr;
    uint k;      // K
    uint width;  // columns of logits, a multiple of 4
    uint tops_width; // columns of tops, a multiple of 4
    uint limit;  // entries of a row at most: lens counts up to here
    uint requests; // rows and columns of block_table
    uint table_width;
} pc;
TENSOR(uvec4, logits, 0)
TENSOR(uvec4, tops, 1)
TENSOR(int, lens, 2)
TENSOR(int, token_to_req, 3)
TENSOR_OUT(int, dst, 4)
TENSOR_OUT(int, slots, 5)
TENSOR_OUT(int, counts, 6)
#define block_table Read_int(pc.block_table_addr)
#include "lib/paged_index.glsl"

shared uint pool_s[2u * PLACES]; // bins, 0 when nobody counts, or the entries that are taken; and the tiles that are
shared uint sum_s[TEAMS];
shared uvec3 found_s;

#include "lib/topk_scan.glsl"

uint quads_of(uint total) { return (total + 3u) / 4u; }
uint each_of(uint total) { return (quads_of(total) + THREADS - 1u) / THREADS; }

// An invocation's part of the tops of `tiles` tiles, those past the end in any way; no load waits
// for another.
void load_tops(inout uvec4 key[QUADS], uint t, uint tiles, uint me) {
    const uint each = each_of(tiles), last = pc.tops_width / 4u - 1u;
    [[unroll]] for (uint j = 0u; j < QUADS; j++)
        if (j < each) key[j] = tops_at(t * (pc.tops_width / 4u) + min(me * each + j, last));
}

// The column of the first entry of quad c of the tiles that are taken.
uint column_of(uint c) { return pool_s[PLACES + 4u * c / TILE] * TILE + 4u * c % TILE; }

void main() {
    const uint me = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    const uint t = gl_WorkGroupID.x, K = pc.k;
    const uint most = (pc.limit + TILE - 1u) / TILE;
    uvec4 key[QUADS];
    load_tops(key, t, most, me); // does not wait for the length, which may be that of the longest row
    const int request = PAGE > 0u ? token_to_req_at(t) : 0; // early, too
    const uint len = min(uint(max(lens_at(t), 0)), pc.limit), tiles = (len + TILE - 1u) / TILE;
    uint taken = len;
    if (len > K) {
        // Selections are of `total` numbers: tops, or entries of the tiles in pool_s, of which
        // those below `least` are not among the K largest.
        bool entries = tiles <= K;
        uint total = tiles, least = 1u;
        if (entries) {
            [[dont_unroll]] for (uint p = me; p < tiles; p += THREADS) pool_s[PLACES + p] = p;
            barrier();
            total = tiles * TILE;
        } else if (each_of(tiles) != each_of(most)) {
            load_tops(key, t, tiles, me);
        }
        for (;;) {
            const uint quads = quads_of(total), each = each_of(total), first_quad = me * each;
            if (entries) {
                [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                    if (j >= each) continue;
                    const uint column = column_of(min(first_quad + j, quads - 1u));
                    key[j] = logits_at((t * pc.width + min(column, pc.width - 4u)) / 4u);
                }
            }
            [[dont_unroll]] for (uint b = me; b < BINS; b += THREADS) pool_s[b] = 0u;
            // Numbers that do not count become 0.
            [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                if (j >= each) continue;
                const uint c = first_quad + j, place = entries ? column_of(min(c, quads - 1u)) : 4u * c;
                const uint end = c >= quads ? 0u : entries ? len : total;
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    key[j][i] = entries ? order_key(key[j][i]) : order_key_of_top(key[j][i]);
                    if (place + i >= end || key[j][i] < least) key[j][i] = 0u;
                }
            }
            barrier();

            // Keys above ceiling are taken, and the first `need` of those from bottom to ceiling.
            uint bottom = 1u, ceiling = 0u, need = K, picked = K, prefix = 0u, top = 32u;
            [[dont_unroll]] do {
                const uint shift = max(top, BITS) - BITS, digit = (1u << (top - shift)) - 1u;
                [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                    if (j >= each) continue;
                    [[unroll]] for (uint i = 0u; i < 4u; i++) {
                        const uint d = (key[j][i] - prefix) >> shift; // more than digit where digits above differ
                        if (key[j][i] > 0u && d <= digit) atomicAdd(pool_s[d], 1u);
                    }
                }
                barrier();
#include "lib/topk_digit.glsl"
                // All of the bin; more tiles than K do no harm where there is room for their
                // entries.
                picked = K - need + found.z;
                if (found.z == need || !entries && picked <= min(ROOM / TILE, PLACES)) {
                    ceiling = bottom - 1u;
                    need = 0u;
                }
            } while (top > 0u && need > 0u);

            const uint tiles_picked = need > 0u ? K : picked;

            // Those that are taken, in their order.
            uint sum = 0u; // taken for sure, and ties in the upper half
            [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                if (j >= each) continue;
                [[unroll]] for (uint i = 0u; i < 4u; i++) sum += key[j][i] > ceiling ? 1u : key[j][i] >= bottom ? 0x10000u : 0u;
            }
            uint at = scan(sum).x;
            const uint to = entries ? 0u : PLACES;
            [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                const uint c = first_quad + j;
                if (j >= each || c >= quads) continue;
                const uint place = entries ? column_of(c) : 4u * c;
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    const uint above = at & 0xFFFFu, ties = at >> 16;
                    const bool sure = key[j][i] > ceiling, tied = !sure && key[j][i] >= bottom;
                    // TIE RULE: the first `need` of equal keys, by column.
                    // The line serves tops and entries.
                    if (sure || tied && ties < need) pool_s[to + above + min(ties, need)] = place + i;
                    at += sure ? 1u : tied ? 0x10000u : 0u;
                }
            }
            barrier();
            if (entries) break;
            entries = true;
            total = tiles_picked * TILE;
            least = bottom;
        }
        taken = K;
    }
    if (PAGE > 0u && me == 0u) counts_put(t, int(taken));
    [[dont_unroll]] for (uint p = me; p < K; p += THREADS) {
        const int entry = p >= taken ? -1 : int(len > K ? pool_s[p] : p);
        dst_put(t * K + p, entry);
        if (PAGE > 0u) slots_put(t * K + p, entry < 0 ? -1 : paged_slot(request, uint(entry), PAGE));
    }
}
