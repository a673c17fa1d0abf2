// What the norms of query and K rows have in common. Include lib/kv_page.glsl and lib/tensors.glsl
// before.
#ifndef LIB_QKV_NORM_GLSL
#define LIB_QKV_NORM_GLSL
#include "lib/bf16.glsl"

layout(push_constant) uniform Push {
    ADDRESS qr_addr;
    ADDRESS kv_addr;
    ADDRESS qr_weight_addr;
    ADDRESS kv_weight_addr;
    ADDRESS qr_out_addr;
    ADDRESS kv_out_addr;
    uint qr_stride; // units of a row of qr
    uint qr_at;     // unit of its first column
    uint kv_stride;
    uint kv_at;
    uint qr_f32;    // 1 if qr_weight is f32
    uint kv_f32;
    float qr_inverse; // 1 / RANK
    float eps;
} pc;
TENSOR(uvec4, qr, 0)
TENSOR(uvec4, kv, 1)
TENSOR(uvec4, qr_weight, 2)
TENSOR(uvec4, kv_weight, 3)
TENSOR_OUT(uvec4, qr_out, 4)
TENSOR_OUT(uvec4, kv_out, 5)

// norm_gains: 8 weights, of f32 four in each of g and h, of bf16 all in g.
void norm_gains(uvec4 g, uvec4 h, bool f32, out vec4 a, out vec4 b) {
    a = uintBitsToFloat(g);
    b = uintBitsToFloat(h);
    if (!f32) {
        a = vec4(bf16_unpack2(g.x), bf16_unpack2(g.y));
        b = vec4(bf16_unpack2(g.z), bf16_unpack2(g.w));
    }
}

#endif
