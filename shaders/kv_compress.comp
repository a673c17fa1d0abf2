// Compress: for token i at position p that ends a group of RATIO, over the N = WINDOW rows j of its
// window (the states of positions p-N+1+j, found through the request's row of table):
//   v[c] = sum_j kv_j[c] * exp(score_j[c] - m) / sum_j exp(score_j[c] - m),  m = max_j score_j[c]
//   n[c] = v[c] * (sum_c v[c]^2 / DIM + eps)^-0.5 * norm[c],  n[DIM-64..] turned for p+1-RATIO
//   slot slots[i] = quantise(bf16(n)): FORMAT 0 a K row (kv_page.glsl), 1 or 2 an indexer key
//   (index_page.glsl), rotated by Hadamard's matrix with HADAMARD
// With OVERLAP, N is 2*RATIO and the newer RATIO rows have channel c at DIM+c; else N is RATIO.
// Rows of positions < 0 or without a page are absent. A scale's block is 64 (K), 128 (FP8) or 32
// (MXFP4) numbers.
// With SAVE, which a build defines, the same launch stores each token's state: for token i at
// position p = positions[i] >= 0 with slot s = state_slots[i] >= 0 of the pool, C channels of a
// token,
//   state[s].kv[c] = kv_score[i, c],  state[s].score[c] = kv_score[i, C + c] + ape[p%RATIO, c]
// Rows of a window that are tokens of this launch come from kv_score and ape then, the others from
// the pool of states, so that no workgroup waits for another. A request's tokens stand side by
// side, in the order of their positions.
// Bindings:  0 positions [T] i32   1 token_to_req [T] i32   2 state_slots [T] i64   3 slots [T] i64
//            4 table [R, W] i32   5 norm [DIM] f32 or bf16
//            6 cos_sin [rows, 64] f32, row k of position k*ROPE_STEP   7 ape [RATIO, C] f32
//            8 kv_score [N, 2C] f32   9 state [pages, stride] u8   10 pool [pages, stride] u8
//            11 latent [T, DIM] bf16   (8 to 11 not with ADDRESSED). With MODE 2 kv_score is
//            [N, DIM], and 1, 2, 4, 7 and 9 are not read
// Workgroup: pc.each tokens, one after the other, by GROUPS times DIM/4 invocations. With SAVE
//   token gl_WorkGroupID.x: y = 0 its entry, y = 1 its state.
// Constants: 0 invocations, 1 PAGE of pool, 2 STATE_PAGE, 3 RATIO, 4 OVERLAP, 5 DIM, 6 FORMAT,
//   7 HADAMARD, 8 ROPE_STEP, 9 CHUNK, 10 MODE: above 0 as lib/kv_latent.glsl has it, 11 RECORD of
//   a K row (lib/kv_record.glsl).
// Shared memory: 2*DIM + 4*WINDOW + 864 bytes, of indexer keys 512 for each further group; and 48
//   for one group, 4*DIM for four that share a short window, else 24*invocations.
// Features:  none; with ADDRESSED bufferDeviceAddress, shaderInt64.
//
// Rows of a window are loaded in chunks of CHUNK. LANES invocations of 4 channels each are a
// group. There are two ways to share a window among several groups:
//   a long window (more than a chunk): group g takes chunks g, g + GROUPS, ..., and sums are
//   merged in the end;
//   a short one (SINGLE, four groups): each invocation takes one channel instead of four, and
//   group 0 goes on with four. That is a quarter of the code for most of the way, which counts
//   where a step makes few entries and code comes from memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/index_page.glsl"
#include "lib/bf16.glsl"
#include "lib/quantise.glsl"
#include "lib/kv_record.glsl"
#include "lib/real.glsl"
#include "lib/rope.glsl"
#include "lib/tensors.glsl"
#include "lib/kv_states.glsl"

layout(constant_id = 6) const uint FORMAT = 0;
layout(constant_id = 7) const uint HADAMARD = 0;
layout(constant_id = 8) const uint ROPE_STEP = 1;
layout(constant_id = 9) const uint CHUNK = 8; // rows that an invocation loads together, 4 or 8
layout(constant_id = 10) const uint MODE = 0; // how an entry is made of v
layout(constant_id = 11) const uint RECORD = 0; // of a K row, lib/kv_record.glsl

