#version 460
// Compress: for token i at position p that ends a group, (p+1)%RATIO == 0, with a window of N = WINDOW tokens,
//   row j = 0..N-1 is the state of position p-N+1+j, found by the request's row of table; channel c of it is c for
//   j < RATIO, else DIM+c;  rows of positions < 0 or without a page are absent
//   v[c] = sum_j kv_j[c] * exp(score_j[c] - m) / sum_j exp(score_j[c] - m),  m = max_j score_j[c]
//   n[c] = v[c] * (sum_c v[c]^2 / DIM + eps)^-0.5 * norm[c];  n[DIM-64..] rotated for position p+1-RATIO
//   x = bf16(n), Hadamard-rotated if HADAMARD; quantised into slot slots[i]: FORMAT 0 a K row (kv_page.glsl),
//   1 or 2 an indexer key (index_page.glsl), scales as in ue8m0.glsl over blocks of 64 (not the last), 128, 32
// Bindings:  0 positions [T] i32   1 token_to_req [T] i32   2 state_slots [T] i64   3 slots [T] i64   4 table [R, W] i32
//            5 norm [DIM] f32 or bf16   6 cos_sin [rows, 64] f32, row k of position k*ROPE_STEP
//            7 state [pages, stride] u8   8 pool [pages, stride] u8 (both not in _da builds)
// Workgroup: pc.each tokens, one at a time; DIM/4 lanes of 4 channels, times GROUPS that share the rows of a long window.
// Constants: 0 invocations, 1 PAGE of pool, 2 STATE_PAGE, 3 RATIO, 4 DIM, 5 FORMAT, 6 HADAMARD, 7 ROPE_STEP, 8 CHUNK.
// Shared memory: 16*invocations + 4*WINDOW + 8*DIM/4 + 672 bytes.  Features: none; _da: bufferDeviceAddress, shaderInt64.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/state_page.glsl"
#include "lib/index_page.glsl"
#include "lib/bf16.glsl"
#include "lib/quantise.glsl"
#include "lib/real.glsl"
#include "lib/rope.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint PAGE = 64;
layout(constant_id = 2) const uint STATE_PAGE = 4;
layout(constant_id = 3) const uint RATIO = 4;
layout(constant_id = 4) const uint DIM = 512;
layout(constant_id = 5) const uint FORMAT = 0;
layout(constant_id = 6) const uint HADAMARD = 0;
layout(constant_id = 7) const uint ROPE_STEP = 1;
layout(constant_id = 8) const uint CHUNK = 8; // rows that an invocation has under way, 4 or 8

const uint WINDOW = RATIO == 4u ? 2u * RATIO : RATIO;
const uint CHANNELS = RATIO == 4u ? 2u * DIM : DIM;     // kv values, and scores, of a token
const uint LANES = DIM / 4u;
const uint GROUPS = gl_WorkGroupSize.x / LANES;
const uint SCAN = 32u;

layout(std430, set = 0, binding = 0) readonly buffer Positions { int positions[]; };
layout(std430, set = 0, binding = 1) readonly buffer TokenToReq { int token_to_req[]; };
layout(std430, set = 0, binding = 2) readonly buffer StateSlots { uvec2 state_slots[]; };
layout(std430, set = 0, binding = 3) readonly buffer Slots { uvec2 slots[]; };
layout(std430, set = 0, binding = 4) readonly buffer Table { int table[]; };
layout(std430, set = 0, binding = 5) readonly buffer Norm { uvec2 norm[]; };
ROPE_TABLE(cos_sin, 6)

layout(push_constant) uniform Push {
    KV_ADDR state_addr;
    KV_ADDR pool_addr;
    uint state_units; // 16-byte units per page
    uint state_pages;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint tokens;      // T
    uint each;        // tokens of a workgroup
    uint requests;    // R
    uint width;       // W
    uint rope_rows;
    uint norm_bf16;   // 1 if norm is bf16
    float eps;
} pc;
STATE_POOL(state, 7)
KV_POOL_RW(pool, 8)

shared vec4 part[LANES * GROUPS];
shared uint todo[SCAN];     // 1 for tokens that complete an entry
shared uint row_at[WINDOW]; // unit of the row's first kv channel, or STATE_NONE
shared vec4 square_of[LANES / 4u];
shared uint amax_of[LANES];
shared uint scale_of[8];
shared float hadamard_of[INDEX_DIM];
#include "lib/hadamard.glsl"

uint row_of(uint request, int p, uint j) {
    int at = p + 1 - int(WINDOW) + int(j);
    uint entry = uint(at) / STATE_PAGE;
    if (at < 0 || entry >= pc.width) return STATE_NONE;
    uint page = uint(table[request * pc.width + entry]); // a negative id is beyond every pool
    if (page >= pc.state_pages) return STATE_NONE;
    return page * pc.state_units + (uint(at) % STATE_PAGE) * (CHANNELS / 2u) + (j < RATIO ? 0u : DIM / 4u);
}

