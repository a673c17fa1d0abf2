// A linear layer over weights as they are stored, decoded on the way, with f32 sums:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]
// Shared memory: 64*(BM+BN) B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with DOT2 shaderFloat16,
//   shaderMixedFloatDotProductFloat16AccFloat32. With DOT2 half the shared memory.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale, 3 x [T,G,K], 4 w [G*N,K], 5 y [T,G,N]: shapes and
//   formats in lib/linear.glsl; x, w and y with ADDRESSED by address. With splits, part s of k
//   goes to an f32 y of its own.
// Workgroup: BM tokens (x) and BN rows (y) of group z / splits. A step decodes 16 numbers of their
//   rows to shared memory, k first, while the next step's are on their way. An invocation holds 8
//   tokens x 4*QUADS rows of sums, in fours that lie BN/QUADS rows apart.
// Constants after the two of lib/formats.glsl: 2 BM, 3 BN, 4 QUADS (1 or 2), 5 invocations,
//   BM/8 * BN/(4*QUADS), each with whole eights of a step to decode; 6 UNROLL, numbers of a step
//   that are multiplied without a loop, 1 to 16, a power of two.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/linear.glsl"
#include "lib/linear_cm.glsl"
#include "lib/linear_f32.glsl"
#include "lib/linear_act.glsl"
#include "lib/dot2.glsl"
#include "lib/half_loads.glsl"

layout(local_size_x = 128, local_size_x_id = 5) in;
layout(constant_id = 2) const uint BM = 64u;
layout(constant_id = 3) const uint BN = 64u;
layout(constant_id = 4) const uint QUADS = 1u;
layout(constant_id = 6) const uint UNROLL = 1u;

const uint THREADS = gl_WorkGroupSize.x;
const uint STEP = 16u;
const uint XP = BM / 4u, WP = BN / 4u;
const uint XU = BM * STEP / 8u / THREADS, WU = BN * STEP / 8u / THREADS; // eights of a step that an invocation decodes
const uint NL = BN / (4u * QUADS);                                      // invocations that share eight tokens

const uint EACH = HALVES ? 2u : 1u;                     // numbers of a word: f16, or f32
const uint LINES = UNROLL < EACH ? 1u : UNROLL / EACH; // of words, multiplied without a loop
const bool BLOCK_SUMS = HALVES && STEP_SUMS && STORED_SCALES;

shared uvec4 x_s[STEP / EACH * XP]; // [STEP, BM], EACH numbers a word
shared uvec4 w_s[STEP / EACH * WP]; // [STEP, BN]

// Eight numbers as they are stored. Of E4M3 activations the quad has eight more.
struct Eight {
    uvec4 q;
    uint scale;
};
struct WeightEight {
    uvec4 w;
    uvec2 beside;
};

// fetch_x, fetch_w: the numbers at k, zeros behind the last.
Eight fetch_x(uint token, uint group, uint k) {
    Eight v = Eight(uvec4(0u), 0u);
    if (k < pc.k) {
        const uint at = x_row(token, group) * (pc.k / 8u) + k / 8u;
        v.q = x_eight(at);
        v.scale = x_eight_scale(token, group, k);
        if (HALVES && ACT != ACT_BF16 && (at & 1u) != 0u) v.q.xy = v.q.zw;
    }
    return v;
}

const uint EIGHTS = WEIGHT_QUAD / 8u; // of a quad

WeightEight fetch_w(uint row, uint k) {
    WeightEight v = WeightEight(uvec4(0u), uvec2(0u));
    if (k >= pc.k) return v;
    const uint i = row * (pc.k / 8u) + k / 8u;
    v.w = weight_eight(w_quad(i / EIGHTS), i % EIGHTS);
    if (ROWWISE) v.beside = w_beside(row, k);
    if (STEP_SUMS) v.beside.x = BLOCK_SUMS ? ONE : w_block_bits(row, k); // of blocks' sums where there are such
    return v;
}

// keep_x, keep_w: eight decoded numbers of a row, from number `at` of the step on,
// with their scales; of halves scales of BLOCK_SUMS are their sums'.
#ifdef DOT2
void keep_x(uint at, uint line, Eight v, uint k) {
    const uvec4 e4 = linear_act8(v.q, v.scale);
    [[unroll]] for (uint e = 0u; e < 4u; e++) x_s[(at / 2u + e) * XP + line / 4u][line % 4u] = e4[e];
}

void keep_w(uint at, uint line, WeightEight v) {
    const uvec4 e4 = linear_weight8(v.w, v.beside, 0u, ONE);
    [[unroll]] for (uint e = 0u; e < 4u; e++) w_s[(at / 2u + e) * WP + line / 4u][line % 4u] = e4[e];
}

uvec4 load_weights(uint at, uint lane) { return HALF_LOAD(w_s, at, lane); }

void multiply(inout vec4 sum, uint x, uvec4 w) {
    [[unroll]] for (uint i = 0u; i < 4u; i++) sum[i] = dot2(unpackFloat2x16(x), unpackFloat2x16(w[i]), sum[i]);
}
#else
void keep_x(uint at, uint line, Eight v, uint k) {
    vec4 a, b;
    x_decode(v.q, k / 8u, a, b);
    const float scale = ACT == ACT_BF16 ? 1.0 : uintBitsToFloat(v.scale) * X_UNSCALE;
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        x_s[(at + e) * XP + line / 4u][line % 4u] = floatBitsToUint(a[e] * scale);
        x_s[(at + 4u + e) * XP + line / 4u][line % 4u] = floatBitsToUint(b[e] * scale);
    }
}