const uint POOLED = 0u;  // v is pooled, and only the entry is rounded
const uint LATENT = 1u;  // v is pooled and rounded, kv_latent.glsl
const uint UNGATED = 2u; // v is the token's row of kv_score, which has no scores; the rest as LATENT

const uint WINDOW = HALVES * RATIO; // rows
const uint LANES = DIM / 4u;
const uint GROUPS = gl_WorkGroupSize.x >= LANES ? gl_WorkGroupSize.x / LANES : 1u;
const uint SCAN = 32u;
// A run is rows of a window that surely lie behind each other in a page. Windows begin at
// multiples of RATIO.
const uint BOTH = STATE_PAGE | RATIO;
const uint RUN = (BOTH | CHUNK) % 8u == 0u ? 8u : BOTH % 4u == 0u ? 4u : BOTH % 2u == 0u ? 2u : 1u;
const uint ROWS = WINDOW < CHUNK ? WINDOW : CHUNK;           // rows of a chunk that a window can have
const uint CHUNKS = (WINDOW + CHUNK - 1u) / CHUNK;
const uint PASSES = (CHUNKS + GROUPS - 1u) / GROUPS;        // chunks of a group
const bool SHORT = WINDOW <= CHUNK;                         // one chunk has all rows
const bool RAGGED = WINDOW % (CHUNK * GROUPS) != 0u;         // some chunks have rows beyond the window
const bool SINGLE = SHORT && GROUPS == 4u;
const uint HALF = GROUPS > 1u && !SINGLE ? gl_WorkGroupSize.x / 2u : 1u;

layout(std430, set = 0, binding = 1) readonly buffer TokenToReq { int token_to_req[]; };
layout(std430, set = 0, binding = 3) readonly buffer Slots { uvec2 slots[]; };
layout(std430, set = 0, binding = 4) readonly buffer Table { int table[]; };
layout(std430, set = 0, binding = 5) readonly buffer Norm { uvec2 norm[]; };
ROPE_TABLE(cos_sin, 6)

KV_POOL_RW(pool, 10)
TENSOR_OUT(uvec2, latent, 11)
uint self_;  // the token
uint fresh_; // how many of the window's last rows are tokens of this launch, whose numbers are in kv_score

shared vec4 part[SINGLE ? LANES : 3u * HALF];
shared uint todo[SCAN];     // 1 for tokens that complete an entry
shared uint run_at[WINDOW]; // unit of the first kv channel of a run's first row, or STATE_NONE
shared vec4 square_of[LANES / 4u]; // a number per lane, as in amax_of
shared uvec4 amax_of[LANES / 4u];
shared vec4 square_of8[4];  // of 8 lanes each, if there are 128
shared uvec4 amax_of16[2];  // of 16 lanes each, if there are 128
shared uint codes_of[INDEX_DIM / 4u];
shared float hadamard_of[DIM == INDEX_DIM ? GROUPS * INDEX_DIM : INDEX_DIM]; // a vector for each group
#include "lib/hadamard.glsl"

// state_part: what an invocation has of a unit: its four channels, or with SINGLE the one that is
// its own, four times over. The compiler drops the copies that are not read.
vec4 state_part(uint unit) { return SINGLE ? vec4(state_load1(unit, gl_LocalInvocationID.x % 4u)) : state_load(unit); }
vec4 kv_score_part(uint unit) { return SINGLE ? vec4(kv_score_load1(unit, gl_LocalInvocationID.x % 4u)) : kv_score_load(unit); }
vec4 ape_part(uint unit) { return SINGLE ? vec4(ape[unit][gl_LocalInvocationID.x % 4u]) : ape[unit]; }

// Rows of a chunk: four kv values and scores of each.
struct Chunk {
    vec4 k[8];
    vec4 s[8];
    uint absent; // bit j: row j has no numbers
};

// Sums over rows, relative to the largest score among them.
struct Sums {
    vec4 top;
    vec4 weight;
    vec4 sum;
};

