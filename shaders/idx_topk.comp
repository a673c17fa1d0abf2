// Exact top-k: out[t] = the K columns n < lens[t] with the largest logits[t][n], ties to the smaller n, in ascending order, then -1.
//   NaN counts as -inf, -0 as +0. An entry is (key, ~n), 64 bits in the order of the selection; entry (0, 0) is none.
// bindings: 0 logits [T,width] f32, column 0 is entry `first`; 1 lens [T] i32; 2 lists [T, lists*(K+1)] uvec2: the entries of the row's lists,
//   K each, list 0 carried from round to round, list 1+s of slice s, then for each list a bound that its row's K largest reach; 3 out [T,K] i32.
// One workgroup: one row (x), or in stage 1 one slice (y) of it. It holds the best entries so far in shared memory, takes what reaches `low`,
//   a bound that K of the entries seen so far reach, and raises the bound by a radix selection whenever the memory is full. Counters are
//   atomic, and with them the places of entries in shared memory and in lists; the set of the K largest does not depend on places.
// Constants: 0 invocations; 1 CAP, entries held, a multiple of the invocations, > K; 2 BITS of a digit, from 5 to where 2^BITS is 32 times the invocations.
// Shared memory: CAP*8 + 2^BITS*4 + 2^BITS/8 + 20 B. Features: none.
#version 460
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint CAP = 1024u;
layout(constant_id = 2) const uint BITS = 8u;
const uint THREADS = gl_WorkGroupSize.x;
const uint BINS = 1u << BITS;
const uint GROUPS = BINS / 32u;   // of 32 bins
const uint OWN = CAP / THREADS;   // entries of an invocation when memory is compacted
const uint ITEMS = 16u;           // entries that an invocation loads at a time

layout(std430, set = 0, binding = 0) readonly buffer Logits { uint v[]; } logits;
layout(std430, set = 0, binding = 1) readonly buffer Lens { int v[]; } lens;
layout(std430, set = 0, binding = 2) buffer Lists { uvec2 v[]; } lists;
layout(std430, set = 0, binding = 3) writeonly buffer Dst { int v[]; } dst;

layout(push_constant) uniform Push {
    uint k;           // K: below CAP, and rounded up to a power of two not above it
    uint width;       // columns of logits
    uint first;       // entry of column 0: 0, or at least K
    uint limit;       // entries of a row at most: lens counts up to here
    uint lists;       // lists of a row
    uint slice_shift; // a row has 2^slice_shift slices
    uint solo;        // a row of at most so many columns is not sliced
    uint stage;       // 1: slices to lists; 0: rows to dst, or to list 0 where entries follow
} pc;

const uvec2 LEAST = uvec2(1u, 0u); // below every entry but none

shared uint key_s[CAP];
shared uint low_s[CAP];
shared uint bins_s[BINS];
shared uint group_s[GROUPS];
shared uvec3 found_s;
shared uint count_s;

#define K pc.k

uint lane;
uvec2 low; // the same in all invocations

bool below(uvec2 a, uvec2 b) { return a.x < b.x || (a.x == b.x && a.y < b.y); }

// Bits of a float to an unsigned number in the order of the selection, at least 0x007FFFFF.
uint order_key(uint bits) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x007FFFFFu; // NaN as -inf
    if (bits == 0x80000000u) bits = 0u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

void clear_bins() {
    for (uint b = lane; b < BINS; b += THREADS) bins_s[b] = 0u;
    barrier();
}

// With bins counted: the bin in which the need-th largest falls, how many are in higher bins, how many in it.
uvec3 find_bin(uint need) {
    barrier();
    if (lane < GROUPS) {
        uint sum = 0u;
        [[unroll]] for (uint j = 0u; j < 32u; j++) sum += bins_s[lane * 32u + ((j + lane) & 31u)]; // every lane at another bank
        group_s[lane] = sum;
    }
    barrier();
    if (lane == 0u) {
        // Sums from the top: those that stay below need lie above the bin.
        uint sum = 0u, above = 0u, g = GROUPS - 1u;
        [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
            sum += group_s[GROUPS - 1u - i];
            if (sum < need) { above = sum; g = GROUPS - 2u - i; }
        }
        g = min(g, GROUPS - 1u); // as it is, unless there are fewer than need
        uint bin = g * 32u + 31u;
        sum = above;
        [[unroll]] for (uint i = 0u; i < 32u; i++) {
            const uint n = bins_s[g * 32u + 31u - i];
            sum += n;
            if (sum < need) { above = sum; bin = g * 32u + 30u - i; }
        }
        bin = min(bin, BINS - 1u);
        found_s = uvec3(bin, above, bins_s[bin]);
    }
    barrier();
    return found_s;
}

