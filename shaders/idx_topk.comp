// Exact top-k of rows of any length, on any device: out[t] = the K columns n < lens[t] with the
// largest logits[t][n], of equal ones the smaller n, in ascending order, then -1. NaN counts as
// -inf, -0 as +0. A logit is taken as a key, a number in the same order; key 0 is no entry.
// Bindings:  0 logits [T, width] f32, column 0 is entry `first`   1 lens [T] i32
//            2 lists [T][2*lists*KS + 4] u32, KS = K rounded up to 4: the keys of a row's lists, KS
//            each, then their columns, then a bound that list 0 reaches. List 0 is carried from
//            round to round, list 1+s is that of slice s
//            3 out [T, K] i32   4 logits again, by fours; with PAGE:
//            5 block_table [requests, table_width] i32   6 token_to_req [T] i32
//            7 slots [T, K] i32, where out's entries are in a paged cache, -1 for none
//            8 counts [T] i32, entries of out
// Workgroup: a row (x) or, in stage 1, a slice (y) of it: first the entries of lists, then columns,
//   ascending. A radix selection takes what fits registers. Of more, entries that reach a bound are
//   kept in shared memory, in their order, and a selection from them raises the bound whenever that
//   is full. Places come from prefix sums: nothing is sorted, no counter decides an order.
// Constants: 0 invocations; 1 ITEMS of an invocation, a multiple of 4 up to 32; 2 HELD in shared
//   memory, > K, a multiple of 4 up to ITEMS * invocations, or 0: rows have no more than ITEMS *
//   invocations entries; 3 BITS of a digit, from 5 on, 2^BITS up to 32 * invocations; 4 PAGE, slots
//   of a page, or 0: no slots are written.
// Shared memory: HELD*8 + max(2^BITS*8, ROWS*144) + (S + S/16 + ROWS)*4 + 32 bytes,
//   ROWS = invocations * ITEMS / 128, S = max(2^BITS/8, ROWS).
// Features:  none.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ITEMS = 16u;
layout(constant_id = 2) const uint HELD = 1024u;
layout(constant_id = 3) const uint BITS = 8u;
layout(constant_id = 4) const uint PAGE = 0u;
const uint THREADS = gl_WorkGroupSize.x;
const uint CELLS = ITEMS / 4u;            // of an invocation: four entries in a row
const uint BINS = 1u << BITS;
const uint GROUPS = BINS / 8u;            // of 8 bins
const uint ROWS = THREADS * ITEMS / 128u; // of 32 cells
const uint ROOM = HELD > 0u ? HELD : 1u;
const uint HELD_CELLS = (HELD + 4u * THREADS - 1u) / (4u * THREADS);
const uint SUMS = GROUPS > ROWS ? GROUPS : ROWS;
const uint BLOCKS = (SUMS + 15u) / 16u; // of 16 sums
const uint STRIDE = 36u; // of a row of cells: invocations that read a row each meet different banks
const uint POOL = 2u * BINS > ROWS * STRIDE ? 2u * BINS : ROWS * STRIDE;

layout(push_constant) uniform Push {
    uint k;           // K: below HELD
    uint width;       // columns of logits
    uint first;       // entry of column 0: 0, or at least K
    uint limit;       // entries of a row at most: lens counts up to here
    uint lists;       // lists of a row
    uint slice_shift; // a row has 2^slice_shift slices
    uint per;         // columns of a slice, a multiple of 32; 0: they follow from the row's length
    uint solo;        // the most columns of a row that is not sliced
    uint stage;       // 1: slices to lists; 0: rows to dst, or to list 0 where entries follow
    uint flags;       // see WIDE and EARLY
    uint requests;    // rows and columns of block_table
    uint table_width;
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Logits { uint v[]; } logits_buf;
layout(std430, set = 0, binding = 1) readonly buffer Lens { int v[]; } lens_buf;
layout(std430, set = 0, binding = 2) buffer Lists { uvec4 v[]; } lists_buf;
layout(std430, set = 0, binding = 3) writeonly buffer Dst { int v[]; } dst_buf;
layout(std430, set = 0, binding = 4) readonly buffer Logits4 { uvec4 v[]; } logits4_buf;
layout(std430, set = 0, binding = 5) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 6) readonly buffer TokenToReq { int v[]; } token_to_req_buf;
layout(std430, set = 0, binding = 7) writeonly buffer Slots { int v[]; } slots_buf;
layout(std430, set = 0, binding = 8) writeonly buffer Counts { int v[]; } counts_buf;
#include "lib/order_key.glsl"
#include "lib/paged_index.glsl"

