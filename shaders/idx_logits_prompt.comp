// Indexer logits over paged keys for tokens in a row that mostly share a request: for entry n of
// token t's request, first <= n < first+width and n < lens[t],
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
// with the bits of idx_logits_lanes.
// Bindings:  none; those of lib/index_logits.glsl by address.
// Workgroup: tokens from gl_WorkGroupID.y*SUBGROUPS on, one a subgroup, which holds all of its
//   queries as B matrices in registers, and a share of their keys. KEY_TILES tiles of M keys at a
//   time are decoded to shared memory, by all subgroups and for all; the next ones are on their way
//   meanwhile. Where tokens have several requests, their keys come one request behind the other.
// Layout: of matrices as in idx_logits_lanes.comp.
// Constants: 0 page, a multiple of M, 1 format, 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a product, 7
//   HG, heads rounded up to N, 8 P: 4 or 8, 9 KEY_TILES, a divisor of SUBGROUPS.
// Shared memory: (544*M + 8*M)*KEY_TILES + 4*HG*SUBGROUPS bytes.
// Features:  cooperativeMatrix (f16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress,
//   shaderInt64, subgroupSizeControl, computeFullSubgroups, subgroupShuffle, subgroupArithmetic.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define KV_DA
#include "lib/kv_page.glsl"
#include "lib/index_logits.glsl"
#include "lib/cm_element.glsl"
#include "lib/cm_index_codes.glsl"

layout(local_size_x = 128, local_size_x_id = 2) in;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 3) const uint SUBGROUP = 32u;
layout(constant_id = 4) const uint CM_M = 16u;
layout(constant_id = 5) const uint CM_N = 16u;
layout(constant_id = 6) const uint CM_K = 16u;
layout(constant_id = 7) const uint HG = 64u;
layout(constant_id = 8) const uint P = 4u;
layout(constant_id = 9) const uint KEY_TILES = 4u;
layout(constant_id = 10) const uint TRIAL = 0u;

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_N;
const uint STEPS = INDEX_DIM / CM_K;
const uint BASES = SUBGROUP / P;       // lanes that hold the same part of different rows
const uint KEYS = CM_M / BASES;        // of a tile, of which a lane holds a part; at most P
const uint HEADS = CM_N / BASES;       // of a head tile, of which a lane holds a part
const uint EACH = CM_K / P;            // K positions of a row in a lane
const uint COLUMNS = CM_N / P;         // of C, in a lane
const uint WORDS = (FORMAT == INDEX_FP8 ? INDEX_DIM : INDEX_DIM / 2u) / P / 4u; // of a lane's part of a row
const uint PER = FORMAT == INDEX_FP8 ? 4u : 8u; // numbers of a word
const uint TILE = KEY_TILES * CM_M;
const uint SPLIT = SUBGROUPS / KEY_TILES; // subgroups that decode a tile
const uint TAKEN = WORDS / SPLIT;         // words of them
const uint LOADS = (TAKEN + 3u) / 4u;
const uint QUERY_LOADS = (WORDS + 3u) / 4u;
const uint TAKEN_STEPS = STEPS / SPLIT;
const uint PITCH = INDEX_DIM / 8u + 1u; // of a key in shared memory: the columns of a matrix fall into different banks
const uint AT_ONCE = 2u;                // head tiles
const bool PAIRS = 2u * KEYS <= P;
const uint GROUP = (PAIRS ? (TRIAL & 128u) : 0u) / 128u + 1u; // tiles of keys whose sums are passed on together
const uint COUNT = GROUP * KEYS;
const uint LOADED = (TRIAL & 1024u) != 0u ? HEAD_TILES : 1u; // head tiles at a time
const uint ABSENT = 0xFFFFFFFFu;        // in place of a scale

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer KvRead4 { uvec4 v; };

layout(buffer_reference, std430, buffer_reference_align = 4) volatile readonly buffer Held1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) volatile readonly buffer Held2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer Held4 { uvec4 v; };

#define CM_A coopmat<float16_t, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<float16_t, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>

shared uvec4 key_s[2u * TILE * PITCH]; // queries on their way, then two steps of keys
shared uint scale_s[2u * TILE];
shared float weight_s[SUBGROUPS * HG];

CM_B query_f[HEAD_TILES * STEPS];
float weight_f[HEAD_TILES][COLUMNS];