// pooled: the softmax-weighted sum of the window's rows, 4 channels; defined in group 0. A group
// takes every GROUPS-th chunk and keeps the sums relative to the largest score it has seen.
vec4 pooled(uint group, uint lane) {
    vec4 top = vec4(-3.4e38), weight = vec4(0.0), sum = vec4(0.0);
    for (uint first = group * CHUNK; first < WINDOW; first += GROUPS * CHUNK) {
        vec4 s[8], k[8];
        [[unroll]] for (uint j = 0u; j < CHUNK; j++) {
            uint at = row_at[first + j];
            uint unit = (at == STATE_NONE ? 0u : at) + lane; // the load needs no branch: it is inside the pool
            k[j] = state_load(unit);
            s[j] = state_load(unit + CHANNELS / 4u);
            if (at == STATE_NONE) { k[j] = vec4(0.0); s[j] = vec4(-3.0e38); }
        }
        vec4 now = top;
        [[unroll]] for (uint j = 0u; j < CHUNK; j++) now = max(now, s[j]);
        [[unroll]] for (uint j = 0u; j < CHUNK; j++) {
            s[j] = real_exp(s[j] - now);
            precise vec4 product = k[j] * s[j];
            k[j] = product;
        }
        vec4 keep = real_exp(top - now);
        precise vec4 w = (s[0] + s[1]) + (s[2] + s[3]);
        precise vec4 y = (k[0] + k[1]) + (k[2] + k[3]);
        if (CHUNK == 8u) {
            precise vec4 w8 = w + ((s[4] + s[5]) + (s[6] + s[7]));
            precise vec4 y8 = y + ((k[4] + k[5]) + (k[6] + k[7]));
            w = w8;
            y = y8;
        }
        precise vec4 next_weight = weight * keep + w;
        precise vec4 next_sum = sum * keep + y;
        weight = next_weight;
        sum = next_sum;
        top = now;
    }
    if (GROUPS > 1u) {
        uint self = gl_LocalInvocationID.x;
        part[self] = top;
        barrier();
        vec4 now = top;
        for (uint g = 0u; g < GROUPS; g++) now = max(now, part[g * LANES + lane]);
        vec4 keep = real_exp(top - now);
        barrier();
        precise vec4 own_weight = weight * keep;
        part[self] = own_weight;
        barrier();
        weight = vec4(0.0);
        for (uint g = 0u; g < GROUPS; g++) { precise vec4 next = weight + part[g * LANES + lane]; weight = next; }
        barrier();
        precise vec4 own_sum = sum * keep;
        part[self] = own_sum;
        barrier();
        sum = vec4(0.0);
        for (uint g = 0u; g < GROUPS; g++) { precise vec4 next = sum + part[g * LANES + lane]; sum = next; }
    }
    precise vec4 v = sum * real_rcp(weight);
    return v;
}