const uint WIDE = 1u;  // logits can be loaded by fours: width is a multiple of 4, and the address of 16
const uint EARLY = 2u; // which columns a workgroup takes does not depend on lens: they are loaded along with it

shared uint pool_s[POOL]; // two sets of bins, or cells
shared uint sum_s[SUMS];
shared uint block_s[BLOCKS]; // sums of 16 of those; 0 between uses
shared uint base_s[ROWS + 1u];
shared uvec3 found_s;
shared uint key_s[ROOM];
shared uint column_s[ROOM];

uint lane;
uint row;        // of logits, its first element
uint row_lists;  // of lists, in fours
uint begin, columns_taken;     // columns
uint first_list, list_entries; // in lists: K of each, rounded up to 4
uint low;        // keys below are not looked at; the same in all invocations

// What a selection leaves: keys above ceiling are taken, and the first `need` of those from bottom
// to ceiling. Bottom is above 0.
uint bottom, ceiling, need;
uint sure, tied; // which of an invocation's entries these are, a bit for each

// Cell j of an invocation that has n of them. 32 invocations share rows of 32 cells, which they
// load side by side.
uint cell_of(uint j, uint n) { return (lane & ~31u) * n + j * 32u + (lane & 31u); }

uint list_stride() { return (pc.k + 3u) & ~3u; }

// Loads logits of the columns at .. at + THREADS * ITEMS, those past the end in any way.
void load_columns(out uint key[ITEMS], uint at, uint count) {
    if ((pc.flags & WIDE) != 0u) {
        const uint from = (row + begin + at) / 4u, last = (count - at - 1u) / 4u;
        [[unroll]] for (uint j = 0u; j < CELLS; j++) {
            const uvec4 four = logits4_buf.v[from + min(cell_of(j, CELLS), last)];
            [[unroll]] for (uint i = 0u; i < 4u; i++) key[4u * j + i] = four[i];
        }
    } else {
        const uint from = row + begin + at, last = count - at - 1u;
        [[unroll]] for (uint j = 0u; j < CELLS; j++)
            [[unroll]] for (uint i = 0u; i < 4u; i++) key[4u * j + i] = logits_buf.v[from + min(cell_of(j, CELLS) * 4u + i, last)];
    }
}

// Loads the entries at .. at + THREADS * ITEMS, which begin in lists.
// TIE RULE: lists before columns, ascending.
void load_lists(out uint key[ITEMS], uint at) {
    [[unroll]] for (uint j = 0u; j < CELLS; j++) {
        const uint e = at + 4u * cell_of(j, CELLS);
        uvec4 four = uvec4(0u);
        if (e < list_entries) {
            four = lists_buf.v[row_lists + (first_list * list_stride() + e) / 4u];
        } else if (e < list_entries + columns_taken) {
            const uint n = e - list_entries, from = row + begin, last = columns_taken - 1u;
            if ((pc.flags & WIDE) != 0u) four = logits4_buf.v[(from + n) / 4u];
            else [[unroll]] for (uint i = 0u; i < 4u; i++) four[i] = logits_buf.v[from + min(n + i, last)];
        }
        [[unroll]] for (uint i = 0u; i < 4u; i++) key[4u * j + i] = four[i];
    }
}

// Makes keys of what was loaded: 0 past the end and below low.
void make_keys(inout uint key[ITEMS], uint at) {
    [[unroll]] for (uint j = 0u; j < CELLS; j++) {
        const uint e = at + 4u * cell_of(j, CELLS);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint x = key[4u * j + i];
            if (e >= list_entries) x = order_key(x);
            key[4u * j + i] = e + i < list_entries + columns_taken && x >= low ? x : 0u;
        }
    }
}