void keep_w(uint at, uint line, WeightEight v) {
    vec4 a, b;
    weight8(v.w, 0u, v.beside, a, b);
    const float scale = ROWWISE ? weight_factor(v.beside, 0u) : STEP_SUMS ? uintBitsToFloat(v.beside.x) : 1.0;
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        w_s[(at + e) * WP + line / 4u][line % 4u] = floatBitsToUint(a[e] * scale);
        w_s[(at + 4u + e) * WP + line / 4u][line % 4u] = floatBitsToUint(b[e] * scale);
    }
}

uvec4 load_weights(uint at, uint lane) { return w_s[at]; }

void multiply(inout vec4 sum, uint x, uvec4 w) { sum += uintBitsToFloat(x) * uintBitsToFloat(w); }
#endif

void main() {
    const uint tid = gl_LocalInvocationIndex, group = gl_WorkGroupID.z / pc.splits, split = gl_WorkGroupID.z % pc.splits;
    const uint first = split * pc.split_steps * STEP, end = min(first + pc.split_steps * STEP, pc.k);
    const uint t0 = gl_WorkGroupID.x * BM, n0 = gl_WorkGroupID.y * BN;
    const uint mine_t = tid / NL * 2u, mine_n = tid % NL; // which fours of tokens, and of the rows of a quad, it sums
    uint token[XU], row[WU];
    Eight x[XU];
    WeightEight w[WU];
    [[unroll]] for (uint i = 0u; i < XU; i++) {
        const uint u = i * THREADS + tid;
        token[i] = min(t0 + u % BM, pc.tokens - 1u);
        x[i] = fetch_x(token[i], group, first + u / BM * 8u);
    }
    [[unroll]] for (uint i = 0u; i < WU; i++) {
        const uint u = i * THREADS + tid;
        row[i] = group * pc.n + min(n0 + u % BN, pc.n - 1u);
        w[i] = fetch_w(row[i], first + u / BN * 8u);
    }
    vec4 acc[8][QUADS], all[8][QUADS]; // sums, with BLOCK_SUMS of the newest block of 128 and of those before
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        [[unroll]] for (uint j = 0u; j < QUADS; j++) acc[i][j] = all[i][j] = vec4(0.0);
    }
    [[dont_unroll]] for (uint k0 = first; k0 < end; k0 += STEP) {
        barrier();
        [[unroll]] for (uint i = 0u; i < XU; i++) {
            const uint u = i * THREADS + tid, k = u / BM * 8u;
            keep_x(k, u % BM, x[i], k0 + k);
        }
        [[unroll]] for (uint i = 0u; i < WU; i++) {
            const uint u = i * THREADS + tid;
            keep_w(u / BN * 8u, u % BN, w[i]);
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < XU; i++) x[i] = fetch_x(token[i], group, k0 + STEP + (i * THREADS + tid) / BM * 8u);
        [[unroll]] for (uint i = 0u; i < WU; i++) w[i] = fetch_w(row[i], k0 + STEP + (i * THREADS + tid) / BN * 8u);
        [[dont_unroll]] for (uint s0 = 0u; s0 < STEP / EACH; s0 += LINES) {
            [[unroll]] for (uint s1 = 0u; s1 < LINES; s1++) {
                const uint s = s0 + s1;
                const uvec4 a = x_s[s * XP + mine_t], b = x_s[s * XP + mine_t + 1u];
                uvec4 v[QUADS];
                [[unroll]] for (uint j = 0u; j < QUADS; j++) v[j] = load_weights(s * WP + j * NL + mine_n, mine_n);
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    [[unroll]] for (uint j = 0u; j < QUADS; j++) {
                        multiply(acc[i][j], a[i], v[j]);
                        multiply(acc[i + 4u][j], b[i], v[j]);
                    }
                }
            }
        }
        if (BLOCK_SUMS) if ((k0 + STEP) % SCALE_BLOCK == 0u || k0 + STEP >= end) {
            [[unroll]] for (uint j = 0u; j < QUADS; j++) { // four rows lie in one block
                const uint n = min(n0 + (j * NL + mine_n) * 4u, pc.n - 1u);
                const float scale = uintBitsToFloat(w_block_bits(group * pc.n + n, k0));
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    all[i][j] += acc[i][j] * scale;
                    acc[i][j] = vec4(0.0);
                }
            }
        }
    }
    [[unroll]] for (uint j = 0u; j < QUADS; j++) {
        const uint n = n0 + (j * NL + mine_n) * 4u;
        if (n >= pc.n) continue;
        vec4 scale = vec4(HALVES ? CM_UNSCALE : WEIGHT_UNSCALE);
        if (ROW_SCALES) {
            [[unroll]] for (uint e = 0u; e < 4u; e++) scale[e] *= row_scale.v[group * pc.n + n + e];
        }
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            const uint t = t0 + mine_t * 4u + i;
            if (t < pc.tokens) {
                vec4 sum = BLOCK_SUMS ? all[i][j] : acc[i][j];
                if (HALVES) sum = HALF_BACK(sum, mine_n);
                y_store4(split * pc.tokens + t, group * pc.n + n, sum * scale);
            }
        }
    }
}
