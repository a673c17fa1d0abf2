// Indexer logits over paged keys with matrices that are filled from registers, where these lie in
// lanes as below: for entry n of token t's request, first <= n < first+width and n < lens[t],
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
//   tops[t][i] = the largest of every M entries from first on, as an integer in their order (TOPS)
// With BLOCKS, S, column c of a token is entry side[t][c/S]*S + c%S, and lens counts columns.
// tops is side [T, side_width] i32, INT_MIN where no entry is the token's; NaN counts as -Inf.
// Bindings:  none; those of lib/index_logits.glsl by address.
// Workgroup: token gl_WorkGroupID.y, whose heads it decodes once to B matrices in shared memory,
//   and a share of its keys. A subgroup takes M keys at a time as an A matrix: a lane loads, one
//   tile ahead, and decodes just the numbers that are its own, and waits for no other subgroup.
// Layout (laneParts of package indexer finds out): lane l holds rows (of A and C) or columns (of B)
//   l/P + j*SUBGROUP/P, j = 0.., and of them the K positions (A, B) or columns (C) of part l%P, A
//   and B alike, in the order of j. Which K positions does not matter: queries and keys put the
//   same number at the same one.
// Constants: 0 page, a multiple of M, 1 format, 2 THREADS, at least HG, 3 SUBGROUP, 4..6 M, N, K of
//   a product, 7 HG, heads rounded up to N, 8 P: 4 or 8, 9 TOPS: 1 to write tops,
//   10 BLOCKS: entries of a candidate block, or 0: columns are entries,
//   11 KEPT: head tiles whose queries stay in registers; others are loaded for each tile of keys.
// With RAW_QUERIES, which a build defines, queries come as bf16 and are quantised here
// (lib/index_raw.glsl), by at least 4*HG invocations. With PICKS besides, the K best entries of
// each token are picked (lib/index_pick.glsl), which adds constants.
// Shared memory: 276*HG bytes; _raw: 408*HG, for MXFP4 344*HG; _picks: see index_pick.glsl.
// Features:  cooperativeMatrix (f16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress,
//   shaderInt64, subgroupSizeControl, computeFullSubgroups, subgroupShuffle, subgroupArithmetic.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define ADDRESSED
#include "lib/kv_page.glsl"
#include "lib/index_logits.glsl"
#include "lib/cm_element.glsl"
#include "lib/cm_index_codes.glsl"
#include "lib/rope_bf16.glsl"
const bool QUERY_FP4 = FORMAT != INDEX_FP8;
#include "lib/index_query.glsl"

#include "lib/index_lanes.glsl"
layout(constant_id = 9) const uint TOPS = 0u;
layout(constant_id = 10) const uint BLOCKS = 0u;
layout(constant_id = 11) const uint KEPT = 0u;
#ifdef PICKS
layout(constant_id = 12) const uint CAPACITY = 1024u; // entries of a slice, or of all lists, at most, a multiple of 4
layout(constant_id = 13) const uint BITS = 8u;        // of a digit
layout(constant_id = 14) const uint POOL = 1024u;     // the larger of the bins and K
layout(constant_id = 15) const uint SLOT_PAGE = 0u;   // slots of a page, or 0: no slots are written
#endif

const uint WORDS = (FORMAT == INDEX_FP8 ? INDEX_DIM : INDEX_DIM / 2u) / P / 4u; // of a lane's part of a row
const uint LOADS = WORDS > 2u ? WORDS / 4u : 1u;                                // of 16 bytes each, or one of 8
const uint CODES = KEYS * LOADS;       // loads of a tile
const uint MATRICES = (KEPT > 0u ? KEPT : 1u) * STEPS; // of queries, in registers
const uint SCALES = FORMAT == INDEX_FP8 ? 1u : KEYS;
const uint PITCH = INDEX_DIM / 8u + 1u; // of a head in shared memory: the columns of a matrix fall into different banks
const uint TAKEN = (HEAD_TILES + SUBGROUPS - 1u) / SUBGROUPS; // head tiles that a subgroup decodes

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer KvRead4 { uvec4 v; };

// Loads of the loop stay where they are written. With MXFP4 alone they do in any case, and that
// only costs.
const bool HELD = FORMAT == INDEX_FP8 || TOPS > 0u;

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer TopWrite { int v; };
#define LOGIT_NO_TOP int(0x80000000)

shared float weight_s[HG];
#ifdef PICKS
shared uvec4 query_s[HG * PITCH > CAPACITY / 4u ? HG * PITCH : CAPACITY / 4u];
#else
shared uvec4 query_s[HG * PITCH];
#endif

