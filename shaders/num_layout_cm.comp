// Probes of matrices, which tell kernels apart that a device can run. PROBE, which a build defines:
// 0  num_layout: which component of which invocation holds which element of a matrix. A [M,K],
//    B [K,N] and C [M,N] are loaded from their own indices row*columns + column. The value of
//    component i of invocation l goes to
//      dst[first + i*SUBGROUP + l],  first = 0 for A, M*K for B, M*K + K*N for C
//    Three more words follow: how many components of A, B and C an invocation has. The indices
//    mean something only where every element is in one component, so that there are M*K/SUBGROUP,
//    K*N/SUBGROUP and M*N/SUBGROUP of them (some devices hold operands twice), and where the
//    element type can hold every index: f16 up to 2048 elements, bf16 256.
// 1  num_rows: whether lib/cm_rows.glsl loads fragments as coopMatLoad does: rows of numbers that
//    differ are stored both ways and loaded as either operand; and whether lane l has sums of
//    column l % N alone. dst[l] is how many components of lane l differ.
// 2  num_codes: whether matrices of E4M3 are multiplied exactly: 256*256 + 1*2^-7, which takes all
//    bits of an f32 and a subnormal code; with ROWS also what num_rows asks, of codes. dst[l] is
//    how many components of lane l are something else.
// 3  num_float8: whether E4M3 codes are converted to f32 exactly, as attn_decode_float8_cmb has it.
//    dst[l] is how many of the codes that are lane l's become something else.
// Bindings: 0 dst u32 [M*K + K*N + M*N + 3], or [SUBGROUP].
// Constants: 0 SUBGROUP, the workgroup; 1..3 M, N, K of a product; 4 ROWS.
// Shared memory: 4*(M*K + K*N + M*N) bytes at most; of rows 4*R*(2*K + 16) + 4*M*N, R the larger of
//   M and N; of codes as much and (M + N)*K; of float8 256.
// Features: cooperativeMatrix (_cm f16, codes e4m3, _cmb bf16 operands), shaderFloat16,
//   vulkanMemoryModel, subgroupSizeControl, computeFullSubgroups; codes and float8 shaderFloat8,
//   shaderInt8; rows of bf16 shaderInt16.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#include "lib/cm_element.glsl"

layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint CM_M = 16u;
layout(constant_id = 2) const uint CM_N = 16u;
layout(constant_id = 3) const uint CM_K = 16u;
layout(constant_id = 4) const uint ROWS = 0u;
#if PROBE == 2
#define CM_CODE_ROWS
#endif
#include "lib/cm_rows.glsl"
const uint SUBGROUP = gl_WorkGroupSize.x;

layout(std430, set = 0, binding = 0) writeonly buffer Dst { uint v[]; } dst;

#if PROBE != 3
shared float c_s[CM_M * CM_N];
#endif

#if PROBE == 0
shared CM_ELEMENT a_s[CM_M * CM_K];
shared CM_ELEMENT b_s[CM_K * CM_N];

void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint i = l; i < CM_M * CM_K; i += SUBGROUP) a_s[i] = CM_ELEMENT(float(i));
    for (uint i = l; i < CM_K * CM_N; i += SUBGROUP) b_s[i] = CM_ELEMENT(float(i));
    for (uint i = l; i < CM_M * CM_N; i += SUBGROUP) c_s[i] = float(i);
    barrier();
    CM_A a;
    CM_B b;
    CM_C c;
    coopMatLoad(a, a_s, 0u, CM_K, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, b_s, 0u, CM_N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(c, c_s, 0u, CM_N, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0u; i < CM_M * CM_K / SUBGROUP; i++) dst.v[i * SUBGROUP + l] = uint(float(a[i]));
    [[unroll]] for (uint i = 0u; i < CM_K * CM_N / SUBGROUP; i++) dst.v[CM_M * CM_K + i * SUBGROUP + l] = uint(float(b[i]));
    [[unroll]] for (uint i = 0u; i < CM_M * CM_N / SUBGROUP; i++) dst.v[CM_M * CM_K + CM_K * CM_N + i * SUBGROUP + l] = uint(c[i]);
    const uint lengths = CM_M * CM_K + CM_K * CM_N + CM_M * CM_N;
    if (l == 0u) {
        dst.v[lengths] = uint(a.length());
        dst.v[lengths + 1u] = uint(b.length());
        dst.v[lengths + 2u] = uint(c.length());
    }
}

#elif PROBE < 3
const uint LINES = 2u * (CM_M < CM_N ? CM_N : CM_M); // two matrices: rows of the second may begin at 8 of 16
const uint PITCH = CM_K / 8u + 1u;

shared uvec4 plain_s[LINES * PITCH]; // [LINES, K] elements
shared uvec4 rows_s[LINES * PITCH];  // the same, as lib/cm_rows.glsl has them

// Eight numbers of a row; no two of a fragment are equal.
uvec4 numbers(uint row, uint quad) {
    uvec4 w;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint n = (row % 16u * CM_K + quad * 8u + 2u * i) % 256u;
        w[i] = cm_pack(vec4(float(n), float(n + 1u), 0.0, 0.0)).x;
    }
    return w;
}

// How many of lane l's sums are not of column l % N.
uint other_columns(uint l) {
    for (uint i = l; i < CM_M * CM_N; i += SUBGROUP) c_s[i] = float(i % CM_N);
    barrier();
    CM_C c;
    coopMatLoad(c, c_s, 0u, CM_N, gl_CooperativeMatrixLayoutRowMajor);
    uint differ = 0u;
    [[unroll]] for (uint i = 0u; i < c.length(); i++) differ += c[i] == float(l % CM_N) ? 0u : 1u;
    return differ;
}

