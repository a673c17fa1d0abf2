// Chunks of weights [experts*n, k] in memory, of one matrix or two, with their scales.
// Define MATRICES (1 or 2) before the include. A workgroup has 128 invocations.
// Bindings: 1, 2 the first matrix and its scales; 3, 4 the second, if any; then x, bf16 by place()
//   or whole numbers (whole.glsl).
// Constants: those of weights.glsl, and 5 ALIGNED: k is a multiple of 128, so that four scales of
//   MXFP4, a word, are of one row.
#ifndef LIB_CHUNKS_GLSL
#define LIB_CHUNKS_GLSL

layout(local_size_x = 128) in;
layout(push_constant) uniform Push {
    uint n, k;
    uint x_quads; // of a row of x
    uint side;    // rows that share a scale of FP8
    uint routed, rows_at, order_at, stride; // rows.glsl
#if MATRICES == 2
    uint per;     // rows of a token
    uint h_quads; // of a row of h
    float limit;  // gate.glsl; 0: none
#endif
} pc;

#include "weights.glsl"

layout(constant_id = 5) const uint ALIGNED = 0u;

layout(std430, set = 0, binding = 1) readonly buffer Codes0 { uvec4 v[]; } codes0;
layout(std430, set = 0, binding = 2) readonly buffer Scales0 { uint v[]; } scales0;
#if MATRICES == 2
layout(std430, set = 0, binding = 3) readonly buffer Codes1 { uvec4 v[]; } codes1;
layout(std430, set = 0, binding = 4) readonly buffer Scales1 { uint v[]; } scales1;
layout(std430, set = 0, binding = 5) readonly buffer X { uvec4 v[]; } x;
#define CODES(m, i) ((m) == 0u ? codes0.v[i] : codes1.v[i])
#define SCALES(m, i) ((m) == 0u ? scales0.v[i] : scales1.v[i])
#else
layout(std430, set = 0, binding = 3) readonly buffer X { uvec4 v[]; } x;
#define CODES(m, i) codes0.v[i]
#define SCALES(m, i) scales0.v[i]
#endif

// make_grid brings the grid to shared memory. Every invocation of the workgroup has to call it.
void make_grid() {
    if (FORMAT != IQ2_XXS) return;
    for (uint row = gl_LocalInvocationIndex; row < 256u; row += 128u)
        grid_s[row] = uvec2(SCALES(0u, 2u * row), SCALES(0u, 2u * row + 1u));
    barrier();
}

// block_rows: of FP8's scales, of one expert.
uint block_rows() { return (pc.n + pc.side - 1u) / pc.side; }

// FETCH: chunk c of a row of matrix m, its scale (of a part or four) and the block that has it.
#define FETCH(m, expert, row, c, q, scale, block) { \
    const uint at = ((expert) * pc.n + (row)) * (pc.k / COLUMNS) + (c); \
    [[unroll]] for (uint quad_ = 0u; quad_ < QUADS; quad_++) q[quad_] = CODES(m, at * QUADS + quad_); \
    if (FORMAT == MXFP4) scale = ALIGNED == 1u ? SCALES(m, ((expert) * pc.n + (row)) * (pc.k / 128u) + (c) / 4u) \
        : SCALES(m, at / 4u) >> (8u * (at % 4u)); \
    if (FORMAT == FP8) scale = SCALES(m, ((expert) * block_rows() + (row) / pc.side) * ((pc.k + 127u) / 128u) + (c) / 8u); \
    if (FORMAT == Q8_0) scale = SCALES(m, at / 2u) >> (16u * (at % 2u)); \
    if (FORMAT == IQ2_XXS) scale = SCALES(m, GRID_WORDS + at / 8u) >> (16u * (at / 4u % 2u)); \
    if (FORMAT == Q2_K || FORMAT == Q6_K) { \
        block = SCALES(m, at / 4u * 5u); \
        scale = SCALES(m, at / 4u * 5u + 1u + at % 4u); \
    } \
    if (FORMAT == Q4_K) { \
        block = SCALES(m, at / 8u * 4u); \
        scale = (SCALES(m, at / 8u * 4u + 1u + at / 4u % 2u) >> (8u * (at % 4u)) & 255u) \
            | (SCALES(m, at / 8u * 4u + 3u) >> (4u * (at % 8u)) & 15u) << 8; \
    } }

// scale_of: of a part of chunk c, and its minimum. E8M0 0 is a subnormal of f32.
vec2 scale_of(uvec4 q[QUADS], uint s, uint block, uint c, uint part) {
    if (FORMAT == MXFP4 && ALIGNED == 1u) s >>= 8u * (c % 4u);
    if (FORMAT == MXFP4) return vec2(uintBitsToFloat(max((s & 255u) << 23, 0x00400000u)), 0.0);
    if (FORMAT == FP8) return vec2(uintBitsToFloat(s), 0.0);
    if (FORMAT == Q8_0) return halves2(s).x * vec2(1.0, 128.0);
    if (FORMAT == IQ2_XXS) return vec2(halves2(s).x * (0.125 + 0.25 * float(q[0][part % 2u * 2u + 1u] >> 28)), 0.0);
    const vec2 d = halves2(block);
    if (FORMAT == Q4_K) return d * vec2((s & 15u) | (s >> 4 & 0x30u), (s >> 4 & 15u) | (s >> 6 & 0x30u));
    if (FORMAT == Q2_K) return d * UNSCALE * whole(s >> (4u * part) & 0x000F000Fu);
    if (FORMAT == Q6_K) return d.x * float(int(s << (24u - 8u * part)) >> 24) * vec2(1.0, 32.0);
    return vec2(1.0, 0.0);
}

#endif