// older_half: unit of row j's first channel in its token's: with OVERLAP the older rows have the
// first half of the channels, the newer ones the second.
uint older_half(uint j) { return OVERLAP == 0u || j < RATIO ? 0u : DIM / 4u; }

// run_page: the page of run r of the window that ends at p. Where the table has none it is that of
// another run, which run_unit drops.
uint run_page(uint request, int p, uint r) {
    const uint entry = uint(p + 1 - int(WINDOW) + int(r * RUN)) / STATE_PAGE;
    return uint(table[request * pc.width + min(entry, pc.width - 1u)]);
}

// run_unit: unit of the first kv channel of run r, or STATE_NONE. A negative page is beyond every
// pool.
uint run_unit(uint page, int p, uint r) {
    const int at = p + 1 - int(WINDOW) + int(r * RUN);
    if (at < 0 || uint(at) / STATE_PAGE >= pc.width || page >= pc.state_pages) return STATE_NONE;
    return page * pc.state_units + (uint(at) % STATE_PAGE) * (2u * UNITS) + older_half(r * RUN);
}

// run_place: run_unit of run r of a long window, which another invocation may have found.
uint run_place(uint r) { return RAGGED && r * RUN >= WINDOW ? STATE_NONE : run_at[r]; }

// is_fresh: the row d positions before p is a token of this launch.
bool is_fresh(uint d, int p, uint request) {
    const uint i = self_ - min(d, self_), of = uint(token_to_req[i]);
    const int at = positions[i];
    return d <= self_ && of == request && at == p - int(d);
}

// first_fresh: 2 if the row before p is a token of this launch, else 1. In a decode step of one
// token a request nothing more has to be found.
uint first_fresh(int p, uint request) { return WINDOW > 1u && is_fresh(1u, p, request) ? 2u : 1u; }

// count_fresh: how many of a window's last rows are tokens of this launch. A request's tokens stand
// side by side, so that halving finds the end.
void count_fresh(int p, uint request) {
    fresh_ = 1u;
    [[dont_unroll]] for (uint n = WINDOW > 1u ? 1u << findMSB(WINDOW - 1u) : 0u; n > 0u; n /= 2u) {
        const bool inside = (WINDOW & (WINDOW - 1u)) == 0u || fresh_ + n <= WINDOW;
        if (inside && is_fresh(fresh_ + n - 1u, p, request)) fresh_ += n;
    }
}

// load: the chunk that begins with row first. Loads need no branch: what stands for an
// absent row is inside the pool. Scores come first because they are needed first.
void load(uint request, int p, uint first, uint lane, out Chunk c) {
    uint unit[8], page[8], at = 0u;
    const uint OWN = (WINDOW - 1u) % CHUNK;
#ifdef SAVE
    const bool last = SHORT || first + OWN + 1u == WINDOW; // the chunk has the last row, which is this token's own
    const uint own = self_ * (2u * UNITS) + older_half(WINDOW - 1u) + lane;
    vec4 own_s, own_k, own_ape;
    if (last) {
        own_s = kv_score_part(own + UNITS);
        own_ape = ape_part((RATIO - 1u) * UNITS + older_half(WINDOW - 1u) + lane);
        own_k = kv_score_part(own);
    }
#endif
    if (SHORT) { // so few runs that an invocation looks for their pages itself
        [[unroll]] for (uint j = 0u; j < ROWS; j += RUN) page[j] = run_page(request, p, (first + j) / RUN);
    }
    c.absent = 0u;
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        if (j % RUN == 0u) {
            at = SHORT ? run_unit(page[j], p, (first + j) / RUN) : run_place((first + j) / RUN);
            c.absent |= at == STATE_NONE ? ((1u << RUN) - 1u) << j : 0u;
            at = (at == STATE_NONE ? 0u : at) + lane;
        }
        unit[j] = at + j % RUN * (2u * UNITS);
    }
    [[unroll]] for (uint j = 0u; j < ROWS; j++) c.s[j] = state_part(unit[j] + UNITS);
    [[unroll]] for (uint j = 0u; j < ROWS; j++) c.k[j] = state_part(unit[j]);