// The column of an entry.
uint column_of(uint e) {
    if (e >= list_entries) return pc.first + begin + e - list_entries;
    const uint at = (pc.lists + first_list) * list_stride() + e;
    return lists_buf.v[row_lists + at / 4u][at & 3u];
}

void clear_bins() {
    for (uint b = lane; b < 2u * BINS; b += THREADS) pool_s[b] = 0u;
    barrier();
}

// Sums of 8 or 32 counters and of 16 of those sums are enough that nobody adds up more than 16 of
// anything: a chain of dependent additions is what takes the time here, and so few counters of
// blocks do not wait for each other long.
void put_sum(uint i, uint sum) {
    sum_s[i] = sum;
    atomicAdd(block_s[i / 16u], sum);
}

void clear_blocks() {
    if (lane < BLOCKS) block_s[lane] = 0u; // a barrier before the next put_sum has to follow
}

// With the bins of one set counted: the bin in which the n-th largest falls, how many are in higher
// bins, how many in it. Clears the other set.
uvec3 find_bin(uint set, uint n) {
    barrier();
    for (uint g = lane; g < GROUPS; g += THREADS) {
        uint sum = 0u;
        [[unroll]] for (uint j = 0u; j < 8u; j++) sum += pool_s[set + g * 8u + ((j + g / 4u) & 7u)]; // every lane at another bank
        put_sum(g, sum);
    }
    for (uint b = lane; b < BINS; b += THREADS) pool_s[(set ^ BINS) + b] = 0u;
    barrier();
    for (uint g = lane; g < GROUPS; g += THREADS) {
        uint above = 0u, rest = 0u;
        [[unroll]] for (uint i = 1u; i < (GROUPS + 15u) / 16u; i++) above += i > g / 16u ? block_s[i] : 0u;
        [[unroll]] for (uint i = 1u; i < 16u; i++) {
            const uint other = (g & ~15u) + i;
            rest += i > g % 16u && other < GROUPS ? sum_s[min(other, GROUPS - 1u)] : 0u;
        }
        above += rest;
        if (above < n && n - above <= sum_s[g]) {
            uint bin = 0u, before = 0u, count = 0u;
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                const uint b = g * 8u + 7u - i, c = pool_s[set + b];
                if (above < n) { bin = b; before = above; count = c; }
                above += c;
            }
            found_s = uvec3(bin, before, count);
        }
    }
    barrier();
    clear_blocks();
    return found_s;
}

// Finds which K of the keys of all invocations are the largest, n cells of each; at least K are not
// 0. Bins are clear.
void select_keys(uint key[ITEMS], uint n) {
    need = pc.k;
    uint prefix = 0u, set = 0u, top = 32u;
    for (bool more = true; more;) {
        const uint shift = top > BITS ? top - BITS : 0u;
        const uint digit = (1u << (top - shift)) - 1u;
        [[unroll]] for (uint j = 0u; j < CELLS; j++) {
            if (j >= n) continue;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint x = key[4u * j + i], d = (x - prefix) >> shift;
                if (x != 0u && d <= digit) atomicAdd(pool_s[set + d], 1u); // d is more where digits above differ
            }
        }
        const uvec3 found = find_bin(set, need);
        need -= found.y;
        prefix |= found.x << shift;
        top = shift;
        set ^= BINS;
        bottom = max(prefix, 1u);
        ceiling = prefix | ((1u << shift) - 1u);
        if (found.z == need) { // all of the bin
            ceiling = bottom - 1u;
            need = 0u;
        }
        more = top > 0u && need > 0u;
    }
}

// Takes whatever is there.
void select_all() {
    bottom = 1u;
    ceiling = 0u;
    need = 0u;
}

