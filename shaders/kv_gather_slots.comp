// Dequantise slots: out[i] = slot indices[i]%PAGE of page indices[i]/PAGE, 512 bf16
// (lib/kv_row.glsl), or 512 zeros where indices[i] < 0 or beyond the pool.
// Bindings:  0 indices [S] i32   1 out [S, 512] bf16   2 pool [pages, stride] u8
//            (1 and 2 not in _da builds)
// Workgroup: 2 rows at a time, 64 invocations each; the grid strides over rows 0..S-1.
// Constants: 0 PAGE, slots per page, 1 RECORD.  Shared memory: 0.
// Features:  none; _da: bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"

const uint ROWS = 2u; // of a workgroup at a time
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint RECORD = 0u; // lib/kv_record.glsl

layout(std430, set = 0, binding = 0) readonly buffer Indices { int indices[]; };

layout(push_constant) uniform Push {
    KV_ADDR pool_addr;
    KV_ADDR out_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint count;       // S
} pc;
KV_POOL(pool, 2)
#include "lib/kv_row.glsl"

#ifdef KV_DA
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutRow { uvec4 v; };
void store_out(uint row, uint lane, uvec4 w) {
    OutRow(pc.out_addr + (uint64_t(row) * KV_ROW_LANES + lane) * 16u).v = w;
}
#else
layout(std430, set = 0, binding = 1) writeonly buffer Out { uvec4 out_rows[]; };
void store_out(uint row, uint lane, uvec4 w) { out_rows[row * KV_ROW_LANES + lane] = w; }
#endif

void main() {
    uint lane = gl_LocalInvocationID.x % KV_ROW_LANES;
    uint i = gl_WorkGroupID.x * ROWS + gl_LocalInvocationID.x / KV_ROW_LANES;
    for (; i < pc.count; i += gl_NumWorkGroups.x * ROWS) {
        int slot = indices[i];
        uint page = uint(max(slot, 0)) / PAGE;
        bool known = slot >= 0 && page < pc.pool_pages;
        store_out(i, lane, known ? kv_row8(page, uint(slot) % PAGE, PAGE, lane) : uvec4(0u));
    }
}