#ifdef SAVE
    if (last) {
        precise vec4 score = own_s + own_ape;
        c.s[OWN] = score;
        c.k[OWN] = own_k;
    }
    if (SHORT && fresh_ > 1u) count_fresh(p, request);
    if (fresh_ > 1u && first + CHUNK + fresh_ > WINDOW) {
        [[unroll]] for (uint j = 0u; j < ROWS; j++) {
            const uint back = WINDOW - 1u - first - j; // tokens before this one
            if (back < fresh_ && back > 0u) {
                const uint at = (self_ - back) * (2u * UNITS) + older_half(first + j) + lane;
                precise vec4 score = kv_score_part(at + UNITS) + ape_part((first + j) % RATIO * UNITS + older_half(first + j) + lane);
                c.s[j] = score;
                c.k[j] = kv_score_part(at);
            }
        }
    }
#endif
}

// blank: absent rows weigh nothing.
void blank(inout Chunk c) {
    [[unroll]] for (uint j = ROWS; j < CHUNK; j++) { c.k[j] = vec4(0.0); c.s[j] = vec4(-3.0e38); }
    if (c.absent == 0u) return;
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        if ((c.absent >> j & 1u) != 0u) { c.k[j] = vec4(0.0); c.s[j] = vec4(-3.0e38); }
    }
}

// highest: the largest score, or top.
vec4 highest(Chunk c, vec4 top) {
    [[unroll]] for (uint j = 0u; j < ROWS; j++) top = max(top, c.s[j]);
    return top;
}

// weigh: the sums of a chunk, relative to top.
void weigh(inout Chunk c, vec4 top, out vec4 weight, out vec4 sum) {
    [[unroll]] for (uint j = 0u; j < CHUNK; j++) c.s[j] = j < ROWS ? real_exp(c.s[j] - top) : vec4(0.0);
    precise vec4 w = (c.s[0] + c.s[1]) + (c.s[2] + c.s[3]);
    precise vec4 y = fma(c.k[1], c.s[1], c.k[0] * c.s[0]) + fma(c.k[3], c.s[3], c.k[2] * c.s[2]);
    if (CHUNK == 8u) {
        precise vec4 w8 = w + ((c.s[4] + c.s[5]) + (c.s[6] + c.s[7]));
        precise vec4 y8 = y + (fma(c.k[5], c.s[5], c.k[4] * c.s[4]) + fma(c.k[7], c.s[7], c.k[6] * c.s[6]));
        w = w8;
        y = y8;
    }
    weight = w;
    sum = y;
}

void add(inout Sums x, inout Chunk c) {
    blank(c);
    const vec4 top = highest(c, x.top);
    vec4 w, y;
    weigh(c, top, w, y);
    if (PASSES > 1u) {
        vec4 keep = real_exp(x.top - top);
        w = fma(x.weight, keep, w);
        y = fma(x.sum, keep, y);
    }
    x = Sums(top, w, y);
}

// merge: the sums of all groups into those of group 0, by halves. A half writes where it
// has read before, so that one barrier is enough for each.
void merge(inout Sums x) {
    uint self = gl_LocalInvocationID.x;
    for (uint half_size = HALF; half_size >= LANES; half_size /= 2u) {
        if (self >= half_size && self < 2u * half_size) {
            uint at = self % HALF;
            part[at] = x.top;
            part[HALF + at] = x.weight;
            part[2u * HALF + at] = x.sum;
        }
        barrier();
        if (self < half_size) {
            uint at = (self + half_size) % HALF;
            vec4 other = part[at], top = max(x.top, other);
            vec4 keep = real_exp(x.top - top), add = real_exp(other - top);
            x.weight = fma(part[HALF + at], add, x.weight * keep);
            x.sum = fma(part[2u * HALF + at], add, x.sum * keep);
            x.top = top;
        }
    }
}

