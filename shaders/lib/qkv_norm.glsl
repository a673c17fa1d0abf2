// What the builds of the norms of query and K rows have in common: what they reach, loading a row and storing it normed. Declare LANES,
// the invocations of a workgroup, and the constant RANK before; include lib/kv_page.glsl and lib/tensors.glsl.
#ifndef LIB_QKV_NORM_GLSL
#define LIB_QKV_NORM_GLSL

const uint STEPS = (RANK / 8u + LANES - 1u) / LANES;
const uint KV_UNITS = 64u;

layout(push_constant) uniform Push {
    KV_ADDR qr_addr;
    KV_ADDR kv_addr;
    KV_ADDR qr_weight_addr;
    KV_ADDR kv_weight_addr;
    KV_ADDR qr_out_addr;
    KV_ADDR kv_out_addr;
    uint qr_stride; // units of a row of qr
    uint qr_at;     // unit of its first column
    uint kv_stride;
    uint kv_at;
    uint qr_f32;    // 1 if qr_weight is f32
    uint kv_f32;
    float qr_inverse; // 1 / RANK
    float eps;
} pc;

#ifdef KV_DA // all that differs between the two rows is where they are
uvec4 x_at(bool is_kv, uint i) { return Read_uvec4(is_kv ? pc.kv_addr : pc.qr_addr).v[i]; }
uvec4 weight_at(bool is_kv, uint i) { return Read_uvec4(is_kv ? pc.kv_weight_addr : pc.qr_weight_addr).v[i]; }
void out_put(bool is_kv, uint i, uvec4 y) { Write_uvec4(is_kv ? pc.kv_out_addr : pc.qr_out_addr).v[i] = y; }
#else
TENSOR(uvec4, qr, 0)
TENSOR(uvec4, kv, 1)
TENSOR(uvec4, qr_weight, 2)
TENSOR(uvec4, kv_weight, 3)
TENSOR_OUT(uvec4, qr_out, 4)
TENSOR_OUT(uvec4, kv_out, 5)
uvec4 x_at(bool is_kv, uint i) { return is_kv ? kv_at(i) : qr_at(i); }
uvec4 weight_at(bool is_kv, uint i) { return is_kv ? kv_weight_at(i) : qr_weight_at(i); }
void out_put(bool is_kv, uint i, uvec4 y) {
    if (is_kv) kv_out_put(i, y);
    else qr_out_put(i, y);
}
#endif
#include "lib/rms.glsl"

bool norm_is_kv() { return gl_WorkGroupID.y != 0u; }
bool norm_f32() { return (norm_is_kv() ? pc.kv_f32 : pc.qr_f32) != 0u; }
uint norm_units() { return norm_is_kv() ? KV_UNITS : RANK / 8u; }

// norm_load: every LANES-th unit of a row and its weights, those of an f32 weight in g and h. All are under way before anything waits.
void norm_load(uint lane, out uvec4 w[STEPS], out uvec4 g[STEPS], out uvec4 h[STEPS]) {
    const uint t = gl_WorkGroupID.x, row = norm_is_kv() ? t * pc.kv_stride + pc.kv_at : t * pc.qr_stride + pc.qr_at;
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        w[i] = g[i] = h[i] = uvec4(0u);
        if (u < norm_units()) {
            w[i] = x_at(norm_is_kv(), row + u);
            g[i] = weight_at(norm_is_kv(), norm_f32() ? 2u * u : u);
            if (norm_f32()) h[i] = weight_at(norm_is_kv(), 2u * u + 1u);
        }
    }
}

// norm_store: the row, whose squares have the sum all.
void norm_store(uint lane, float all, uvec4 w[STEPS], uvec4 g[STEPS], uvec4 h[STEPS]) {
    const float r = rms_factor(all, norm_is_kv() ? 1.0 / 512.0 : pc.qr_inverse, pc.eps);
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        if (u >= norm_units()) continue;
        vec4 a = uintBitsToFloat(g[i]), b = uintBitsToFloat(h[i]);
        if (!norm_f32()) {
            a = vec4(bf16_unpack2(g[i].x), bf16_unpack2(g[i].y));
            b = vec4(bf16_unpack2(g[i].z), bf16_unpack2(g[i].w));
        }
        out_put(norm_is_kv(), gl_WorkGroupID.x * norm_units() + u, rms_scaled(w[i], r, a, b));
    }
}

#endif