#if PROBE == 1
void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint at = l; at < LINES * (CM_K / 8u); at += SUBGROUP) {
        const uint row = at / (CM_K / 8u), quad = at % (CM_K / 8u);
        const uvec4 w = numbers(row, quad);
        plain_s[row * PITCH + quad] = w;
        rows_s[row * PITCH + quad] = cm_half(row) == 0u ? w : w.zwxy;
    }
    barrier();
    CM_A a, a_want;
    CM_B b, b_want;
    uint differ = 0u;
    [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
        coopMatLoad(a_want, plain_s, x * CM_M * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(b_want, plain_s, x * CM_N * PITCH, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        CM_LOAD_ROWS(a, rows_s, x * CM_M, 0u, PITCH, l, gl_CooperativeMatrixLayoutRowMajor)
        CM_LOAD_ROWS(b, rows_s, x * CM_N, 0u, PITCH, l, gl_CooperativeMatrixLayoutColumnMajor)
        [[unroll]] for (uint i = 0u; i < a.length(); i++) differ += float(a[i]) == float(a_want[i]) ? 0u : 1u;
        [[unroll]] for (uint i = 0u; i < b.length(); i++) differ += float(b[i]) == float(b_want[i]) ? 0u : 1u;
    }
    dst.v[l] = differ + other_columns(l);
}

#else
const uint QUADS = CM_K / 16u; // of a row, 16 codes each

shared uvec4 codes_a[CM_M * QUADS]; // [M, K]: 256, 1, 0, ..
shared uvec4 codes_b[CM_N * QUADS]; // [N, K]: 256, 2^-7, 0, ..

#define CODE_BITS(x) uint(floate4m3BitsToUintEXT(x))

// How many components of fragments of codes, of which a fragment of 256 has each once, are loaded
// otherwise than by coopMatLoad.
uint code_rows(uint l) {
    for (uint at = l; at < LINES * QUADS; at += SUBGROUP) {
        const uint row = at / QUADS, quad = row * PITCH + at % QUADS;
        const uvec4 n = (row % 16u * CM_K + at % QUADS * 16u + uvec4(0u, 4u, 8u, 12u)) % 256u, w = n * 0x01010101u + 0x03020100u;
        plain_s[quad] = w;
        rows_s[quad] = cm_half(row) == 0u ? w : w.zwxy;
    }
    barrier();
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a, a_want;
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b, b_want;
    uint differ = 0u;
    [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
        coopMatLoad(a_want, plain_s, x * CM_M * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(b_want, plain_s, x * CM_N * PITCH, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        CM_LOAD_CODES(a, rows_s, x * CM_M, 0u, PITCH, l, gl_CooperativeMatrixLayoutRowMajor)
        CM_LOAD_CODES(b, rows_s, x * CM_N, 0u, PITCH, l, gl_CooperativeMatrixLayoutColumnMajor)
        [[unroll]] for (uint i = 0u; i < a.length(); i++) differ += CODE_BITS(a[i]) == CODE_BITS(a_want[i]) ? 0u : 1u;
        [[unroll]] for (uint i = 0u; i < b.length(); i++) differ += CODE_BITS(b[i]) == CODE_BITS(b_want[i]) ? 0u : 1u;
    }
    return differ + other_columns(l);
}

void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint i = l; i < CM_M * QUADS; i += SUBGROUP) codes_a[i] = uvec4(i % QUADS == 0u ? 0x3878u : 0u, 0u, 0u, 0u);
    for (uint i = l; i < CM_N * QUADS; i += SUBGROUP) codes_b[i] = uvec4(i % QUADS == 0u ? 0x0478u : 0u, 0u, 0u, 0u);
    barrier();
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a;
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b;
    coopMatLoad(a, codes_a, 0u, QUADS, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, codes_b, 0u, QUADS, gl_CooperativeMatrixLayoutColumnMajor);
    const CM_C zero = CM_C(0.0), c = coopMatMulAdd(a, b, zero);
    uint differ = 0u;
    [[unroll]] for (uint i = 0u; i < c.length(); i++) differ += floatBitsToUint(c[i]) == 0x47800001u ? 0u : 1u;
    dst.v[l] = differ + (ROWS == 0u ? 0u : code_rows(l));
}

#endif
#else
#extension GL_EXT_float_e4m3 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require

// The bits of a code's number: of 1.m times 2^(e-7), or m times 2^-9.
uint float8_bits(uint code) {
    const uint e = (code >> 3) & 15u, m = code & 7u;
    return (code & 0x80u) << 24 | (e == 0u ? floatBitsToUint(float(m) * 0.001953125) : (e + 120u) << 23 | m << 20);
}

shared uint words_s[64]; // all codes: compilers convert themselves what only depends on a lane's number

void main() {
    const uint l = gl_SubgroupInvocationID;
    uint differ = 0u;
    for (uint at = l; at < 64u; at += SUBGROUP) words_s[at] = at * 0x04040404u + 0x03020100u;
    barrier();
    for (uint at = l; at < 64u; at += SUBGROUP) {
        const uint w = words_s[at];
        const vec4 x = vec4(uintBitsToFloate4m3EXT(unpack8(w)));
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const uint got = floatBitsToUint(x[i]), code = (w >> (8u * i)) & 0xFFu;
            const bool nan = (code & 0x7Fu) == 0x7Fu;
            differ += (nan ? (got & 0x7FFF0000u) > 0x7F800000u : got == float8_bits(code)) ? 0u : 1u;
        }
    }
    dst.v[l] = differ;
}
#endif
