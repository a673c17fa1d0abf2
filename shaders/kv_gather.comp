// Dequantise and gather: for request r, n = seq_lens[r], g = gather_lens[r] (or n), i = 0..g-1:
//   p = n - g + i;  out[r, offset + i] = slot p%PAGE of page table[r, p/PAGE], as 512 bf16
// Other rows keep their bytes. A negative page id counts as page 0; a position outside the table,
// or a page outside the pool, gives a row of zeros.
// With SLOTS, which a build defines, R is 1 and the table lists slots: row i = 0..W-1 becomes slot
// table[i]%PAGE of page table[i]/PAGE, or zeros where table[i] < 0 or beyond the pool.
// Bindings:  0 seq_lens [R] i32   1 gather_lens [R] i32 (read when has_gather)   2 table [R, W] i32
//            3 out [R, M, 512] bf16   4 pool [pages, stride] u8   (3 and 4 not with ADDRESSED)
// Workgroup: 2 rows at a time, 64 invocations each; grid (any, R), x strides over rows
//   0..M-offset-1.
// Constants: 0 PAGE, slots per page, 1 RECORD.  Shared memory: 0.
// Features:  none; with ADDRESSED bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"

const uint ROWS = 2u; // of a workgroup at a time
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint RECORD = 0u; // lib/kv_record.glsl

layout(std430, set = 0, binding = 0) readonly buffer SeqLens { int seq_lens[]; };
layout(std430, set = 0, binding = 1) readonly buffer GatherLens { int gather_lens[]; };
layout(std430, set = 0, binding = 2) readonly buffer Table { int table[]; };

layout(push_constant) uniform Push {
    ADDRESS pool_addr;
    ADDRESS out_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint width;       // W
    uint rows;        // M
    uint offset;
    uint has_gather;
} pc;
KV_POOL(pool, 4)
#include "lib/kv_row.glsl"

#ifdef ADDRESSED
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutRow { uvec4 v; };
void store_out(uint r, uint row, uint lane, uvec4 w) {
    OutRow(pc.out_addr + ((uint64_t(r) * pc.rows + row) * KV_ROW_LANES + lane) * 16u).v = w;
}
#else
layout(std430, set = 0, binding = 3) writeonly buffer Out { uvec4 out_rows[]; };
void store_out(uint r, uint row, uint lane, uvec4 w) { out_rows[(r * pc.rows + row) * KV_ROW_LANES + lane] = w; }
#endif

#ifdef SLOTS
void main() {
    const uint lane = gl_LocalInvocationID.x % KV_ROW_LANES;
    uint i = gl_WorkGroupID.x * ROWS + gl_LocalInvocationID.x / KV_ROW_LANES;
    for (; i < pc.width; i += gl_NumWorkGroups.x * ROWS) {
        int slot = table[i];
        uint page = uint(max(slot, 0)) / PAGE;
        bool known = slot >= 0 && page < pc.pool_pages;
        store_out(0u, i, lane, known ? kv_row8(page, uint(slot) % PAGE, PAGE, lane) : uvec4(0u));
    }
}
#else
void main() {
    uint r = gl_WorkGroupID.y;
    uint lane = gl_LocalInvocationID.x % KV_ROW_LANES;
    int n = seq_lens[r];
    int g = pc.has_gather != 0u ? gather_lens[r] : n;
    int start = n - g;
    uint rows = min(uint(max(g, 0)), pc.rows - pc.offset);

    uint i = gl_WorkGroupID.x * ROWS + gl_LocalInvocationID.x / KV_ROW_LANES;
    for (; i < rows; i += gl_NumWorkGroups.x * ROWS) {
        int p = start + int(i); // negative where a gather length exceeds the sequence
        uint entry = uint(max(p, 0)) / PAGE;
        bool known = p >= 0 && entry < pc.width;
        uint page = known ? uint(max(table[r * pc.width + entry], 0)) : 0u;
        known = known && page < pc.pool_pages;
        store_out(r, pc.offset + i, lane, known ? kv_row8(page, uint(p) % PAGE, PAGE, lane) : uvec4(0u));
    }
}
#endif