uint part_, base_;
uint t_, end_;
int request_;
uint mine_;  // which of its keys' sums a lane ends up with
bool store_; // and whether it is the first lane to do so

// What a lane holds of the keys that its subgroup decodes.
struct Rows {
    uvec4 codes[KEYS * LOADS];
    uint scales[KEYS];
    bool there;
};

uint row_of(uint j) { return base_ + j * BASES; }

// The block of an MXFP4 row that a lane's part lies in.
uint block_of() { return part_ * 4u / P; }

uint own_tile() { return gl_SubgroupID % KEY_TILES; }
uint own_split() { return gl_SubgroupID / KEY_TILES; }

// word_byte: where word w of a lane's part of a row lies.
uint word_byte(uint w) { return WORDS < 4u ? (part_ * WORDS + w) * 4u : ((w / 4u) * P + part_) * 16u + w % 4u * 4u; }

uint find(uint step_) { return logit_page(request_, step_ * TILE + own_tile() * CM_M); }

// fetch: rows that are not there are read from page 0, so that no load hangs on a condition. Loads
// are volatile, or a compiler moves them down to where their results are used.
void fetch(uint page, uint step_, out Rows rows) {
    rows.there = page < pc.keys_pages;
    const uint64_t at = pc.keys_addr + uint64_t(rows.there ? page : 0u) * pc.keys_stride;
    const uint slot = (step_ * TILE + own_tile() * CM_M) % PAGE;
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        const uint row = slot + row_of(j);
        const uint64_t codes = at + index_row_byte(FORMAT, row);
        if (TAKEN == 1u) rows.codes[j] = uvec4(Held1(codes + word_byte(own_split())).v);
        else if (TAKEN == 2u) rows.codes[j] = Held2(codes + word_byte(own_split() * 2u)).v.xyxy;
        else [[unroll]] for (uint c = 0u; c < LOADS; c++) rows.codes[j * LOADS + c] = Held4(codes + word_byte(own_split() * TAKEN + c * 4u)).v;
        rows.scales[j] = Held1(at + index_scale_byte(FORMAT, PAGE, row)).v;
    }
}

// number: number e of words, in the order in which codes are decoded.
float16_t number(uint word, CM_FP4_SCALE scale, uint e) {
    const uvec4 pairs = FORMAT == INDEX_FP8 ? cm_fp8x8(uvec2(word)) : cm_fp4x8(word, scale);
    return unpackFloat2x16(pairs[e % PER / 2u])[e % 2u];
}

void keep(Rows rows, uint at) {
    [[unroll]] for (uint k = 0u; k < TAKEN_STEPS; k++) {
        CM_A made;
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            CM_FP4_SCALE scale = CM_FP4_SCALE(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(rows.scales[j], block_of());
            [[unroll]] for (uint e = 0u; e < EACH; e++) {
                const uint w = (k * EACH + e) / PER;
                made[j * EACH + e] = number(rows.codes[j * LOADS + w / 4u][w % 4u], scale, k * EACH + e);
            }
        }
        coopMatStore(made, key_s, (at + own_tile() * CM_M) * PITCH + (own_split() * TAKEN_STEPS + k) * (CM_K / 8u), PITCH,
            gl_CooperativeMatrixLayoutRowMajor);
    }
    if (own_split() == 0u && part_ == 0u) {
        [[unroll]] for (uint j = 0u; j < KEYS; j++) scale_s[at + own_tile() * CM_M + row_of(j)] = rows.there ? rows.scales[j] : ABSENT;
    }
}