// Raises low to a bound that at least K of the n >= K keys just loaded reach, and not many more.
// The maxima of fours serve as well where there are enough of them: K maxima that reach a bound are
// K entries that do.
void guess(uint key[ITEMS], uint n) {
    const bool fours = n >= 8u * pc.k;
    uint bound = 0u, rest = pc.k, set = 0u, top = 32u;
    bool done = false;
    clear_bins();
    while (!done) {
        const uint shift = top > BITS ? top - BITS : 0u;
        const uint digit = (1u << (top - shift)) - 1u;
        [[unroll]] for (uint j = 0u; j < CELLS; j++) {
            uint m = 0u;
            [[unroll]] for (uint i = 0u; i < 4u; i++) m = max(m, key[4u * j + i]);
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint d = ((fours ? m : key[4u * j + i]) - bound) >> shift;
                if (d <= digit && (i == 0u || !fours)) atomicAdd(pool_s[set + d], 1u);
            }
        }
        const uvec3 found = find_bin(set, rest);
        rest -= found.y;
        bound |= found.x << shift;
        top = shift;
        set ^= BINS;
        done = top == 0u || found.z <= rest + pc.k / 2u;
    }
    low = max(low, bound);
}

// Sums of what was put into the cells before each of them, n cells of every invocation: that of
// cell j is before(j, n). Leaves the sum of all in base_s[ROWS]. A sum may hold two numbers of 16
// bits.
void put_cell(uint j, uint n, uint count) { pool_s[((lane >> 5) * n + j) * STRIDE + (lane & 31u)] = count; }
uint before(uint j, uint n) {
    const uint r = (lane >> 5) * n + j;
    return base_s[r] + pool_s[r * STRIDE + (lane & 31u)];
}

void sum_cells(uint n) {
    const uint rows = THREADS / 32u * n;
    barrier();
    if (lane < rows) {
        uint sum = 0u;
        for (uint i = 0u; i < 32u; i += 8u) { // few registers
            uint x[8];
            [[unroll]] for (uint m = 0u; m < 8u; m++) x[m] = pool_s[lane * STRIDE + i + m];
            [[unroll]] for (uint m = 0u; m < 8u; m++) {
                pool_s[lane * STRIDE + i + m] = sum;
                sum += x[m];
            }
        }
        put_sum(lane, sum);
    }
    barrier();
    if (lane < rows) {
        uint sum = 0u, rest = 0u;
        [[unroll]] for (uint i = 0u; i < (ROWS + 15u) / 16u - 1u; i++) sum += i < lane / 16u ? block_s[i] : 0u;
        [[unroll]] for (uint i = 0u; i < 15u; i++) rest += i < lane % 16u ? sum_s[(lane & ~15u) + i] : 0u;
        sum += rest;
        base_s[lane] = sum;
        if (lane == rows - 1u) base_s[ROWS] = sum + sum_s[lane];
    }
    barrier();
    clear_blocks();
}

// Says which entries of an invocation are taken, and sums over those before.
void rank_keys(uint key[ITEMS], uint n) {
    sure = 0u;
    tied = 0u;
    [[unroll]] for (uint j = 0u; j < 4u * CELLS; j++) {
        if (j >= 4u * n) continue;
        if (key[j] > ceiling) sure |= 1u << j;
        else if (key[j] >= bottom) tied |= 1u << j;
    }
    [[unroll]] for (uint j = 0u; j < CELLS; j++)
        if (j < n) put_cell(j, n, uint(bitCount((sure >> (4u * j)) & 15u) | bitCount((tied >> (4u * j)) & 15u) << 16));
    sum_cells(n);
}

bool ranked(uint e) { return ((sure | tied) >> e & 1u) != 0u; }

// The place of entry e of an invocation among those taken, K or more if it is not taken. Where the
// first of a cell has none before it but sum, the next has the sum as this leaves it.
uint place_of(uint e, inout uint sum) {
    const uint above = sum & 0xFFFFu, at = sum >> 16;
    const bool s = (sure >> e & 1u) != 0u, d = (tied >> e & 1u) != 0u;
    sum += s ? 1u : d ? 1u << 16 : 0u;
    return s || (d && at < need) ? above + min(at, need) : 0xFFFFFFFFu; // TIE RULE: the first `need` of equal keys, by column
}