// pooled: the softmax-weighted sum of the window's rows, 4 channels; defined in group 0. A
// group takes every GROUPS-th chunk, or with SINGLE a quarter of the channels.
vec4 pooled(uint request, int p, uint group, uint lane) {
    if (SINGLE) {
        const uint self = gl_LocalInvocationID.x;
        Sums x = Sums(vec4(-3.4e38), vec4(0.0), vec4(0.0));
        Chunk c;
        load(request, p, 0u, self / 4u, c);
        add(x, c);
        precise vec4 v = x.sum * real_rcp(x.weight);
        part[self / 4u][self % 4u] = v.x;
        barrier();
        return part[lane];
    }
    Sums x = Sums(vec4(-3.4e38), vec4(0.0), vec4(0.0));
    [[dont_unroll]] for (uint n = 0u; n < PASSES; n++) {
        Chunk c;
        load(request, p, (group + n * GROUPS) * CHUNK, lane, c);
        add(x, c);
    }
    if (GROUPS > 1u) merge(x);
    precise vec4 v = x.sum * real_rcp(x.weight);
    return v;
}

float sum4(vec4 x) {
    precise float sum = (x.x + x.y) + (x.z + x.w);
    return sum;
}

uint max4(uvec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

// amax_of_lanes: the largest magnitude that count lanes from first on have, as bits.
uint amax_of_lanes(uint first, uint count) {
    uvec4 m = amax_of[first / 4u];
    for (uint a = 1u; a < count / 4u; a++) m = max(m, amax_of[first / 4u + a]);
    return max4(m);
}

// share_squares: group 0 brings q, the sum of squares of a lane, and amax for amax_of; what is
// shared of either can be read when this is done. Of 128 lanes two warps add up parts first:
// reading 128 numbers takes longer than another barrier.
void share_squares(bool mine, uint lane, float q, uint amax) {
    if (mine) {
        square_of[lane / 4u][lane % 4u] = q;
        amax_of[lane / 4u][lane % 4u] = amax;
    }
    barrier();
    if (LANES == 128u) {
        uint self = gl_LocalInvocationID.x;
        if (self < 16u) {
            precise float part = sum4(square_of[2u * self] + square_of[2u * self + 1u]);
            square_of8[self / 4u][self % 4u] = part;
        } else if (self >= 32u && self < 40u) {
            amax_of16[(self - 32u) / 4u][self % 4u] = amax_of_lanes((self - 32u) * 16u, 16u);
        }
        barrier();
    }
}

// mean_square: over all channels, from what is shared.
float mean_square() {
    precise vec4 sum;
    if (LANES == 128u) {
        sum = (square_of8[0] + square_of8[1]) + (square_of8[2] + square_of8[3]);
    } else {
        sum = ((square_of[0] + square_of[1]) + (square_of[2] + square_of[3]))
            + ((square_of[4] + square_of[5]) + (square_of[6] + square_of[7]));
    }
    precise float mean = sum4(sum) * (1.0 / float(DIM));
    return mean;
}

// rounded_amax: of a block whose largest magnitude is amax * factor, rounded to bf16 as its numbers
// are. Rounding keeps the order, so that the largest may be found before.
float rounded_amax(uint amax, float factor) {
    precise float a = uintBitsToFloat(amax) * factor;
    return bf16_decode(bf16_encode(a));
}

bool is_finite(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) < 0x7F800000u; }

// rounded4: four numbers as bf16; usual if they are finite and stay so.
uvec2 rounded4(vec4 n, bool usual) {
    if (!usual) return uvec2(bf16_pack2(n.x, n.y), bf16_pack2(n.z, n.w));
    uvec4 u = floatBitsToUint(n);
    u += 0x7FFFu + ((u >> 16) & 1u);
    return (u.xz >> 16) | (u.yw & 0xFFFF0000u);
}

// store_kv: u is without the factor. Scales go through shared memory to the two lanes that store
// them: another barrier takes less than the code for four more of them.
void store_kv(bool mine, uint lane, vec4 u, float factor, uint page, uint t) {
    const uint row = kv_row_byte(t), block = lane / 16u; // 7 is the rotated part
    uint sb = 0u;
    if (mine) {
        const float amax = rounded_amax(amax_of16[block / 4u][block % 4u], factor);
        const bool usual = is_finite(amax);
        precise vec4 n = u * factor;
        const uvec2 w = rounded4(n, usual);
        sb = block < KV_BLOCKS ? ue8m0_encode(amax, UE8M0_EPS_KV, UE8M0_INV_E4M3) : 0u;
        if (block < KV_BLOCKS) pool_store_word(page, row + lane * 4u, quantise4_any(w, ue8m0_inverse(sb), usual));
        else pool_store_word2(page, row + KV_ROPE_BYTE + (lane % 16u) * 8u, w);
        if (lane % 16u == 0u) codes_of[block] = sb;
    }
    barrier();
    if (mine && lane < 2u) {
        pool_store_word(page, kv_scale_byte(PAGE, t) + lane * 4u,
            codes_of[4u * lane] | (codes_of[4u * lane + 1u] << 8) | (codes_of[4u * lane + 2u] << 16) | (codes_of[4u * lane + 3u] << 24));
    }
}