// Raises low to a bound that exactly K of the first count entries held reach, count > K.
void raise(uint count) {
    uvec2 prefix = uvec2(0u), mask = uvec2(0u);
    uint need = K;
    bool done = false;
    for (uint top = 64u; top > 0u && !done;) {
        const bool hi = top > 32u;
        const uint t = hi ? top - 32u : top;
        const uint shift = t > BITS ? t - BITS : 0u;
        const uint digit = (1u << (t - shift)) - 1u;
        clear_bins();
        for (uint e = lane; e < count; e += THREADS) {
            const uint k = key_s[e], l = low_s[e];
            if ((((k ^ prefix.x) & mask.x) | ((l ^ prefix.y) & mask.y)) == 0u) atomicAdd(bins_s[((hi ? k : l) >> shift) & digit], 1u);
        }
        const uvec3 found = find_bin(need);
        need -= found.y;
        if (hi) {
            prefix.x |= found.x << shift;
            mask.x |= digit << shift;
        } else {
            prefix.y |= found.x << shift;
            mask.y |= digit << shift;
        }
        done = found.z == need;
        top = shift + (hi ? 32u : 0u);
    }
    low = prefix;
}

// Keeps the K largest of the count entries held, in any order, and raises low to the least of them. count > K.
void compact(uint count) {
    raise(count);
    uint k[OWN], l[OWN];
    uint kept = 0u, n = 0u; // a bit for each
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        const uint e = i * THREADS + lane;
        k[i] = key_s[e];
        l[i] = low_s[e];
        if (e < count && !below(uvec2(k[i], l[i]), low)) { kept |= 1u << i; n++; }
    }
    if (lane == 0u) count_s = 0u;
    barrier();
    uint at = n > 0u ? atomicAdd(count_s, n) : 0u;
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        if ((kept >> i & 1u) != 0u) {
            if (at < K) { key_s[at] = k[i]; low_s[at] = l[i]; }
            at++;
        }
    }
    barrier();
}

// Raises low to a bound that at least K of the n >= K keys just loaded reach, and not many more. The maxima of fours serve as well where there are
// enough of them: K maxima that reach a bound are K entries that do.
void guess(uint key[ITEMS], uint n) {
    const bool fours = n >= 8u * K;
    uint prefix = 0u, mask = 0u, need = K, top = 32u;
    bool done = false;
    while (!done) {
        const uint shift = top > BITS ? top - BITS : 0u;
        const uint digit = (1u << (top - shift)) - 1u;
        clear_bins();
        [[unroll]] for (uint j = 0u; j < ITEMS; j += 4u) {
            const uint m = max(max(key[j], key[j + 1u]), max(key[j + 2u], key[j + 3u]));
            if (fours) {
                if (((m ^ prefix) & mask) == 0u) atomicAdd(bins_s[(m >> shift) & digit], 1u);
            } else {
                [[unroll]] for (uint i = 0u; i < 4u; i++)
                    if (((key[j + i] ^ prefix) & mask) == 0u) atomicAdd(bins_s[(key[j + i] >> shift) & digit], 1u);
            }
        }
        const uvec3 found = find_bin(need);
        need -= found.y;
        prefix |= found.x << shift;
        mask |= digit << shift;
        top = shift;
        done = top == 0u || found.z <= need + K / 2u;
    }
    if (prefix > low.x) low = uvec2(prefix, 0u);
}

// Orders low_s[0..n) descending, n a power of two, which is the entries' numbers ascending: a bitonic network, two of its steps between barriers.
void order_pair(uint a, uint b, bool descending) {
    const uint x = low_s[a], y = low_s[b];
    if ((x < y) == descending) { low_s[a] = y; low_s[b] = x; }
}

void sort_entries(uint n) {
    for (uint size = 2u; size <= n; size <<= 1) {
        for (uint d = size >> 1; d > 0u;) {
            barrier();
            if (d > 1u) {
                const uint h = d >> 1;
                for (uint q = lane; q < n / 4u; q += THREADS) {
                    const uint i = ((q & ~(h - 1u)) << 2) | (q & (h - 1u));
                    const bool descending = (i & size) == 0u;
                    uint w = low_s[i], x = low_s[i + h], y = low_s[i + d], z = low_s[i + d + h], s;
                    if ((w < y) == descending) { s = w; w = y; y = s; }
                    if ((x < z) == descending) { s = x; x = z; z = s; }
                    if ((w < x) == descending) { s = w; w = x; x = s; }
                    if ((y < z) == descending) { s = y; y = z; z = s; }
                    low_s[i] = w;
                    low_s[i + h] = x;
                    low_s[i + d] = y;
                    low_s[i + d + h] = z;
                }
                d >>= 2;
            } else {
                for (uint q = lane; q < n / 2u; q += THREADS) order_pair(2u * q, 2u * q + 1u, ((2u * q) & size) == 0u);
                d = 0u;
            }
        }
    }
    barrier();
}

// The second half of the entry that an invocation has loaded as its j-th: looked up only where the key is not enough.
#define LOW_OF(j) (from_lists ? lists.v[base + at + (j) * THREADS + lane].y : ~(name + at + (j) * THREADS + lane))