CM_B query_f[MATRICES];
float weight_f[HEAD_TILES][COLUMNS];

uint t_, end_;
uint share_; // tiles of a workgroup
int request_;
uint mine_;  // which of its keys' sums a lane ends up with
bool store_; // and whether it is the first lane to do so
uint64_t tops_; // of tile 0 of the request

// What a lane holds of a tile: codes of its part of KEYS rows, and scales, of FP8 keys that of the
// key whose logit it stores.
struct Rows {
    uvec4 codes[CODES];
    uint scales[SCALES];
    bool there;
};

// Place: the pages of a tile's rows. A tile of candidate blocks has a page and a slot for each row
// of a lane, others have one page.
const uint PLACES = BLOCKS > 0u ? KEYS : 1u;
struct Place {
    uint page[PLACES];
    uint slot[PLACES]; // with BLOCKS
};

void find(uint tile, out Place at) {
    [[unroll]] for (uint j = 0u; j < PLACES; j++) {
        const uint n = BLOCKS > 0u ? logit_entry(t_, tile * CM_M + row_of(j), BLOCKS) : tile * CM_M;
        at.page[j] = logit_page(request_, n);
        at.slot[j] = n % PAGE;
    }
}

// place_of: which place row j of a lane has; mine: that of the row whose logit a lane stores.
uint place_of(uint j) { return min(j, PLACES - 1u); }
uint mine(uint of[PLACES]) {
    uint x = of[0];
    [[unroll]] for (uint j = 1u; j < PLACES; j++) x = j == mine_ ? of[j] : x;
    return x;
}

// fetch: rows that are not there are read from page 0, so that no load hangs on a condition.
// fetch_held is the same with loads that stay where they are. The lanes of a row load 16 bytes each
// that lie side by side.
#define PAGE_AT(page) (pc.keys_addr + uint64_t(page < pc.keys_pages ? page : 0u) * pc.keys_stride)
#define FETCH(name, Read1, Read2, Read4) void name(Place place, uint tile, out Rows rows) { \
    const uint slot = tile * CM_M % PAGE, my_page = mine(place.page); \
    rows.there = my_page < pc.keys_pages; \
    [[unroll]] for (uint j = 0u; j < KEYS; j++) { \
        const uint64_t at = PAGE_AT(place.page[place_of(j)]); \
        const uint row = BLOCKS > 0u ? place.slot[place_of(j)] : slot + row_of(j); \
        const uint64_t codes = at + index_row_byte(FORMAT, row); \
        if (WORDS == 2u) rows.codes[j] = Read2(codes + part_ * 8u).v.xyxy; \
        else [[unroll]] for (uint c = 0u; c < LOADS; c++) rows.codes[j * LOADS + c] = Read4(codes + (c * P + part_) * 16u).v; \
        if (FORMAT != INDEX_FP8) rows.scales[j] = Read1(at + index_scale_byte(FORMAT, PAGE, row)).v; \
    } \
    const uint my_row = BLOCKS > 0u ? mine(place.slot) : slot + row_of(mine_); \
    if (FORMAT == INDEX_FP8) rows.scales[0] = Read1(PAGE_AT(my_page) + index_scale_byte(FORMAT, PAGE, my_row)).v; \
}
FETCH(fetch, KvRead1, KvRead2, KvRead4)
FETCH(fetch_held, Held1, Held2, Held4)

// element: number e of a lane's part of a row, in the order in which codes are decoded.
float16_t element(uvec4 codes[LOADS], f16vec2 scale, uint e) {
    const uint per = FORMAT == INDEX_FP8 ? 4u : 8u, w = e / per, word = codes[w / 4u][w % 4u]; // numbers of a word
    const uvec4 pairs = FORMAT == INDEX_FP8 ? cm_fp8x8(uvec2(word)) : cm_fp4x8(word, scale);
    return unpackFloat2x16(pairs[e % per / 2u])[e % 2u];
}

#ifdef RAW_QUERIES
#include "lib/index_raw.glsl"
#endif

// Queries of the head tiles that a subgroup decodes, as they lie in memory, and the weight of a
// head for each invocation. They are asked for before anything is known of the keys, and decoded
// when those are on their way.
uvec4 query_codes[TAKEN * HEADS * LOADS];
uint query_scales[TAKEN * HEADS];
float weight_;
uint weight_scales_;

uint head_tile(uint i) { return gl_SubgroupID + i * SUBGROUPS; }
uint head_at(uint i) { return t_ * pc.heads + min(i, pc.heads - 1u); }