// rounded_key: the numbers of an indexer key, mixed if HADAMARD, as bf16; amax is the largest of a
// lane's block of count lanes, rounded.
uvec2 rounded_key(bool mine, uint group, uint lane, vec4 u, float factor, uint count, out float amax) {
    precise vec4 n = u * factor;
    if (HADAMARD != 0u) {
        uvec2 w = uvec2(bf16_pack2(n.x, n.y), bf16_pack2(n.z, n.w));
        vec4 h = hadamard128(vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)), group, lane);
        w = uvec2(bf16_pack2(h.x, h.y), bf16_pack2(h.z, h.w));
        if (mine) amax_of[lane / 4u][lane % 4u] = quantise_amax(w) << 16;
        barrier();
        amax = uintBitsToFloat(amax_of_lanes(lane / count * count, count));
        return w;
    }
    amax = rounded_amax(amax_of_lanes(lane / count * count, count), factor);
    return rounded4(n, is_finite(amax));
}

void store_fp8(bool mine, uint group, uint lane, vec4 u, float factor, uint page, uint t) {
    float amax;
    const uvec2 w = rounded_key(mine, group, lane, u, factor, INDEX_DIM / 4u, amax);
    if (!mine) return;
    const uint sb = ue8m0_encode(amax, UE8M0_EPS_KV, UE8M0_INV_E4M3);
    pool_store_word(page, index_row_byte(INDEX_FP8, t) + lane * 4u, quantise4_any(w, ue8m0_inverse(sb), is_finite(amax)));
    if (lane == 0u) pool_store_word(page, index_scale_byte(INDEX_FP8, PAGE, t), floatBitsToUint(ue8m0_scale(sb)));
}

void store_mxfp4(bool mine, uint group, uint lane, vec4 u, float factor, uint page, uint t) {
    float amax;
    const uvec2 w = rounded_key(mine, group, lane, u, factor, 8u, amax);
    const uint sb = ue8m0_encode(amax, UE8M0_EPS_MXFP4, UE8M0_INV_E2M1);
    const uint codes = quantise4_e2m1(w, ue8m0_inverse(sb));
    if (mine) codes_of[lane] = codes | sb << 16;
    barrier();
    if (!mine) return;
    if (lane % 2u == 0u) pool_store_word(page, index_row_byte(INDEX_MXFP4, t) + lane * 2u, codes | (codes_of[lane + 1u] << 16));
    if (lane == 1u) {
        pool_store_word(page, index_scale_byte(INDEX_MXFP4, PAGE, t),
            (codes_of[0] >> 16) | (codes_of[8] >> 16 << 8) | (codes_of[16] >> 16 << 16) | (codes_of[24] >> 16 << 24));
    }
}

// completes: token i ends a group and all that belongs to it is inside its pool. The loads
// do not wait for each other.
bool completes(uint i, out int p, out uint request, out uint slot) {
    p = positions[i];
    request = MODE == UNGATED ? 0u : uint(token_to_req[i]);
    uvec2 state_slot = MODE == UNGATED ? uvec2(0u) : state_slots[i], s = slots[i];
    slot = s.x;
    bool ends = p >= 0 && (uint(p) + 1u) % RATIO == 0u;
    bool known = MODE == UNGATED || request < pc.requests;
    bool saved = MODE == UNGATED || state_slot.y == 0u && state_slot.x / STATE_PAGE < pc.state_pages;
    bool wanted = s.y == 0u && s.x / PAGE < pc.pool_pages;
    return ends && known && saved && wanted;
}