void main() {
    lane = gl_LocalInvocationIndex;
    const uint t = gl_WorkGroupID.x, slice = gl_WorkGroupID.y;
    const uint len = min(uint(max(lens.v[t], 0)), pc.limit);
    const uint columns = len > pc.first ? min(len - pc.first, pc.width) : 0u;
    if (columns == 0u && pc.first > 0u) return; // an earlier round finished this row
    if (len <= K) {
        if (pc.stage == 0u)
            for (uint i = lane; i < K; i += THREADS) dst.v[t * K + i] = i < len ? int(i) : -1;
        return;
    }
    const uint row = t * pc.lists * (K + 1u), bounds = row + pc.lists * K;

    // What this workgroup takes: some lists, then some columns.
    const bool sliced = columns > pc.solo;
    const uint per = (((columns - 1u) >> pc.slice_shift) + 32u) & ~31u; // columns of a slice, so that no slice is needed beyond the last
    uint list = 0u, list_count = 0u, begin = 0u, end = columns;
    if (pc.stage == 1u) {
        begin = slice * per;
        end = min(begin + per, columns);
        if (!sliced || begin >= columns) return;
    } else {
        list = pc.first > 0u ? 0u : 1u;
        list_count = pc.first > 0u ? 1u : 0u;
        if (sliced) {
            list_count += (columns + per - 1u) / per;
            begin = end;
        }
    }
    low = LEAST;
    if (list_count > 0u) low = lists.v[bounds + list];

    uint count = 0u;
    for (uint source = 0u; source < 2u; source++) {
        const bool from_lists = source == 0u;
        const uint total = from_lists ? list_count * K : end - begin;
        if (total == 0u) continue;
        const uint base = from_lists ? row + list * K : t * pc.width + begin;
        const uint name = pc.first + begin;
        if (count + total <= CAP) { // there is room for all
            for (uint e = lane; e < total; e += THREADS) {
                uvec2 c;
                if (from_lists) c = lists.v[base + e];
                else c = uvec2(order_key(logits.v[base + e]), ~(name + e));
                key_s[count + e] = c.x;
                low_s[count + e] = c.y;
            }
            count += total;
            barrier();
            continue;
        }
        if (lane == 0u) count_s = count;
        for (uint at = 0u; at < total; at += THREADS * ITEMS) {
            uint key[ITEMS]; // all loads before any use
            if (from_lists) {
                [[unroll]] for (uint j = 0u; j < ITEMS; j++) key[j] = lists.v[base + min(at + j * THREADS + lane, total - 1u)].x;
            } else {
                [[unroll]] for (uint j = 0u; j < ITEMS; j++) key[j] = logits.v[base + min(at + j * THREADS + lane, total - 1u)];
                [[unroll]] for (uint j = 0u; j < ITEMS; j++) key[j] = order_key(key[j]);
            }
            [[unroll]] for (uint j = 0u; j < ITEMS; j++)
                if (at + j * THREADS + lane >= total) key[j] = 0u;
            if (at == 0u && count < K && total >= K) guess(key, min(total, THREADS * ITEMS));
            uint wanted = (1u << ITEMS) - 1u; // a bit for each
            barrier(); // everybody has read count_s of the batch before
            for (bool full = true; full;) {
                [[unroll]] for (uint j = 0u; j < ITEMS; j++)
                    if (key[j] < low.x || (key[j] == low.x && LOW_OF(j) < low.y)) wanted &= ~(1u << j);
                if (wanted != 0u) {
                    uint place = atomicAdd(count_s, uint(bitCount(wanted)));
                    [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
                        if ((wanted >> j & 1u) == 0u) continue;
                        if (place < CAP) {
                            key_s[place] = key[j];
                            low_s[place] = LOW_OF(j);
                            wanted &= ~(1u << j);
                        }
                        place++;
                    }
                }
                barrier();
                full = count_s > CAP;
                if (full) compact(CAP);
            }
        }
        count = count_s;
    }
    if (count > K) {
        compact(count);
        count = K;
    }

    if (pc.stage == 1u || len > pc.first + pc.width) { // more entries follow
        const uint to = pc.stage == 1u ? 1u + slice : 0u;
        for (uint e = lane; e < K; e += THREADS)
            lists.v[row + to * K + e] = e < count ? uvec2(key_s[e], low_s[e]) : uvec2(0u);
        if (lane == 0u) lists.v[bounds + to] = low;
        return;
    }
    const uint room = K > 1u ? 2u << findMSB(K - 1u) : 1u; // K rounded up to a power of two
    for (uint e = count + lane; e < room; e += THREADS) low_s[e] = 0u;
    sort_entries(room);
    for (uint e = lane; e < K; e += THREADS) dst.v[t * K + e] = int(~low_s[e]);
}