// The keys and columns held in shared memory, of which there are count.
void load_held(out uint key[ITEMS], out uint column[ITEMS], uint count) {
    [[unroll]] for (uint j = 0u; j < HELD_CELLS; j++) {
        const uint e = 4u * cell_of(j, HELD_CELLS);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            key[4u * j + i] = e + i < count ? key_s[e + i] : 0u;
            column[4u * j + i] = e + i < count ? column_s[e + i] : 0u;
        }
    }
}

// Keeps the K largest of the HELD entries, in their order, and raises low to what later entries
// have to reach.
void compact() {
    uint key[ITEMS], column[ITEMS];
    barrier();
    load_held(key, column, HELD);
    clear_bins();
    select_keys(key, HELD_CELLS);
    rank_keys(key, HELD_CELLS);
    [[unroll]] for (uint j = 0u; j < HELD_CELLS; j++) {
        uint sum = before(j, HELD_CELLS);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint place = place_of(4u * j + i, sum);
            if (place < pc.k) {
                key_s[place] = key[4u * j + i];
                column_s[place] = column[4u * j + i];
            }
        }
    }
    low = max(low, need > 0u ? bottom + 1u : bottom); // TIE RULE: later columns with the key of the last place lose
    barrier();
}

// Writes an entry, or -1, to its place.
void put(uint t, uint place, int entry) {
    dst_buf.v[t * pc.k + place] = entry;
    if (PAGE > 0u) slots_buf.v[t * pc.k + place] = entry < 0 ? -1 : paged_slot(token_to_req_buf.v[t], uint(entry), PAGE);
}

// Writes the selection from the entries of all invocations, n cells of each, to dst or, where
// others read it, to a list.
void emit(uint t, uint list, bool to_list, uint key[ITEMS], uint column[ITEMS], uint n) {
    const uint keys = 4u * row_lists + list * list_stride();
    [[unroll]] for (uint j = 0u; j < CELLS; j++) {
        if (j >= n) continue;
        uint sum = before(j, n);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint place = place_of(4u * j + i, sum);
            if (place < pc.k) {
                if (to_list) {
                    const uint at = keys + place, to = at + pc.lists * list_stride();
                    lists_buf.v[at / 4u][at & 3u] = key[4u * j + i];
                    lists_buf.v[to / 4u][to & 3u] = column[4u * j + i];
                } else {
                    put(t, place, int(column[4u * j + i]));
                }
            }
        }
    }
    if (PAGE > 0u && !to_list && lane == 0u) counts_buf.v[t] = int(pc.k);
    if (to_list) {
        const uint all = base_s[ROWS], taken = (all & 0xFFFFu) + min(all >> 16, need);
        for (uint e = taken + lane; e < list_stride(); e += THREADS) lists_buf.v[(keys + e) / 4u][(keys + e) & 3u] = 0u;
        if (list == 0u && lane == 0u) lists_buf.v[row_lists + pc.lists * list_stride() / 2u].x = bottom;
    }
}