void ask_queries() {
    [[unroll]] for (uint i = 0u; i < TAKEN * HEADS; i++) {
        const uint at = head_at(head_tile(i / HEADS) * CM_N + row_of(i % HEADS));
        if (WORDS == 2u) {
            query_codes[i] = q_at(at * 8u + part_).xyxy;
        } else {
            [[unroll]] for (uint c = 0u; c < LOADS; c++) {
                query_codes[i * LOADS + c] = Read_uvec4(pc.q_addr).v[at * (index_row_bytes(FORMAT) / 16u) + c * P + part_];
            }
        }
        if (FORMAT != INDEX_FP8) query_scales[i] = q_scale_at(at);
    }
    weight_ = weights_at(head_at(gl_LocalInvocationIndex));
    if (FORMAT != INDEX_FP8) weight_scales_ = q_scale_at(head_at(gl_LocalInvocationIndex));
}

// Decodes them into shared memory by way of matrices, so that what comes out of there is right
// however a device lays matrices out. It is also what its compiler knows as a matrix: of one made
// of numbers it keeps the numbers, and moves them together before each use.
void store_queries() {
    [[unroll]] for (uint i = 0u; i < TAKEN; i++) {
        if (head_tile(i) >= HEAD_TILES) break;
        CM_B made[STEPS];
        [[unroll]] for (uint j = 0u; j < HEADS; j++) {
            const bool real = head_tile(i) * CM_N + row_of(j) < pc.heads;
            uvec4 codes[LOADS];
            [[unroll]] for (uint c = 0u; c < LOADS; c++) codes[c] = real ? query_codes[(i * HEADS + j) * LOADS + c] : uvec4(0u);
            f16vec2 scale = f16vec2(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(query_scales[i * HEADS + j], block_of());
            [[unroll]] for (uint k = 0u; k < STEPS; k++)
                [[unroll]] for (uint e = 0u; e < EACH; e++) made[k][j * EACH + e] = element(codes, scale, k * EACH + e);
        }
        [[unroll]] for (uint k = 0u; k < STEPS; k++)
            coopMatStore(made[k], query_s, head_tile(i) * CM_N * PITCH + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
    }
    const float scale = FORMAT == INDEX_FP8 ? 1.0 : cm_row_scale(weight_scales_);
    if (gl_LocalInvocationIndex < HG) weight_s[gl_LocalInvocationIndex] = gl_LocalInvocationIndex < pc.heads ? weight_ * scale : 0.0;
}

CM_B load_query(uint head_tile, uint k) {
    CM_B heads;
    coopMatLoad(heads, query_s, head_tile * CM_N * PITCH + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
    return heads;
}

// load_kept: queries that stay in registers, and the weights of the heads that are a lane's columns
// of C. With stride 0 rows are equal.
void load_kept() {
    [[unroll]] for (uint i = 0u; i < KEPT * STEPS; i++) query_f[i] = load_query(i / STEPS, i % STEPS);
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C w;
        coopMatLoad(w, weight_s, i * CM_N, 0u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) weight_f[i][c] = w[c];
    }
}

// score: the logits of a tile.
void score(Rows rows, uint tile) {
    CM_C s[HEAD_TILES];
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) s[i] = CM_C(0.0);
    [[unroll]] for (uint k = 0u; k < STEPS; k++) {
        CM_A keys;
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            uvec4 codes[LOADS];
            [[unroll]] for (uint c = 0u; c < LOADS; c++) codes[c] = rows.codes[j * LOADS + c];
            f16vec2 scale = f16vec2(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(rows.scales[j % SCALES], block_of());
            [[unroll]] for (uint e = 0u; e < EACH; e++) keys[j * EACH + e] = element(codes, scale, k * EACH + e);
        }
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            if (i < KEPT) s[i] = coopMatMulAdd(keys, query_f[min(i * STEPS + k, MATRICES - 1u)], s[i]);
            else s[i] = coopMatMulAdd(keys, load_query(i, k), s[i]);
        }
    }
    float sum[KEYS];
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        float x[2] = float[2](0.0, 0.0); // two chains
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++)
            [[unroll]] for (uint c = 0u; c < COLUMNS; c++) x[c % 2u] += max(s[i][j * COLUMNS + c], 0.0) * weight_f[i][c];
        sum[j] = x[0] + x[1];
    }
    // Every step adds over two lanes of a row and, while there are several rows, leaves half of
    // them to each.
    [[unroll]] for (uint bit = 1u, count = KEYS; bit < P; bit <<= 1) {
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
    uint scales = rows.scales[0];
    [[unroll]] for (uint j = 1u; j < SCALES; j++) scales = j == mine_ ? rows.scales[j] : scales;
    const float scale = FORMAT == INDEX_FP8 ? uintBitsToFloat(scales) : cm_row_scale(scales);
    const uint n = tile * CM_M + row_of(mine_);
    const float x = rows.there ? sum[0] * CM_UNSCALE * scale : LOGIT_NONE;
    const bool real = n >= pc.first && n < end_;
    if (store_ && real) logit_store(t_, n - pc.first, x);
    if (TOPS > 0u) {
        const int bits = floatBitsToInt(isnan(x) ? LOGIT_NONE : x);
        const int top = subgroupMax(real ? bits ^ (bits >> 31 & 0x7FFFFFFF) : LOGIT_NO_TOP);
        if (gl_SubgroupInvocationID == 0u) TopWrite(tops_ + uint64_t(tile) * 4ul).v = top;
    }
}

