// How a workgroup selects the K best of `total` entries: statements, for a launch that may run them
// again for lists of candidates. In a step a kernel's code comes from memory, so that each byte
// that is executed takes time: loops are not unrolled.
//
// An invocation, `me`, has `cells` fours of entries in raw, as bits of f32, or from_lists as keys;
// 0 is the key of no entry. In the end pool_s has the columns of the `best` that are taken, in
// order, and key_s all keys.
for (uint b = me; b < BINS; b += THREADS) pool_s[b] = 0u;
[[unroll]] for (uint j = 0u; j < CELLS; j++) {
    const uint c = me * cells + j;
    if (j >= cells || 4u * c >= total) continue;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        if (!from_lists) raw[j][i] = order_key(raw[j][i]);
        if (4u * c + i >= total) raw[j][i] = 0u;
    }
    key_s[c] = raw[j];
}
barrier();
const uint first_cell = me * cells, last_cell = min(first_cell + cells, (total + 3u) / 4u);

// Keys above ceiling are taken, and the first `need` of those from bottom to ceiling.
uint bottom = 1u, ceiling = 0u, need = 0u;
if (total > K) {
    uint prefix = 0u, top = 32u;
    need = K;
    [[dont_unroll]] do {
        const uint shift = max(top, BITS) - BITS, digit = (1u << (top - shift)) - 1u;
        [[dont_unroll]] for (uint c = first_cell; c < last_cell; c++) {
            const uvec4 key = key_s[c];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint d = (key[i] - prefix) >> shift; // more than digit where digits above differ
                if (d <= digit) atomicAdd(pool_s[d], 1u);
            }
        }
        barrier();
#include "topk_digit.glsl"
        if (found.z == need) { // all of the bin
            ceiling = bottom - 1u;
            need = 0u;
        }
    } while (top > 0u && need > 0u);
}

// Those that are taken, in their order.
uint sum = 0u; // taken for sure, and ties in the upper half
[[dont_unroll]] for (uint c = first_cell; c < last_cell; c++) {
    const uvec4 key = key_s[c];
    [[unroll]] for (uint i = 0u; i < 4u; i++) sum += key[i] > ceiling ? 1u : key[i] >= bottom ? 0x10000u : 0u;
}
const uvec2 sums = scan(sum);
uint at = sums.x;
[[dont_unroll]] for (uint c = first_cell; c < last_cell; c++) {
    const uvec4 key = key_s[c];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint above = at & 0xFFFFu, ties = at >> 16;
        const bool sure = key[i] > ceiling, tied = !sure && key[i] >= bottom;
        if (sure || tied && ties < need) pool_s[above + min(ties, need)] = 4u * c + i; // TIE RULE: the first `need`, by column
        at += sure ? 1u : tied ? 0x10000u : 0u;
    }
}
barrier();
const uint best = (sums.y & 0xFFFFu) + min(sums.y >> 16, need);
