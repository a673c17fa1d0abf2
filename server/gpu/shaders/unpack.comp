// Takes blocks apart as they are stored: codes and scales get memory of their own, and bits of
// codes move to where products decode them with fewest instructions.
// Bindings: 0 blocks as stored, 1 codes, 2 scales.
// Workgroup: 32 blocks.
// Shared memory: these blocks, 6720 bytes of Q6_K, the largest.
// Features: none.
// Constants: 0 FORMAT, as lib/weights.glsl numbers it; 1 BYTES of a block, for MXFP4 17 with its
// scale in front, or 16 without.
#version 460
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORMAT = 4u;
layout(constant_id = 1) const uint BYTES = 16u;
layout(push_constant) uniform Push {
    uint count; // blocks
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Stored { uvec4 v[]; } stored;
layout(std430, set = 0, binding = 1) writeonly buffer Codes { uvec4 v[]; } codes;
layout(std430, set = 0, binding = 2) writeonly buffer Scales { uint v[]; } scales;

const uint MXFP4 = 4u, Q8_0 = 6u, Q4_K = 7u, Q2_K = 8u, Q6_K = 9u, IQ2_XXS = 10u;
const uint BLOCKS = 32u; // so that their bytes are whole quads

shared uint words[BLOCKS * BYTES / 4u + 1u];

// at: four bytes of the workgroup's blocks, from any byte on.
uint at(uint first) {
    const uint shift = 8u * (first % 4u);
    const uint low = words[first / 4u];
    return shift == 0u ? low : low >> shift | words[first / 4u + 1u] << (32u - shift);
}

uvec4 quadAt(uint first) { return uvec4(at(first), at(first + 4u), at(first + 8u), at(first + 12u)); }

// E2M1: codes of a byte, a in front of b in the row, from sb b2 b1 b0 sa a2 a1 a0 to
// sa b2 b1 b0 a2 a1 a0 sb.
uvec4 e2m1(uvec4 w) {
    return (w & 0x70707070u) | ((w & 0x07070707u) << 1) | ((w & 0x08080808u) << 4) | ((w >> 7) & 0x01010101u);
}

// nibbles: the lower halves of eight bytes, in their order.
uint nibbles(uint low, uint high) {
    uvec2 t = uvec2(low, high) & 0x0F0F0F0Fu;
    t = (t | t >> 4) & 0x00FF00FFu;
    t = (t | t >> 8) & 0x0000FFFFu;
    return t.x | t.y << 16;
}

// Q2_K: codes w of the bytes of a quad; each byte has one each of four groups of four.
uint twos(uvec4 q, uint w) {
    const uvec4 t = q >> (2u * w) & 0x03030303u;
    return t.x | t.y << 2 | t.z << 4 | t.w << 6;
}

// IQ2_XXS: a word with seven signs for each of four rows of the grid, which are transposed: that
// of value 4h+b of row j goes to bit 8b+4h+j. Its upper four bits, a scale, stay.
uint signs(uint word) {
    uint moved = word & 0xF0000000u;
    for (uint k = 0u; k < 7u; k++) {
        for (uint j = 0u; j < 4u; j++) moved |= ((word >> (7u * j + k)) & 1u) << (k % 4u * 8u + k / 4u * 4u + j);
    }
    return moved;
}

// fours: codes of eight bytes, one of the first four and one of the last four in a byte. A product
// takes four neighbours out of a word by one mask.
uint fours(uint first, uint shift, uint bits) {
    const uint mask = bits == 4u ? 0x0F0F0F0Fu : 0x03030303u;
    return (at(first) >> shift & mask) | (at(first + 4u) >> shift & mask) << bits;
}

// q6: word w of a block. Of each 12 words eight have the low four bits, 8 numbers a word, and four
// the high two, 16 a word.
uint q6(uint block, uint w) {
    const uint of = w % 12u, i = w / 12u * 4u + (of < 8u ? of / 2u : of - 8u); // of 16 pieces of 16 numbers
    const uint part = i / 8u, group = i % 8u / 2u;
    const uint low = block + 64u * part + 32u * (group % 2u) + 16u * (i % 2u);
    const uint high = block + 128u + 32u * part + 16u * (i % 2u);
    return of < 8u ? fours(low + 8u * (of % 2u), 4u * (group / 2u), 4u)
                   : fours(high, 2u * group, 2u) | fours(high + 8u, 2u * group, 2u) << 4;
}

uint quadsOf() { return FORMAT == Q6_K ? 12u : FORMAT == Q4_K ? 8u : FORMAT == MXFP4 ? 1u : FORMAT == Q8_0 ? 2u : 4u; }

// codesOf: quad j of the codes of a block that begins at a byte.
uvec4 codesOf(uint block, uint j) {
    switch (FORMAT) {
    case MXFP4: {
        if (BYTES == 16u) return e2m1(quadAt(block));
        const uvec4 q = quadAt(block + 1u); // byte i has numbers i and i + 16
        return e2m1(uvec4(nibbles(q.x, q.y), nibbles(q.z, q.w), nibbles(q.x >> 4, q.y >> 4), nibbles(q.z >> 4, q.w >> 4)));
    }
    case Q8_0: return quadAt(block + 2u + 16u * j);
    case Q4_K: {
        const uint first = block + 16u + j / 2u * 32u, shift = j % 2u * 4u;
        return uvec4(fours(first, shift, 4u), fours(first + 8u, shift, 4u), fours(first + 16u, shift, 4u), fours(first + 24u, shift, 4u));
    }
    case Q2_K: {
        const uvec4 q = quadAt(block + 16u + j / 2u * 32u), next = quadAt(block + 32u + j / 2u * 32u);
        const uint w = j % 2u * 2u;
        return uvec4(twos(q, w), twos(next, w), twos(q, w + 1u), twos(next, w + 1u));
    }
    case Q6_K: return uvec4(q6(block, 4u * j), q6(block, 4u * j + 1u), q6(block, 4u * j + 2u), q6(block, 4u * j + 3u));
    }
    const uvec4 q = quadAt(block + 2u + 16u * j);
    return uvec4(q.x, signs(q.y), q.z, signs(q.w));
}

// Bytes of scales of a block.
uint scalesOf() { return FORMAT == Q4_K ? 16u : FORMAT == Q2_K || FORMAT == Q6_K ? 20u : FORMAT == MXFP4 ? BYTES - 16u : 2u; }

// k4: the high bits of scales and minima of Q4_K, a nibble for each.
uint k4(uvec2 s) {
    uint high = 0u;
    for (uint i = 0u; i < 4u; i++) {
        const uvec2 b = s >> (8u * i) & 0xFFu;
        high |= (b.x >> 4 & 3u | (b.y >> 4 & 3u) << 2) << (4u * i) | (b.x >> 6 | b.y >> 6 << 2) << (16u + 4u * i);
    }
    return high;
}

// scaleOf: word w of the scales of a block, in front the f16 that the others are multiplied by.
uint scaleOf(uint block, uint w) {
    if (FORMAT == Q4_K) {
        const uvec4 q = quadAt(block); // low and high bits of scales, of minima, both
        return w == 0u ? q.x : w == 1u ? (q.y & 0x0F0F0F0Fu) | (q.z & 0x0F0F0F0Fu) << 4 : w == 2u ? q.w : k4(q.yz);
    }
    if (FORMAT == Q2_K) { // 64 numbers have the scales of 16 in a word's lower half, minima in its upper one
        const uint t = at(block + 4u * (w - 1u));
        return w == 0u ? at(block + 80u) : nibbles(t, 0u) | nibbles(t >> 4, 0u) << 16;
    }
    return w == 0u ? at(block + 208u) & 0xFFFFu : at(block + 192u + 4u * (w - 1u)); // a byte for 16 numbers
}

void main() {
    const uint first = gl_WorkGroupID.x * BLOCKS, blocks = min(BLOCKS, pc.count - first);
    const uint end = (pc.count * BYTES + 15u) / 16u; // of what is stored
    for (uint i = gl_LocalInvocationID.x; i < BLOCKS * BYTES / 16u; i += 256u) {
        const uint q = first * BYTES / 16u + i;
        const uvec4 v = q < end ? stored.v[q] : uvec4(0u);
        words[4u * i] = v.x;
        words[4u * i + 1u] = v.y;
        words[4u * i + 2u] = v.z;
        words[4u * i + 3u] = v.w;
    }
    barrier();
    const uint quads = quadsOf();
    for (uint i = gl_LocalInvocationID.x; i < blocks * quads; i += 256u) {
        codes.v[first * quads + i] = codesOf(i / quads * BYTES, i % quads);
    }
    const uint n = scalesOf();
    if (n >= 4u) {
        for (uint i = gl_LocalInvocationID.x; i < blocks * n / 4u; i += 256u) {
            scales.v[(first * n) / 4u + i] = scaleOf(i / (n / 4u) * BYTES, i % (n / 4u));
        }
    } else if (n > 0u) { // of several blocks in a word, each at its block's beginning
        for (uint i = gl_LocalInvocationID.x; i < (blocks * n + 3u) / 4u; i += 256u) {
            uint word = 0u;
            for (uint k = 0u; k < 4u / n; k++) {
                const uint b = i * (4u / n) + k;
                if (b < blocks) word |= (at(b * BYTES) & ((1u << (8u * n)) - 1u)) << (8u * n * k);
            }
            scales.v[first * n / 4u + i] = word;
        }
    }
}