#ifdef PICKS
#include "lib/index_pick.glsl"
// In lavapipe, whose subgroups are of 8, this one waits for the workgroup, which barrier() of
// index_pick.glsl then misses.
#define LOOP_BARRIER if (SUBGROUP > 8u) subgroupBarrier()
#define SCORE score_share
#else
#define LOOP_BARRIER subgroupBarrier()
#define SCORE main
#endif

void SCORE() {
    part_ = gl_SubgroupInvocationID % P;
    base_ = gl_SubgroupInvocationID / P;
    mine_ = 0u;
    store_ = true;
    [[unroll]] for (uint bit = 1u, count = KEYS; bit < P; bit <<= 1) { // as score adds
        const bool upper = (part_ & bit) != 0u;
        if (count > 1u) {
            count /= 2u;
            if (upper) mine_ += count;
        } else if (upper) {
            store_ = false;
        }
    }
    t_ = gl_WorkGroupID.y;
    end_ = logit_end(t_);
    request_ = token_to_req_at(t_);
#ifdef RAW_QUERIES
    ask_raw();
#else
    ask_queries();
#endif
    if (TOPS > 0u) tops_ = pc.side_addr + (uint64_t(t_) * pc.side_width - pc.first / CM_M) * 4ul;

    // Shares follow from the lengths there are, not from the width: a short context is spread over
    // all workgroups too. A quotient of floats, made right, takes a fraction of the time that one
    // of integers takes.
    const uint tile0 = pc.first / CM_M, tiles = end_ > pc.first ? (end_ + CM_M - 1u) / CM_M - tile0 : 0u;
    share_ = max(uint(float(tiles) / float(gl_NumWorkGroups.x)), pc.chunk);
    while (share_ * gl_NumWorkGroups.x < tiles) share_++;
    const uint begin = tile0 + min(gl_WorkGroupID.x * share_, tiles), last = min(begin + share_, tile0 + tiles);
    if (begin >= last) return;
    // Past the end the last tile is looked up and fetched again: a load that is always made can be
    // on its way early.
    #define TILE_AT(i) min(i, last - 1u)
    uint tile = begin + gl_SubgroupID;
    Rows rows;
    Place place;
    find(TILE_AT(tile), place);
#ifdef RAW_QUERIES
    fetch_held(place, TILE_AT(tile), rows); // or it is moved behind all that is done with queries
    find(TILE_AT(tile + SUBGROUPS), place);
    quantise_queries();
    barrier();
    store_raw();
#else
    fetch(place, TILE_AT(tile), rows);
    find(TILE_AT(tile + SUBGROUPS), place);
    store_queries();
#endif
    barrier();
    if (tile >= last) return;
    load_kept();
    [[dont_unroll]] for (;;) {
        Rows next;
        if (HELD) fetch_held(place, TILE_AT(tile + SUBGROUPS), next);
        else fetch(place, TILE_AT(tile + SUBGROUPS), next);
        find(TILE_AT(tile + 2u * SUBGROUPS), place);
        LOOP_BARRIER; // or a compiler moves the loads behind the exit, to their use
        score(rows, tile);
        tile += SUBGROUPS;
        if (tile >= last) break;
        LOOP_BARRIER;
        [[unroll]] for (uint i = 0u; i < CODES; i++) rows.codes[i] = next.codes[i];
        [[unroll]] for (uint i = 0u; i < SCALES; i++) rows.scales[i] = next.scales[i];
        rows.there = next.there;
    }
}

#ifdef PICKS
void main() {
    score_share();
    pick();
}
#endif