void main() {
    lane = gl_LocalInvocationIndex;
    clear_blocks();
    const uint t = gl_WorkGroupID.x, slice = gl_WorkGroupID.y;
    row = t * pc.width;
    row_lists = t * (pc.lists * list_stride() / 2u + 1u);
    begin = pc.stage == 1u ? slice * pc.per : 0u;
    uint key[ITEMS];
    const bool early = (pc.flags & EARLY) != 0u;
    if (early) {
        if (begin >= pc.width) return;
        load_columns(key, 0u, pc.per > 0u ? min(pc.per, pc.width - begin) : pc.width);
    }

    const uint len = min(uint(max(lens_buf.v[t], 0)), pc.limit);
    const uint columns = len > pc.first ? min(len - pc.first, pc.width) : 0u;
    if (columns == 0u && pc.first > 0u) return; // an earlier round finished this row
    if (len <= pc.k) {
        if (pc.stage == 0u) {
            for (uint i = lane; i < pc.k; i += THREADS) put(t, i, i < len ? int(i) : -1);
            if (PAGE > 0u && lane == 0u) counts_buf.v[t] = int(len);
        }
        return;
    }

    // What this workgroup takes: some lists, then some columns.
    const bool sliced = columns > pc.solo;
    const uint per = pc.per > 0u ? pc.per : (((columns - 1u) >> pc.slice_shift) + 32u) & ~31u; // so that no slice is needed beyond the last
    list_entries = 0u;
    first_list = pc.first > 0u ? 0u : 1u;
    columns_taken = columns;
    if (pc.stage == 1u) {
        begin = slice * per;
        if (!sliced || begin >= columns) return;
        columns_taken = min(per, columns - begin);
    } else {
        if (sliced) {
            list_entries = (columns + per - 1u) / per * list_stride();
            columns_taken = 0u;
        }
        if (pc.first > 0u) list_entries += list_stride();
    }
    const uint total = list_entries + columns_taken;
    const bool to_list = pc.stage == 1u || len > pc.first + pc.width; // others read it, or more entries follow
    const uint list = pc.stage == 1u ? 1u + slice : 0u;
    low = 1u;
    if (pc.stage == 0u && pc.first > 0u) low = max(1u, lists_buf.v[row_lists + pc.lists * list_stride() / 2u].x);

    uint column[ITEMS];
    if (HELD == 0u || total <= THREADS * ITEMS) {
        if (!early) {
            if (list_entries > 0u) load_lists(key, 0u);
            else load_columns(key, 0u, total);
        }
        clear_bins();
        make_keys(key, 0u);
        if (total > pc.k) select_keys(key, CELLS);
        else select_all(); // of a slice
        rank_keys(key, CELLS);
        if (list_entries == 0u) {
            [[unroll]] for (uint j = 0u; j < CELLS; j++)
                [[unroll]] for (uint i = 0u; i < 4u; i++) column[4u * j + i] = pc.first + begin + 4u * cell_of(j, CELLS) + i;
        } else { // all loads before any use
            [[unroll]] for (uint j = 0u; j < CELLS; j++) {
                const uint e = 4u * cell_of(j, CELLS);
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    column[4u * j + i] = 0u;
                    if (ranked(4u * j + i)) column[4u * j + i] = column_of(e + i);
                }
            }
        }
        if (to_list && list_entries > 0u) { // list 0 is read before it is written
            memoryBarrierBuffer();
            barrier();
        }
        emit(t, list, to_list, key, column, CELLS);
        return;
    }

    uint count = 0u;
    for (uint at = 0u; at < total; at += THREADS * ITEMS) {
        if (at < list_entries) load_lists(key, at);
        else load_columns(key, at - list_entries, columns_taken);
        make_keys(key, at);
        if (at == 0u && low == 1u && list_entries == 0u) guess(key, THREADS * ITEMS);
        uint wanted = 0u; // a bit for each
        [[unroll]] for (uint j = 0u; j < ITEMS; j++) wanted |= key[j] != 0u ? 1u << j : 0u;
        for (bool full = true; full;) {
            [[unroll]] for (uint j = 0u; j < ITEMS; j++)
                if (key[j] < low) wanted &= ~(1u << j);
            [[unroll]] for (uint j = 0u; j < CELLS; j++) put_cell(j, CELLS, uint(bitCount((wanted >> (4u * j)) & 15u)));
            sum_cells(CELLS);
            [[unroll]] for (uint j = 0u; j < CELLS; j++) {
                uint place = count + before(j, CELLS);
                const uint e = at + 4u * cell_of(j, CELLS);
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    if ((wanted >> (4u * j + i) & 1u) == 0u) continue;
                    if (place < HELD) {
                        key_s[place] = key[4u * j + i];
                        column_s[place] = column_of(e + i);
                        wanted &= ~(1u << (4u * j + i));
                    }
                    place++;
                }
            }
            count += base_s[ROWS];
            full = count > HELD;
            if (full) {
                compact();
                count = pc.k;
            } else {
                barrier(); // the cells are read
            }
        }
    }
    load_held(key, column, count);
    clear_bins();
    if (count > pc.k) select_keys(key, HELD_CELLS);
    else select_all();
    rank_keys(key, HELD_CELLS);
    emit(t, list, to_list, key, column, HELD_CELLS);
}
