// The input of a sub-layer from the streams, and how its output is to be mixed back:
//   m = rsqrt(Y.Y/(N*d) + eps) * fn.Y;  pre, post, comb = HC(m)
//   u = RNE16(sum_i pre[i]*Y[i]);  x = RNE16(u * rsqrt(mean(u^2) + eps) * w)
// In front of the head ROWS is N: there is pre alone.
// Bindings: 0 step ([0] tokens, [1] wanted, [wanted_at+i] tokens that are), 1 parts of fn.Y and Y.Y
//   [T, slices, ROWS+1] f32, 2 base [ROWS] and scale [3] f32, 3 Y [T, N, d] bf16, 4 w [d] f32,
//   5 mix [T, N + N*N] f32: post, comb, 6 x [rows, x_quads] quads of bf16.
// Workgroup: a token, or one that is wanted (x); of y 0 makes x and 1 the mix, which takes as long.
// Shared memory: 2*D + 32*(ROWS+1) + 1024 B, about.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint N = 4u;
layout(constant_id = 1) const uint ROWS = 24u;
layout(constant_id = 2) const uint D = 4096u;

layout(push_constant) uniform Push {
    uint slices;
    uint steps;     // of the Sinkhorn iteration
    float eps;      // of norms
    float hyper_eps;
    uint x_quads;   // of a row of x
    uint placed;    // 1: by place()
    uint wanted_at; // 0: all tokens
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Parts { float v[]; } parts;
layout(std430, set = 0, binding = 2) readonly buffer Base { float v[]; } base;
layout(std430, set = 0, binding = 3) readonly buffer Streams { uvec4 v[]; } streams;
layout(std430, set = 0, binding = 4) readonly buffer Norm { vec4 v[]; } norm;
layout(std430, set = 0, binding = 5) writeonly buffer Mix { float v[]; } mix_;
layout(std430, set = 0, binding = 6) writeonly buffer X { uvec4 v[]; } x;

shared float part_s[(ROWS + 1u) * 8u];
shared float m_s[ROWS + 1u];
shared float square_s[256];
shared uvec4 u_s[D / 8u];

float sigmoid(float v) { return 1.0 / (1.0 + exp(-v)); }

// at: what row i of m comes to after scale and base.
float at(uint i, uint scale) { return fma(m_s[i], base.v[ROWS + scale], base.v[i]); }

// gather_m adds the parts up.
void gather_m(uint t) {
    const uint tid = gl_LocalInvocationIndex;
    for (uint i = tid; i < (ROWS + 1u) * 8u; i += 256u) {
        precise float sum = 0.0;
        for (uint s = i % 8u; s < pc.slices; s += 8u) sum = sum + parts.v[(t * pc.slices + s) * (ROWS + 1u) + i / 8u];
        part_s[i] = sum;
    }
    barrier();
    for (uint i = tid; i <= ROWS; i += 256u) {
        precise float sum = 0.0;
        [[unroll]] for (uint p = 0u; p < 8u; p++) sum = sum + part_s[i * 8u + p];
        m_s[i] = sum;
    }
    barrier();
    const float r = inversesqrt(m_s[ROWS] / float(N * D) + pc.eps);
    barrier();
    for (uint i = tid; i < ROWS; i += 256u) m_s[i] *= r;
    barrier();
}

// mixing: post and comb of a token. The softmax over destinations is the first step by rows.
void mixing(uint t) {
    const uint to = t * (N + N * N);
    float a[N][N];
    [[unroll]] for (uint i = 0u; i < N; i++) {
        mix_.v[to + i] = 2.0 * sigmoid(at(N + i, 1u));
        float top = at(2u * N + i * N, 2u), sum = 0.0;
        [[unroll]] for (uint j = 0u; j < N; j++) top = max(top, at(2u * N + i * N + j, 2u));
        [[unroll]] for (uint j = 0u; j < N; j++) {
            a[i][j] = exp(at(2u * N + i * N + j, 2u) - top);
            sum += a[i][j];
        }
        [[unroll]] for (uint j = 0u; j < N; j++) a[i][j] = a[i][j] / sum + pc.hyper_eps;
    }
    [[dont_unroll]] for (uint s = 0u; s < pc.steps; s++) {
        [[unroll]] for (uint i = 0u; i < N; i++) {
            float sum = pc.hyper_eps;
            [[unroll]] for (uint j = 0u; j < N; j++) sum += a[i][j];
            const float by = s == 0u ? 1.0 : 1.0 / sum;
            [[unroll]] for (uint j = 0u; j < N; j++) a[i][j] *= by;
        }
        [[unroll]] for (uint j = 0u; j < N; j++) {
            float sum = pc.hyper_eps;
            [[unroll]] for (uint i = 0u; i < N; i++) sum += a[i][j];
            const float by = 1.0 / sum;
            [[unroll]] for (uint i = 0u; i < N; i++) a[i][j] *= by;
        }
    }
    [[unroll]] for (uint i = 0u; i < N; i++) {
        [[unroll]] for (uint j = 0u; j < N; j++) mix_.v[to + N + i * N + j] = a[i][j];
    }
}

// gathered makes u of a token here, and returns the squares of this invocation's columns.
float gathered(uint t) {
    float pre[N];
    [[unroll]] for (uint i = 0u; i < N; i++) pre[i] = sigmoid(at(i, 0u)) + pc.hyper_eps;
    precise float squares = 0.0;
    for (uint q = gl_LocalInvocationIndex; q < D / 8u; q += 256u) {
        precise float u[8];
        [[unroll]] for (uint e = 0u; e < 8u; e++) u[e] = 0.0;
        [[unroll]] for (uint i = 0u; i < N; i++) {
            float y[8];
            bf16_unpack8(streams.v[(t * N + i) * (D / 8u) + q], y);
            [[unroll]] for (uint e = 0u; e < 8u; e++) u[e] = fma(pre[i], y[e], u[e]);
        }
        [[unroll]] for (uint e = 0u; e < 8u; e++) {
            u[e] = bf16_round(u[e]);
            squares = fma(u[e], u[e], squares);
        }
        u_s[q] = uvec4(bf16_pack2(u[0], u[1]), bf16_pack2(u[2], u[3]), bf16_pack2(u[4], u[5]), bf16_pack2(u[6], u[7]));
    }
    return squares;
}

void main() {
    const uint tid = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
    if (row >= step_.v[pc.wanted_at == 0u ? 0u : 1u]) return;
    const uint t = pc.wanted_at == 0u ? row : step_.v[pc.wanted_at + row];
    gather_m(t);
    if (gl_WorkGroupID.y == 1u) {
        if (tid == 0u && ROWS > N) mixing(t);
        return;
    }
    square_s[tid] = gathered(t);
    barrier();
    [[unroll]] for (uint n = 128u; n > 0u; n /= 2u) {
        if (tid < n) square_s[tid] += square_s[tid + n];
        barrier();
    }
    const float r = inversesqrt(square_s[0] / float(D) + pc.eps);
    for (uint q = tid; q < D / 8u; q += 256u) {
        float u[8];
        bf16_unpack8(u_s[q], u);
        const vec4 a = norm.v[2u * q], b = norm.v[2u * q + 1u];
        x.v[row * pc.x_quads + (pc.placed == 1u ? place(q) : q)] =
            uvec4(bf16_pack2(u[0] * r * a.x, u[1] * r * a.y), bf16_pack2(u[2] * r * a.z, u[3] * r * a.w),
                bf16_pack2(u[4] * r * b.x, u[5] * r * b.y), bf16_pack2(u[6] * r * b.z, u[7] * r * b.w));
    }
}
