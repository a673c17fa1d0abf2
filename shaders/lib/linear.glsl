// The memory of the kernels of a linear layer: y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k], with
// weights as they are stored.
//
//   0 w_scale    STEP_SUMS: [ceil(G*N/S), ceil(K/S)] f32 or UE8M0 bytes, S = SCALE_BLOCK; ROWWISE:
//                as the format's file has it
//   1 row_scale  ROW_SCALES: [G*N] f32
//   2 x_scale    E4M3 activations, X = X_BLOCK: [G, K/X, pitch] f32 powers of two, or u32 of four
//                UE8M0 bytes [G, K/4X, pitch]; tokens last
//   3 x          [T,G,K] bf16 or [G,T,K] E4M3
//   4 w          [G*N,K], WEIGHT_QUAD numbers in 16 bytes
//   5 y          [T,y_stride] bf16 or f32; columns y_column .. y_column+G*N-1 are written
// 3..5 are reached as lib/addressed.glsl says.
#ifndef LIB_LINEAR_GLSL
#define LIB_LINEAR_GLSL
#include "formats.glsl"

layout(std430, set = 0, binding = 0) readonly buffer WScale { uint v[]; } w_scale;
layout(std430, set = 0, binding = 1) readonly buffer RowScale { float v[]; } row_scale;
layout(std430, set = 0, binding = 2) readonly buffer XScale { uint v[]; } x_scale;

layout(push_constant) uniform Push {
    ADDRESS x_addr;
    ADDRESS w_addr;
    ADDRESS y_addr;
    uint tokens;
    uint groups;
    uint n;             // rows of a group's weights
    uint k;
    uint y_stride;      // numbers of a row of y
    uint y_column;
    uint y_f32;         // 1: y is f32, 0: bf16
    uint x_scale_pitch; // tokens of a row of x_scale
    uint splits;        // parts that k is cut into, each with a y of its own
    uint split_steps;   // steps over k of a part
    uint first_row;     // of the matrix kernel's launch; not 0 with one group only
#ifdef NORMS
    uint64_t norm_addr; // see linear_norm.glsl
    uint64_t normed_addr;
    uint64_t arrived_addr;
#endif
} pc;

#ifdef ADDRESSED

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer LinearRead4 { uvec4 v; };

uvec4 x_quad(uint i) { return LinearRead4(pc.x_addr + uint64_t(i) * 16u).v; }
uvec4 w_quad(uint i) { return LinearRead4(pc.w_addr + uint64_t(i) * 16u).v; }
void y_word(uint i, uint word) { KvWrite1(pc.y_addr + uint64_t(i) * 4u).v = word; }
void y_word2(uint i, uvec2 words) { KvWrite2(pc.y_addr + uint64_t(i) * 4u).v = words; } // i even

#else

layout(std430, set = 0, binding = 3) readonly buffer X { uvec4 v[]; } x_buf;
layout(std430, set = 0, binding = 4) readonly buffer W { uvec4 v[]; } w_buf;
layout(std430, set = 0, binding = 5) writeonly buffer Y { uint v[]; } y_buf;

uvec4 x_quad(uint i) { return x_buf.v[i]; }
uvec4 w_quad(uint i) { return w_buf.v[i]; }
void y_word(uint i, uint word) { y_buf.v[i] = word; }

void y_word2(uint i, uvec2 words) { // i even
    y_buf.v[i] = words.x;
    y_buf.v[i + 1u] = words.y;
}

#endif

#define SCALE_WORD(i) w_scale.v[i]
#define ROW_LENGTH pc.k
#include "linear_scales.glsl"

// x_block_bits: the f32 bits of the scale of an E4M3 token at k.
uint x_block_bits(uint token, uint group, uint k) {
    if (ACT == ACT_FP8) return x_scale.v[(group * (pc.k / 128u) + k / 128u) * pc.x_scale_pitch + token];
    const uint four = x_scale.v[(group * (pc.k / (4u * X_BLOCK)) + k / (4u * X_BLOCK)) * pc.x_scale_pitch + token];
    return (four >> (k / X_BLOCK % 4u * 8u) & 0xFFu) << 23;
}

// x_row: the number of a row of x.
uint x_row(uint token, uint group) { return ACT == ACT_BF16 ? token * pc.groups + group : group * pc.tokens + token; }

// y_store2: two neighbouring columns, the first even.
void y_store2(uint token, uint column, float a, float b) {
    const uint i = token * pc.y_stride + pc.y_column + column;
    if (pc.y_f32 != 0u) y_word2(i, uvec2(floatBitsToUint(a), floatBitsToUint(b)));
    else y_word(i >> 1, bf16_pack2(a, b));
}

// y_store4: four, the first a multiple of four.
void y_store4(uint token, uint column, vec4 v) {
    const uint i = token * pc.y_stride + pc.y_column + column;
    if (pc.y_f32 != 0u) {
        y_word2(i, floatBitsToUint(v.xy));
        y_word2(i + 2u, floatBitsToUint(v.zw));
    } else y_word2(i >> 1, uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w)));
}

#endif
