// Rows of activations in bf16, by quads of 16 bytes, and where products read them.
#ifndef LIB_ACTIVATIONS_GLSL
#define LIB_ACTIVATIONS_GLSL
#include "lib/bf16.glsl"

float bf16_round(float x) { return bf16_decode(bf16_encode(x)); }

void bf16_unpack8(uvec4 q, out float v[8]) {
    for (uint i = 0u; i < 4u; i++) {
        const vec2 p = bf16_unpack2(q[i]);
        v[2u * i] = p.x;
        v[2u * i + 1u] = p.y;
    }
}

// place returns where a quad, columns 8q to 8q+7, lies in a row that products read. Of 128 quads
// every fourth ones lie side by side, so 32 invocations that each want the next one of their own 32
// columns read 512 bytes in a piece.
uint place(uint q) { return (q & ~127u) | ((q & 3u) << 5) | ((q >> 2) & 31u); }

#endif
