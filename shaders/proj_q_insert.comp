// Query norm and rotation, and insertion of the K row: for token t at position p, in binary32
//   y = x * (sum_i x_i^2 / 512 + eps)^-0.5 of head h, y[448..511] turned at p; q[t,h] = bf16(y)
//   x = columns kv_at .. kv_at+511 of kv[t], with NORM normed as in proj_qkv_norm.comp; x[448..511]
//     turned at p and rounded to bf16; then to slot s = slots[t] >= 0 as kv_insert.comp does
// Shared memory: 896 B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with LANES_PASS those
//   of lib/lanes.glsl.
// Bindings: 0 kv [N,kv_width] bf16, 1 slots [T] i64, T <= N, 2 positions [N] i32, 3 table [rows,64]
//   f32 (lib/rope.glsl), 4 kv_weight [512] bf16 or f32, 5 q [N,H,512] bf16, read and written, 6
//   pool [pages,stride] u8; with ADDRESSED all by address.
// Workgroup: 4 heads (x) of token y, 32 invocations each with two units of 8 numbers; the last x:
//   the K row.
// Constants: 0 PAGE, slots of a page, 1 NORM: 0 none, 1 kv_weight is bf16, 2 f32, 2 RECORD
//   (lib/kv_record.glsl), 3 Q_NORM, 0: queries are turned only; LANES_PASS: 4 SUBGROUP.
// A position outside the table counts as its nearest row, a slot beyond the pool as -1.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"
#include "lib/rows.glsl"
#include "lib/tensors.glsl"
#include "lib/quantise.glsl"
#include "lib/kv_record.glsl"
#include "lib/rope_bf16.glsl"

const uint HEADS = 4u;  // of a workgroup
const uint LANES = 32u; // of a head
const uint UNITS = 64u; // of a head or K row
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint NORM = 0;
layout(constant_id = 2) const uint RECORD = 0u;
layout(constant_id = 3) const uint Q_NORM = 1u;
layout(constant_id = 4) const uint SUBGROUP = 32;
#ifdef LANES_PASS
#include "lib/lanes.glsl"
#else
uint lanes_me() { return gl_LocalInvocationID.x; }
#endif

layout(push_constant) uniform Push {
    ADDRESS kv_addr;
    ADDRESS slots_addr;
    ADDRESS positions_addr;
    ADDRESS table_addr;
    ADDRESS weight_addr;
    ADDRESS q_addr;
    ADDRESS pool_addr;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint heads;       // H
    uint tokens;      // T
    uint table_rows;
    float eps;
    uint kv_stride;   // units of a row of kv
    uint kv_at;       // unit of its first column
} pc;
TENSOR(uvec4, kv, 0)
TENSOR(uvec2, slots, 1)
TENSOR(int, positions, 2)
TENSOR(uvec4, table, 3)
ROPE_TABLE4(table)
TENSOR(uvec4, weight, 4)
ROWS_RW(q, 5)
KV_POOL_RW(pool, 6)

shared vec4 rms_of[HEADS * LANES / 4u];
shared uvec4 amax_of[UNITS / 4u]; // of the K row, bf16 bits without sign
const uint SCALES = RECORD_OF(RECORD, SCALES); // of a slot
shared uint scale_of[32]; // scale bytes
#include "lib/rms.glsl"
#include "lib/q_norm.glsl"

uint table_row(uint t) { return uint(clamp(positions_at(t), 0, int(pc.table_rows) - 1)); }

void heads4(uint t) {
    const uint me = lanes_me(), lane = me % LANES;
    const uint head = gl_WorkGroupID.x * HEADS + me / LANES;
    const bool live = head < pc.heads;
    if (Q_NORM == 0u) {
        if (live && lane >= LANES - 8u) {
            const uint at = (t * pc.heads + head) * UNITS + lane + LANES;
            const uvec4 w = q_load(at);
            vec4 near, far;
            table_cos_sin4(table_row(t), (lane + 8u - LANES) * 4u, false, near, far);
            q_store(at, rope_bf16_words(w, near, far));
        }
        return;
    }
    const uint unit = (t * pc.heads + min(head, pc.heads - 1u)) * UNITS + lane;
    const uvec4 a = q_load(unit);
    uvec4 b = q_load(unit + LANES);
    vec4 near = vec4(0.0), far = vec4(0.0); // cosines and sines of the four pairs of b, the last 8 lanes
    const bool turns = lane >= LANES - 8u;
    if (turns) {
        table_cos_sin4(table_row(t), (lane + 8u - LANES) * 4u, false, near, far);
    }
    precise float sum = rms_squares(a) + rms_squares(b);
#ifdef LANES_PASS
    const float all = lanes_sum32(sum);
#else
    rms_of[me / 4u][me % 4u] = sum;
    barrier();
    const float all = rms_sum32(me - lane);
#endif
    if (!live) return;
    const float r = rms_factor(all, 1.0 / 512.0, pc.eps);
    if (floatBitsToUint(all) >= floatBitsToUint(RMS_MOST)) { // by bits: compilers may turn a comparison round, which a NaN fails
        q_store(unit, q_unusual(a, r, near, far, false));
        q_store(unit + LANES, q_unusual(b, r, near, far, turns));
        return;
    }
    q_store(unit, uvec4(q_scaled(a.x, r), q_scaled(a.y, r), q_scaled(a.z, r), q_scaled(a.w, r)));
    if (turns) b = uvec4(q_turned(b.x, r, near.xy), q_turned(b.y, r, near.zw), q_turned(b.z, r, far.xy), q_turned(b.w, r, far.zw));
    else b = uvec4(q_scaled(b.x, r), q_scaled(b.y, r), q_scaled(b.z, r), q_scaled(b.w, r));
    q_store(unit + LANES, b);
}