// gains: a lane's weights of the norm as they are stored.
uvec4 gains(uint lane) {
    const uint at = pc.norm_bf16 != 0u ? lane : 2u * lane;
    return uvec4(norm[at], norm[at + 1u - pc.norm_bf16]);
}

// turns: cosines and sines of a lane's two pairs, should they be among the rotated.
vec4 turns(int p, uint lane) {
    return cos_sin_cos_sin2(min((uint(p) + 1u - RATIO) / ROPE_STEP, pc.rope_rows - 1u), 2u * (lane % 16u), false);
}

// finish: the entry, from a lane's four channels of v. Norm and rotation are linear, so that the
// factor for which all channels are needed comes last.
void finish(bool mine, bool works, uint group, uint lane, vec4 v, uvec4 gain, vec4 turn, uint slot) {
    vec4 u = vec4(0.0);
    if (works) {
        precise vec4 scaled = v * (pc.norm_bf16 != 0u ? vec4(bf16_unpack2(gain.x), bf16_unpack2(gain.y)) : uintBitsToFloat(gain));
        u = scaled;
        if (lane >= LANES - 16u) u = vec4(rope_rotate(u.xy, turn.xy), rope_rotate(u.zw, turn.zw));
    }
    precise float q = (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    share_squares(mine, lane, q, max4(floatBitsToUint(u) & 0x7FFFFFFFu));
    float factor = 0.0;
    if (works) factor = real_rsqrt(mean_square() + pc.eps);
    const uint page = slot / PAGE, t = slot % PAGE;
    if (FORMAT == 0u) store_kv(mine, lane, u, factor, page, t);
    else if (FORMAT == INDEX_FP8) store_fp8(mine, group, lane, u, factor, page, t);
    else store_mxfp4(mine, group, lane, u, factor, page, t);
}

#include "lib/kv_latent.glsl"

// compress: token i, if it completes an entry; all invocations see the same.
void compress(uint i, uint group, uint lane) {
    // What no other load decides is under way before anything waits.
    const bool mine = group == 0u;
    const bool works = mine || DIM == INDEX_DIM; // indexer keys are so short that all groups may do the same, as hadamard128 wants it
    uvec4 gain = uvec4(0u);
    if (works || !SINGLE) gain = gains(lane);
    int p;
    uint request, slot;
    if (!completes(i, p, request, slot)) return;
    vec4 turn = vec4(0.0);
    if (works || !SINGLE) turn = turns(p, lane);
#ifdef SAVE
    if (MODE == UNGATED) {
        finish_latent(mine, lane, kv_score_load(i * LANES + lane), gain, turn, i, slot);
        return;
    }
    self_ = i;
    fresh_ = first_fresh(p, request);
    if (!SHORT && fresh_ > 1u) count_fresh(p, request);
#endif
    if (!SHORT) {
        for (uint r = gl_LocalInvocationID.x; r < WINDOW / RUN; r += gl_WorkGroupSize.x)
            run_at[r] = run_unit(run_page(request, p, r), p, r);
        barrier();
    }
    const vec4 v = pooled(request, p, group, lane);
    if (MODE == LATENT) finish_latent(mine, lane, v, gain, turn, i, slot);
    else finish(mine, works, group, lane, v, gain, turn, slot);
}

void main() {
    uint self = gl_LocalInvocationID.x, group = self / LANES, lane = self % LANES;
#ifdef SAVE
    if (gl_WorkGroupID.y == 0u) compress(gl_WorkGroupID.x, group, lane);
    else save(gl_WorkGroupID.x);
#else
    uint first = gl_WorkGroupID.x * pc.each, end = min(first + pc.each, pc.tokens);
    // Of many tokens most complete nothing: invocations look at SCAN of them at once.
    for (uint block = first; block < end; block += SCAN) {
        if (pc.each > 1u) {
            int p;
            uint request, slot;
            if (self < SCAN) todo[self] = block + self < end && completes(block + self, p, request, slot) ? 1u : 0u;
            barrier();
        }
        for (uint n = 0u; n < min(SCAN, end - block); n++) {
            if (pc.each > 1u && todo[n] == 0u) continue;
            compress(block + n, group, lane);
            barrier(); // the next token takes what is shared
        }
        if (pc.each > 1u) barrier(); // todo has been read
    }
#endif
}
