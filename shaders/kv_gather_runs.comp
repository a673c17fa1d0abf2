// Dequantise and gather runs of rows for a piece of a prompt's attention. A run of a piece fills
// rows of the workspace from run.row up to the row of the next run; the last one only ends them.
// Row run.row + i of the workspace becomes, as 512 bf16 (lib/kv_row.glsl) or f16
// (lib/half_bf16.glsl),
//   run.list = 0: slot p%PAGE of page table[run.of, p/PAGE], p = run.first + i
//   run.list = 1: slot s%PAGE of page s/PAGE, s = lists[run.of, run.first + i]
// or zeros where there is no such page or slot. Rows of no run keep their bytes.
// Bindings:  0 heads [pieces, 2, 2] i32: first run of a piece and set, number of its runs
//            1 runs [.., 4] i32: row, of, first, list   2 table [R, W] i32   3 lists [T, K] i32
//            4 out [rows, 512] of 16 bits   5 pool [pages, stride] u8
//            (4 and 5 not with ADDRESSED)
// Workgroup: 2 rows at a time, 64 invocations each; the grid strides over the rows of the piece.
// Constants: 0 PAGE, slots per page; 1 HALVES, 1: f16; 2 RECORD.  Shared memory: 0.
// Features:  none; with ADDRESSED bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"

const uint ROWS = 2u; // of a workgroup at a time
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint HALVES = 0u;
layout(constant_id = 2) const uint RECORD = 0u; // lib/kv_record.glsl

layout(std430, set = 0, binding = 0) readonly buffer Heads { ivec2 heads[]; };
layout(std430, set = 0, binding = 1) readonly buffer Runs { ivec4 runs[]; };
layout(std430, set = 0, binding = 2) readonly buffer Table { int table[]; };
layout(std430, set = 0, binding = 3) readonly buffer Lists { int lists[]; };

layout(push_constant) uniform Push {
    ADDRESS pool_addr;
    ADDRESS out_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint piece;
    uint set;
    uint rows;     // of out
    uint requests; // R
    uint width;    // W
    uint tokens;   // T
    uint topk;     // K
    uint row0;     // the runs' row that is the first of out
} pc;
KV_POOL(pool, 5)
#include "lib/kv_row.glsl"
#include "lib/half_bf16.glsl"

#ifdef ADDRESSED
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutRow { uvec4 v; };
void store_out(uint row, uint lane, uvec4 w) { OutRow(pc.out_addr + (uint64_t(row) * KV_ROW_LANES + lane) * 16u).v = w; }
#else
layout(std430, set = 0, binding = 4) writeonly buffer Out { uvec4 out_rows[]; };
void store_out(uint row, uint lane, uvec4 w) { out_rows[row * KV_ROW_LANES + lane] = w; }
#endif

// slot_of: the slot of number i of a run, or -1. Runs come from memory: every index is checked.
int slot_of(ivec4 run, int i) {
    const uint of = uint(run.y), at = uint(run.z + i);
    if (run.w != 0) return of < pc.tokens && at < pc.topk ? lists[of * pc.topk + at] : -1;
    if (of >= pc.requests || at / PAGE >= pc.width) return -1;
    const int page = table[of * pc.width + at / PAGE];
    return page < 0 || uint(page) >= pc.pool_pages ? -1 : int(uint(page) * PAGE + at % PAGE);
}

void main() {
    const uint lane = gl_LocalInvocationID.x % KV_ROW_LANES;
    const ivec2 head = heads[pc.piece * 2u + pc.set];
    const int first = runs[head.x].x;
    const uint count = min(uint(max(runs[head.x + head.y].x - first, 0)), pc.rows);
    uint i = gl_WorkGroupID.x * ROWS + gl_LocalInvocationID.x / KV_ROW_LANES;
    for (; i < count; i += gl_NumWorkGroups.x * ROWS) {
        const int row = first + int(i);
        int low = head.x, high = head.x + head.y; // the last run that begins at or before the row
        while (high - low > 1) {
            const int mid = (low + high) >> 1;
            if (runs[mid].x <= row) low = mid; else high = mid;
        }
        const ivec4 run = runs[low];
        const int slot = slot_of(run, row - run.x);
        const bool known = slot >= 0 && uint(slot) / PAGE < pc.pool_pages;
        const uint to = uint(row) - pc.row0;
        if (to >= pc.rows) continue;
        uvec4 w = known ? kv_row8(uint(slot) / PAGE, uint(slot) % PAGE, PAGE, lane) : uvec4(0u);
        if (HALVES != 0u) w = half_from_bf16x8(w);
        store_out(to, lane, w);
    }
}