// gains: weights of the K row's norm, of unit u.
void gains(uint u, out vec4 a, out vec4 b) {
    if (NORM == 2u) {
        a = uintBitsToFloat(weight_at(2u * u));
        b = uintBitsToFloat(weight_at(2u * u + 1u));
    } else {
        const uvec4 both = weight_at(u);
        a = vec4(bf16_unpack2(both.x), bf16_unpack2(both.y));
        b = vec4(bf16_unpack2(both.z), bf16_unpack2(both.w));
    }
}

// insert_record: 8 numbers of a record other than V4's, already turned.
void insert_record(uint me, bool live, uint page, uint place, uvec4 w) {
    const uint lane = me % UNITS, sharers = record_block(RECORD) / 8u; // lanes of a block
    if (me < UNITS) amax_of[lane / 4u][lane % 4u] = max(quantise_amax(w.xy), quantise_amax(w.zw));
    barrier();
    const uvec4 m = amax_of[lane / 4u];
    const uvec2 pair = (lane & 2u) == 0u ? m.xy : m.zw;
    const uint amax = sharers == 4u ? max(max(m.x, m.y), max(m.z, m.w)) : max(pair.x, pair.y);
    const uint sb = record_scale(RECORD, uintBitsToFloat(amax << 16));
    if (me < UNITS && lane % sharers == 0u) scale_of[lane / sharers] = sb;
    barrier();
    if (me >= UNITS || !live) return;
    const uint at = record_row_byte(RECORD, place);
    if (record_nibbles(RECORD)) {
        const float s = e4m3_decode(sb);
        pool_store_word(page, at + lane * 4u, fp4_codes4(w.xy, s) | (fp4_codes4(w.zw, s) << 16));
    } else {
        pool_store_word2(page, at + lane * 8u, quantise8(w, ue8m0_inverse(sb), amax < 0x7F80u));
    }
    if (lane < SCALES / 4u) {
        pool_store_word(page, record_scale_byte(RECORD, PAGE, place) + 4u * lane, scale_of[4u * lane]
            | (scale_of[4u * lane + 1u] << 8) | (scale_of[4u * lane + 2u] << 16) | (scale_of[4u * lane + 3u] << 24));
    }
}

// insert: loads come before anything is decided, so that they wait for each other no more than they
// must; invocations from 64 on do what others do, too, and store nothing.
void insert(uint t) {
    const uint me = lanes_me(), lane = me % UNITS, block = lane / 8u, pair = (lane % 8u) * 4u;
    uvec4 w = kv_at(t * pc.kv_stride + pc.kv_at + lane);
    vec4 a, b;
    if (NORM != 0u) gains(lane, a, b);
    const uvec2 slot = t < pc.tokens ? slots_at(t) : uvec2(0xFFFFFFFFu);
    const uint row = table_row(t), page = slot.x / PAGE, place = slot.x % PAGE;
    vec4 near, far;
    table_cos_sin4(row, pair, false, near, far);
    const bool live = slot.y == 0u && page < pc.pool_pages; // a negative slot has a high word
    if (NORM != 0u) { // as proj_qkv_norm.comp
        rms_of[me / 4u][me % 4u] = rms_squares(w);
        barrier();
        precise float all = rms_sum32(0u) + rms_sum32(32u);
        w = rms_scaled(w, rms_factor(all, 1.0 / 512.0, pc.eps), a, b);
    }
    if (block == KV_BLOCKS) {
        w = rope_bf16_words(w, near, far);
    }
    if (RECORD != RECORD_V4) {
        insert_record(me, live, page, place, w);
        return;
    }
    if (me < UNITS) amax_of[lane / 4u][lane % 4u] = max(quantise_amax(w.xy), quantise_amax(w.zw));
    barrier();
    const uvec4 m = max(amax_of[block * 2u], amax_of[block * 2u + 1u]);
    const uint amax = max(max(m.x, m.y), max(m.z, m.w));
    const uint sb = ue8m0_encode(uintBitsToFloat(amax << 16), UE8M0_EPS_KV, UE8M0_INV_E4M3);
    if (me < UNITS && lane % 8u == 0u) scale_of[block] = sb;
    barrier();
    if (me >= UNITS || !live) return;
    const uint at = kv_row_byte(place);
    if (block < KV_BLOCKS) {
        pool_store_word2(page, at + lane * 8u, quantise8(w, ue8m0_inverse(sb), amax < 0x7F80u));
        return;
    }
    const uint rope = at + KV_ROPE_BYTE + (lane % 8u) * 16u;
    pool_store_word2(page, rope, w.xy);
    pool_store_word2(page, rope + 8u, w.zw);
    if (lane == UNITS - 1u) {
        pool_store_word2(page, kv_scale_byte(PAGE, place), uvec2(
            scale_of[0] | (scale_of[1] << 8) | (scale_of[2] << 16) | (scale_of[3] << 24),
            scale_of[4] | (scale_of[5] << 8) | (scale_of[6] << 16)));
    }
}

void main() {
    if (gl_WorkGroupID.x + 1u == gl_NumWorkGroups.x) insert(gl_WorkGroupID.y);
    else heads4(gl_WorkGroupID.y);
}