// load_queries brings a subgroup's queries and weights to its registers, by way of shared memory.
void load_queries(uint t) {
    const uint rows = gl_SubgroupID * CM_N * PITCH;
    [[unroll]] for (uint first = 0u; first < HEAD_TILES; first += LOADED) {
        uint words[LOADED * HEADS * WORDS], scales[LOADED * HEADS];
        [[unroll]] for (uint i = 0u; i < LOADED * HEADS; i++) {
            const uint head = (first + i / HEADS) * CM_N + row_of(i % HEADS), at = t * pc.heads + min(head, pc.heads - 1u);
            [[unroll]] for (uint w = 0u; w < WORDS; w += 2u) {
                if (WORDS >= 4u && w % 4u == 0u) {
                    const uvec4 four = Read_uvec4(pc.q_addr).v[(at * index_row_bytes(FORMAT) + word_byte(w)) / 16u];
                    [[unroll]] for (uint c = 0u; c < 4u; c++) words[i * WORDS + w + c] = four[c];
                } else if (WORDS < 4u) {
                    const uvec2 two = q_at((at * index_row_bytes(FORMAT) + word_byte(w)) / 8u);
                    words[i * WORDS + w] = two.x;
                    words[i * WORDS + w + 1u] = two.y;
                }
            }
            if (FORMAT != INDEX_FP8) scales[i] = q_scale_at(at);
        }
        [[unroll]] for (uint i = 0u; i < LOADED; i++) {
            subgroupBarrier();
            [[unroll]] for (uint k = 0u; k < STEPS; k++) {
                CM_B made;
                [[unroll]] for (uint j = 0u; j < HEADS; j++) {
                    const bool real = (first + i) * CM_N + row_of(j) < pc.heads;
                    CM_FP4_SCALE scale = CM_FP4_SCALE(1.0);
                    if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(scales[i * HEADS + j], block_of());
                    [[unroll]] for (uint e = 0u; e < EACH; e++) {
                        const uint word = words[(i * HEADS + j) * WORDS + (k * EACH + e) / PER];
                        made[j * EACH + e] = number(real ? word : 0u, scale, k * EACH + e);
                    }
                }
                coopMatStore(made, key_s, rows + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            }
            subgroupBarrier();
            [[unroll]] for (uint k = 0u; k < STEPS; k++)
                coopMatLoad(query_f[(first + i) * STEPS + k], key_s, rows + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
    for (uint h = gl_SubgroupInvocationID; h < HG; h += SUBGROUP) {
        const uint at = t * pc.heads + min(h, pc.heads - 1u);
        const float scale = FORMAT == INDEX_FP8 ? 1.0 : cm_row_scale(q_scale_at(at));
        weight_s[gl_SubgroupID * HG + h] = h < pc.heads ? weights_at(at) * scale : 0.0;
    }
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C w;
        coopMatLoad(w, weight_s, gl_SubgroupID * HG + i * CM_N, 0u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) weight_f[i][c] = (TRIAL & 256u) != 0u ? w[c] * 0.5 : w[c];
    }
}

// sums: over the heads that a lane has, of the tile of keys at row `at` of shared memory.
void sums(uint at, out float sum[KEYS]) {
    CM_A keys[STEPS];
    [[unroll]] for (uint k = 0u; k < STEPS; k++)
        coopMatLoad(keys[k], key_s, at * PITCH + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutRowMajor);
    float x[KEYS][2]; // two chains
    [[unroll]] for (uint j = 0u; j < KEYS; j++) x[j] = float[2](0.0, 0.0);
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i += AT_ONCE) {
        CM_C s[AT_ONCE];
        [[unroll]] for (uint h = 0u; h < AT_ONCE; h++) s[h] = CM_C(0.0);
        [[unroll]] for (uint k = 0u; k < STEPS; k++)
            [[unroll]] for (uint h = 0u; h < AT_ONCE; h++)
                if (i + h < HEAD_TILES) s[h] = coopMatMulAdd(keys[k], query_f[(i + h) * STEPS + k], s[h]);
        [[unroll]] for (uint h = 0u; h < AT_ONCE; h++)
            if (i + h < HEAD_TILES)
                [[unroll]] for (uint j = 0u; j < KEYS; j++)
                    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                        const float v = s[h][j * COLUMNS + c];
                        if ((TRIAL & 256u) != 0u) x[j][c % 2u] += (v + abs(v)) * weight_f[i + h][c];
                        else x[j][c % 2u] += max(v, 0.0) * weight_f[i + h][c];
                    }
    }
    [[unroll]] for (uint j = 0u; j < KEYS; j++) sum[j] = x[j][0] + x[j][1];
}

// score: the logits of GROUP tiles of keys from row `at` of shared memory on, of which the first is
// entry n.
void score(uint at, uint n) {
    float sum[COUNT];
    [[unroll]] for (uint i = 0u; i < GROUP; i++) {
        float one[KEYS];
        sums(at + i * CM_M, one);
        [[unroll]] for (uint j = 0u; j < KEYS; j++) sum[i * KEYS + j] = one[j];
    }
    [[unroll]] for (uint bit = 1u, count = COUNT; bit < P; bit <<= 1) {
        const bool upper = (part_ & bit) != 0u;
        if (count > 1u) {
            count /= 2u;
            [[unroll]] for (uint j = 0u; j < count; j++) {
                const float send = upper ? sum[j] : sum[j + count], keep = upper ? sum[j + count] : sum[j];
                sum[j] = keep + subgroupShuffleXor(send, bit);
            }
        } else {
            sum[0] += subgroupShuffleXor(sum[0], bit);
        }
    }
    const uint row = (mine_ / KEYS) * CM_M + row_of(mine_ % KEYS);
    const uint scales = scale_s[at + row];
    const float scale = FORMAT == INDEX_FP8 ? uintBitsToFloat(scales) : cm_row_scale(scales);
    const float x = scales != ABSENT ? sum[0] * CM_UNSCALE * scale : LOGIT_NONE;
    n += row;
    if (store_ && n >= pc.first && n < end_) logit_store(t_, n - pc.first, x);
}

void main() {
    part_ = gl_SubgroupInvocationID % P;
    base_ = gl_SubgroupInvocationID / P;
    mine_ = 0u;
    store_ = true;
    [[unroll]] for (uint bit = 1u, count = COUNT; bit < P; bit <<= 1) { // as score adds
        const bool upper = (part_ & bit) != 0u;
        if (count > 1u) {
            count /= 2u;
            if (upper) mine_ += count;
        } else if (upper) {
            store_ = false;
        }
    }
    const uint token0 = gl_WorkGroupID.y * SUBGROUPS, lane_token = min(token0 + gl_SubgroupInvocationID, pc.tokens - 1u);
    const int lane_request = token_to_req_at(lane_token);
    const uint lane_end = logit_end(lane_token);
    bool open_ = gl_SubgroupInvocationID < SUBGROUPS && token0 + gl_SubgroupInvocationID < pc.tokens;
    t_ = token0 + gl_SubgroupID;
    load_queries(min(t_, pc.tokens - 1u));
    const int own_request = subgroupShuffle(lane_request, gl_SubgroupID);
    const uint own_end = t_ < pc.tokens ? subgroupShuffle(lane_end, gl_SubgroupID) : 0u;

    const uint step0 = pc.first / TILE;
    [[dont_unroll]] for (;;) {
        // The first request that is left, and the last entry of it that any of the tokens wants.
        const uint lead = subgroupMin(open_ ? gl_SubgroupInvocationID : SUBGROUP);
        if (lead == SUBGROUP) break;
        request_ = subgroupShuffle(lane_request, lead);
        const bool same = open_ && lane_request == request_;
        const uint end = subgroupMax(same ? lane_end : 0u);
        open_ = open_ && !same;
        end_ = own_request == request_ ? own_end : 0u;

        const uint steps = end > pc.first ? (end + TILE - 1u) / TILE - step0 : 0u;
        uint chunk = max(uint(float(steps) / float(gl_NumWorkGroups.x)), pc.chunk);
        while (chunk * gl_NumWorkGroups.x < steps) chunk++;
        const uint begin = step0 + min(gl_WorkGroupID.x * chunk, steps), last = min(begin + chunk, step0 + steps);
        if (begin >= last) continue;
        // Past the end the last step is looked up and fetched again: a load that is always made can
        // be on its way early.
        #define STEP_AT(i) min(i, last - 1u)
        uint step_ = begin, page = find(begin), at = 0u;
        Rows rows;
        fetch(page, begin, rows);
        page = find(STEP_AT(begin + 1u));
        barrier(); // queries, or keys of the request before, have been taken from there
        keep(rows, at);
        const uint ahead = (TRIAL & 512u) != 0u && gl_SubgroupID < SUBGROUPS / 2u ? 2u : 1u;
        if (ahead == 2u) {
            fetch(page, STEP_AT(begin + 1u), rows);
            page = find(STEP_AT(begin + 2u));
        }
        barrier();
        [[dont_unroll]] for (;;) {
            if (ahead == 2u) keep(rows, TILE - at);
            fetch(page, STEP_AT(step_ + ahead), rows);
            page = find(STEP_AT(step_ + ahead + 1u));
            subgroupBarrier();
            const uint n = step_ * TILE;
            if (n < end_) [[dont_unroll]] for (uint i = 0u; i < KEY_TILES; i += GROUP) score(at + i * CM_M, n + i * CM_M);
            if (++step_ >= last) break;
            at = TILE - at;
            if (ahead == 1u) keep(rows, at);
            barrier();
        }
    }
}
