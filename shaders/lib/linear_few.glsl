// What the kernels that read weights once for few tokens have in common: products of a quad of ROWS rows with TOKENS tokens, and how the
// sums of the LANES invocations that share rows meet. Before: lib/linear_f32.glsl and the constants TOKENS, ROWS and LANES.
// Shared memory: 516*ROWS*TOKENS + 1024 B.
#ifndef LIB_LINEAR_FEW_GLSL
#define LIB_LINEAR_FEW_GLSL

const uint VEC = FORMAT == WEIGHT_BF16 ? 8u : FORMAT == WEIGHT_NVFP4 ? 32u : 16u; // weights of a quad
const uint UNITS = VEC / 8u;
const uint X_QUADS = ACT == ACT_BF16 ? UNITS : 1u;
const uint X_VEC = ACT == ACT_BF16 ? 8u : 16u;
const uint BLOCK_UNITS = FORMAT == WEIGHT_NVFP4 ? 2u : UNITS; // after so many units of 8 a scale is applied
const uint BLOCKS = UNITS / BLOCK_UNITS;
const uint SUMS = ROWS * TOKENS;
const uint TEAMS = 128u / LANES;
const uint PITCH = 129u;
const uint PAIRS = TEAMS * SUMS / 2u; // of outputs
const uint PARTS = 128u / PAIRS;      // invocations that sum a pair

shared float sum_s[SUMS * PITCH];
shared vec2 pair_s[128];

float acc[ROWS][TOKENS];

// The quad at k of each row as it is stored.
struct Quads {
    uvec4 w[ROWS];
    uint codes[ROWS]; // NVFP4: of two scales
    uint scale;       // FP8: bits of the scale, one for all rows: they begin at a multiple of ROWS, and so lie in one block of 128
};

// multiply: q, scales included, with the numbers of each token that belong to it and the scale of these.
void multiply(Quads q, uvec4 x[TOKENS][X_QUADS], float x_factor[TOKENS]) {
    float block[ROWS][BLOCKS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
            block[r][b] = FORMAT == WEIGHT_NVFP4 ? e4m3_decode(q.codes[r] >> (8u * b)) : FP8_WEIGHT ? uintBitsToFloat(q.scale) : 1.0;
    }
    [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
        float part[ROWS][TOKENS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) part[r][t] = FORMAT == WEIGHT_BF16 ? acc[r][t] : 0.0;
        }
        [[unroll]] for (uint i = 0u; i < BLOCK_UNITS; i++) {
            const uint u = b * BLOCK_UNITS + i;
            vec4 wa[ROWS], wb[ROWS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) weight8(q.w[r], u, wa[r], wb[r]);
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                vec4 xa, xb;
                act8(x[t][ACT == ACT_BF16 ? u : 0u], u, xa, xb);
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) part[r][t] += wa[r][e] * xa[e];
                    [[unroll]] for (uint e = 0u; e < 4u; e++) part[r][t] += wb[r][e] * xb[e];
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                if (FORMAT == WEIGHT_BF16) acc[r][t] = part[r][t];
                else acc[r][t] += part[r][t] * x_factor[t] * block[r][b];
            }
        }
    }
}

// add_up: the sums of a team's invocations, of row v % ROWS and the next one and token v / ROWS; true in the invocation that has them.
bool add_up(out uint team, out uint v, out vec2 y) {
    const uint tid = gl_LocalInvocationIndex;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sum_s[(t * ROWS + r) * PITCH + tid] = acc[r][t];
    }
    barrier();
    const uint pair = tid / PARTS, part = tid % PARTS;
    team = pair / (SUMS / 2u);
    v = pair % (SUMS / 2u) * 2u;
    vec2 sum = vec2(0.0);
    for (uint l = part; l < LANES; l += PARTS) {
        sum += vec2(sum_s[v * PITCH + team * LANES + l], sum_s[(v + 1u) * PITCH + team * LANES + l]);
    }
    pair_s[tid] = sum;
    for (uint s = PARTS / 2u; s > 0u; s /= 2u) {
        barrier();
        if (part < s) pair_s[tid] += pair_s[tid + s];
    }
    y = pair_s[tid] * (WEIGHT_UNSCALE * ACT_UNSCALE);
    return part == 0u;
}

#endif