// mean_square: over all channels; every lane of group 0 brings four.
float mean_square(bool mine, uint lane, vec4 v) {
    precise float q = (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    if (mine) square_of[lane / 4u][lane % 4u] = q;
    barrier();
    precise vec4 sum = vec4(0.0);
    for (uint a = 0u; a < LANES / 4u; a += 8u) {
        sum += ((square_of[a] + square_of[a + 1u]) + (square_of[a + 2u] + square_of[a + 3u]))
             + ((square_of[a + 4u] + square_of[a + 5u]) + (square_of[a + 6u] + square_of[a + 7u]));
    }
    precise float mean = ((sum.x + sum.y) + (sum.z + sum.w)) * (1.0 / float(DIM));
    return mean;
}

vec4 norm4(uint lane) {
    if (pc.norm_bf16 != 0u) {
        uvec2 w = norm[lane];
        return vec4(bf16_unpack2(w.x), bf16_unpack2(w.y));
    }
    return uintBitsToFloat(uvec4(norm[2u * lane], norm[2u * lane + 1u]));
}

// scale_byte: of the block of block_lanes lanes that lane is in.
uint scale_byte(uint lane, uint block_lanes, float eps, float inv_max) {
    uint amax = 0u;
    for (uint j = 0u; j < block_lanes; j++) amax = max(amax, amax_of[lane / block_lanes * block_lanes + j]);
    return ue8m0_encode(uintBitsToFloat(amax << 16), eps, inv_max);
}

void store_kv(bool mine, uint lane, uvec2 w, uint page, uint t) {
    uint block = lane / 16u; // 7 is the rotated part
    uint sb = scale_byte(lane, 16u, UE8M0_EPS_KV, UE8M0_INV_E4M3);
    if (mine && lane % 16u == 0u) scale_of[block] = sb;
    barrier();
    if (!mine) return;
    uint row = kv_row_byte(t);
    if (block < KV_BLOCKS) {
        pool_store_word(page, row + lane * 4u, quantise4(w, ue8m0_inverse(sb)));
        return;
    }
    pool_store_word2(page, row + KV_ROPE_BYTE + (lane % 16u) * 8u, w);
    if (lane == LANES - 1u) {
        pool_store_word2(page, kv_scale_byte(PAGE, t), uvec2(
            scale_of[0] | (scale_of[1] << 8) | (scale_of[2] << 16) | (scale_of[3] << 24),
            scale_of[4] | (scale_of[5] << 8) | (scale_of[6] << 16)));
    }
}

void store_fp8(uint lane, uvec2 w, uint page, uint t) {
    uint sb = scale_byte(lane, LANES, UE8M0_EPS_KV, UE8M0_INV_E4M3);
    pool_store_word(page, index_row_byte(INDEX_FP8, t) + lane * 4u, quantise4(w, ue8m0_inverse(sb)));
    if (lane == 0u) pool_store_word(page, index_scale_byte(INDEX_FP8, PAGE, t), floatBitsToUint(ue8m0_scale(sb)));
}

void store_mxfp4(uint lane, uvec2 w, uint page, uint t) {
    uint sb = scale_byte(lane, 8u, UE8M0_EPS_MXFP4, UE8M0_INV_E2M1);
    uint codes = quantise4_e2m1(w, ue8m0_inverse(sb));
    if (lane % 8u == 0u) scale_of[lane / 8u] = sb;
    barrier(); // all have read amax_of, which now takes codes
    amax_of[lane] = codes;
    barrier();
    if (lane % 2u == 0u) pool_store_word(page, index_row_byte(INDEX_MXFP4, t) + lane * 2u, codes | (amax_of[lane + 1u] << 16));
    if (lane == 1u) {
        pool_store_word(page, index_scale_byte(INDEX_MXFP4, PAGE, t),
            scale_of[0] | (scale_of[1] << 8) | (scale_of[2] << 16) | (scale_of[3] << 24));
    }
}

// completes: token i ends a group and all that belongs to it is inside its pool.
bool completes(uint i) {
    int p = positions[i];
    uvec2 state_slot = state_slots[i], slot = slots[i];
    return p >= 0 && (uint(p) + 1u) % RATIO == 0u && uint(token_to_req[i]) < pc.requests
        && state_slot.y == 0u && state_slot.x / STATE_PAGE < pc.state_pages
        && slot.y == 0u && slot.x / PAGE < pc.pool_pages;
}

void compress(uint i, uint group, uint lane) {
    int p = positions[i];
    uint slot = slots[i].x, page = slot / PAGE, request = uint(token_to_req[i]);
    bool mine = group == 0u;
    barrier(); // the token before has read what is shared
    for (uint j = gl_LocalInvocationID.x; j < WINDOW; j += gl_WorkGroupSize.x) row_at[j] = row_of(request, p, j);
    vec4 gain = norm4(lane);
    vec4 turn = vec4(0.0);
    bool turns = lane >= LANES - 16u;
    uint pair = 2u * (lane + 16u - LANES);
    if (turns) turn = cos_sin_cos_sin2(min((uint(p) + 1u - RATIO) / ROPE_STEP, pc.rope_rows - 1u), pair, false);
    barrier();

    vec4 v = pooled(group, lane);
    precise vec4 n = (v * real_rsqrt(mean_square(mine, lane, v) + pc.eps)) * gain;
    if (turns) n = vec4(rope_rotate(n.xy, turn.xy), rope_rotate(n.zw, turn.zw));
    uvec2 w = uvec2(bf16_pack2(n.x, n.y), bf16_pack2(n.z, n.w));
    if (HADAMARD != 0u) {
        vec4 h = hadamard128(vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)), 0u, lane);
        w = uvec2(bf16_pack2(h.x, h.y), bf16_pack2(h.z, h.w));
    }
    if (mine) amax_of[lane] = quantise_amax(w);
    barrier();
    if (FORMAT == 0u) store_kv(mine, lane, w, page, slot % PAGE);
    else if (FORMAT == INDEX_FP8) store_fp8(lane, w, page, slot % PAGE);
    else store_mxfp4(lane, w, page, slot % PAGE);
}

void main() {
    uint self = gl_LocalInvocationID.x;
    uint first = gl_WorkGroupID.x * pc.each, end = min(first + pc.each, pc.tokens);
    // Most tokens complete nothing: invocations look at SCAN of them at once. What they find
    // goes through shared memory, so that skipping cannot part them at a barrier.
    for (uint block = first; block < end; block += SCAN) {
        barrier();
        if (self < SCAN) todo[self] = block + self < end && completes(block + self) ? 1u : 0u;
        barrier();
        for (uint n = 0u; n < min(SCAN, end - block); n++) {
            if (todo[n] != 0u) compress(block + n, self / LANES, self % LANES);
        }
    }
}
