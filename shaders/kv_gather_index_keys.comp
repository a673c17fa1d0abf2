// Gather indexer keys: for i = 0..cu[r+1]-cu[r]-1, row n = cu[r] + i of the outputs is entry i of
// request r, copied from slot i%PAGE of page table[r, i/PAGE]: codes to dst_k[n], scales to
// dst_scale[n]. Other rows keep their bytes. A negative page id counts as page 0; an entry outside
// the table, or a page outside the pool, gives a row of zeros.
// Bindings:  0 cu [R+1] i32, ascending   1 table [R, W] i32   2 dst_k [N, B] u8
//            3 dst_scale [N, 4] u8   4 pool [pages, stride] u8
//            (2, 3 and 4 not in _da builds); B = 128 (FP8) or 64 (MXFP4)
// Workgroup: B/8 invocations for a row, 1024/B rows at a time, striding over rows 0..N-1.
// Constants: 0 PAGE, slots per page; 1 FORMAT, 1 FP8 or 2 MXFP4.  Shared memory: 0.
// Features:  none; _da: bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"
#include "lib/index_page.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint FORMAT = INDEX_FP8;

layout(std430, set = 0, binding = 0) readonly buffer Cu { int cu[]; };
layout(std430, set = 0, binding = 1) readonly buffer Table { int table[]; };

layout(push_constant) uniform Push {
    KV_ADDR pool_addr;
    KV_ADDR k_addr;
    KV_ADDR scale_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint requests;    // R
    uint width;       // W
    uint rows;        // N
} pc;
KV_POOL(pool, 4)

#ifdef KV_DA
void store_codes(uint row, uint lanes, uint lane, uvec2 w) { KvWrite2(pc.k_addr + (uint64_t(row) * lanes + lane) * 8u).v = w; }
void store_scale(uint row, uint w) { KvWrite1(pc.scale_addr + uint64_t(row) * 4u).v = w; }
#else
layout(std430, set = 0, binding = 2) writeonly buffer DstK { uvec2 dst_k[]; };
layout(std430, set = 0, binding = 3) writeonly buffer DstScale { uint dst_scale[]; };
void store_codes(uint row, uint lanes, uint lane, uvec2 w) { dst_k[row * lanes + lane] = w; }
void store_scale(uint row, uint w) { dst_scale[row] = w; }
#endif

// request_of: the last request that begins at or before a row, by halving.
uint request_of(int row) {
    uint low = 0u, high = pc.requests; // cu[low] <= row, and cu[high] > row if it is below R
    while (high - low > 1u) {
        uint middle = (low + high) / 2u;
        if (cu[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

void main() {
    const uint lanes = index_row_bytes(FORMAT) / 8u;
    const uint at_once = gl_WorkGroupSize.x / lanes;
    const uint lane = gl_LocalInvocationID.x % lanes;
    const uint end = uint(clamp(cu[pc.requests], 0, int(pc.rows)));
    for (uint n = gl_WorkGroupID.x * at_once + gl_LocalInvocationID.x / lanes; n < end; n += gl_NumWorkGroups.x * at_once) {
        const uint r = request_of(int(n));
        const int i = int(n) - cu[r];
        if (i < 0) continue; // before the first request
        const uint column = uint(i) / PAGE, t = uint(i) % PAGE;
        const uint page = column < pc.width ? uint(max(table[r * pc.width + column], 0)) : 0u;
        uvec2 codes = uvec2(0u);
        uint scale = 0u;
        if (column < pc.width && page < pc.pool_pages) {
            codes = pool_word2(page, index_row_byte(FORMAT, t) + lane * 8u);
            if (lane == 0u) scale = pool_word(page, index_scale_byte(FORMAT, PAGE, t));
        }
        store_codes(n, lanes, lane, codes);
        if (lane == 0u) store_scale(n, scale);
    }
}
