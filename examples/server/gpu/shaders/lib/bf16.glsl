// bf16, the upper half of a binary32, and where rows of activations keep it.
#ifndef LIB_BF16_GLSL
#define LIB_BF16_GLSL

// bf16_bits rounds to nearest, ties to even; a NaN stays one.
uint bf16_bits(float x) {
    const uint u = floatBitsToUint(x);
    const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
    return nan ? (u >> 16) | 0x40u : (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
}

// bf16_pack puts lo into the low half, as it lies in memory.
uint bf16_pack(float lo, float hi) { return bf16_bits(lo) | (bf16_bits(hi) << 16); }

vec2 bf16_unpack(uint word) { return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xFFFF0000u)); }

float bf16_round(float x) { return uintBitsToFloat(bf16_bits(x) << 16); }

void bf16_unpack8(uvec4 q, out float v[8]) {
    for (uint i = 0u; i < 4u; i++) {
        const vec2 p = bf16_unpack(q[i]);
        v[2u * i] = p.x;
        v[2u * i + 1u] = p.y;
    }
}

// place is where a quad of 16 bytes, columns 8q to 8q+7, lies in a row that products read. Of 128
// quads every fourth ones lie side by side, so 32 invocations that each want the next one of their
// own 32 columns read 512 bytes in a piece.
uint place(uint q) { return (q & ~127u) | ((q & 3u) << 5) | ((q >> 2) & 31u); }

#endif
