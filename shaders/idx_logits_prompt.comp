// Indexer logits over paged keys for tokens in a row that mostly share a request: for entry n of
// token t's request, first <= n < first+width and n < lens[t],
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
// with the bits of idx_logits_lanes: the same products of the same numbers at the same positions,
// and sums in the same order.
// Bindings:  none; those of lib/index_logits.glsl by address.
// Workgroup: tokens from gl_WorkGroupID.y*SUBGROUPS on, one a subgroup, which keeps its queries as
//   B matrices in registers, and a share of their keys. KEY_TILES tiles of M keys at a time are
//   decoded to shared memory, by all subgroups for all; the codes of the next ones are on their way
//   meanwhile. Where the tokens have several requests, each subgroup decodes keys of its own.
// Layout:    of matrices in lanes as in idx_logits_lanes.comp.
// Constants: 0 page, a multiple of M, 1 format, 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a product, 7
//   HG, heads rounded up to N, 8 P: 4 or 8, 9 KEY_TILES: SUBGROUPS or half of them.
// Shared memory: 552*M*KEY_TILES + 4*HG*SUBGROUPS bytes.
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

#include "lib/index_lanes.glsl"
layout(constant_id = 9) const uint KEY_TILES = 4u;

const uint HEAD_PAIR = 2u;                // head tiles that are multiplied side by side
const uint PER = FORMAT == INDEX_FP8 ? 4u : 8u; // numbers of a word
const uint WORDS = INDEX_DIM / PER / P;   // of a lane's part of a row
const uint TILE = KEY_TILES * CM_M;
const uint SPLIT = SUBGROUPS / KEY_TILES; // subgroups that decode a tile
const uint TAKEN = WORDS / SPLIT;         // words of them
const uint TAKEN_STEPS = STEPS / SPLIT;
const uint LOADS = (TAKEN + 3u) / 4u;     // of up to 16 bytes
const uint CODES = KEYS * LOADS;          // a name, because glslc writes an expression's address to OpName
const uint PITCH = INDEX_DIM / 8u + 1u;   // of a key: rows of a matrix fall into different banks
const uint ABSENT = 0xFFFFFFFFu;          // in place of the scale of a key that is not there

shared uvec4 key_s[2u * TILE * PITCH]; // queries on their way, then two steps of keys
shared uint scale_s[2u * TILE];
shared float weight_s[SUBGROUPS * HG];

CM_B query_f[HEAD_TILES * STEPS];
float weight_f[HEAD_TILES][COLUMNS];

int request_;
uint mine_;     // the row of a tile whose sum a lane ends up with
bool store_;    // and whether it is the first lane to do so
uint64_t dst_;  // of the token's column 0
uint columns_;  // of them, those that the token wants

// What a lane holds of the keys that its subgroup decodes.
struct Rows {
    uvec4 codes[CODES];
    uint scales[KEYS];
    bool there;
};

// word_byte: where word w of a lane's part of a row lies.
uint word_byte(uint w) { return WORDS < 4u ? (part_ * WORDS + w) * 4u : (w / 4u * P + part_) * 16u + w % 4u * 4u; }

// fetch: part `split` of the words of the tile whose first key is entry n, from its page. Rows that
// are not there are read from page 0, so that no load hangs on a condition.
void fetch(uint page, uint n, uint split, out Rows rows) {
    rows.there = page < pc.keys_pages;
    const uint64_t at = pc.keys_addr + uint64_t(rows.there ? page : 0u) * pc.keys_stride;
    [[unroll]] for (uint j = 0u; j < KEYS; j++) {
        const uint row = n % PAGE + row_of(j), w = split * TAKEN;
        const uint64_t codes = at + index_row_byte(FORMAT, row);
        if (TAKEN == 1u) rows.codes[j] = uvec4(Held1(codes + word_byte(w)).v);
        else if (TAKEN == 2u) rows.codes[j] = Held2(codes + word_byte(w)).v.xyxy;
        else [[unroll]] for (uint c = 0u; c < LOADS; c++) rows.codes[j * LOADS + c] = Held4(codes + word_byte(w + c * 4u)).v;
        rows.scales[j] = Held1(at + index_scale_byte(FORMAT, PAGE, row)).v;
    }
}

// number: number e of a lane's words, in the order in which codes are decoded.
float16_t number(uint word, f16vec2 scale, uint e) {
    const uvec4 pairs = FORMAT == INDEX_FP8 ? cm_fp8x8(uvec2(word)) : cm_fp4x8(word, scale);
    return unpackFloat2x16(pairs[e % PER / 2u])[e % 2u];
}

// keep decodes them to the tile that begins at row `at` of shared memory.
void keep(Rows rows, uint at, uint split) {
    [[unroll]] for (uint k = 0u; k < TAKEN_STEPS; k++) {
        CM_A made;
        [[unroll]] for (uint j = 0u; j < KEYS; j++) {
            f16vec2 scale = f16vec2(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(rows.scales[j], block_of());
            [[unroll]] for (uint e = 0u; e < EACH; e++) {
                const uint w = (k * EACH + e) / PER;
                made[j * EACH + e] = number(rows.codes[j * LOADS + w / 4u][w % 4u], scale, k * EACH + e);
            }
        }
        coopMatStore(made, key_s, at * PITCH + (split * TAKEN_STEPS + k) * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutRowMajor);
    }
    if (split == 0u && part_ == 0u) {
        [[unroll]] for (uint j = 0u; j < KEYS; j++) scale_s[at + row_of(j)] = rows.there ? rows.scales[j] : ABSENT;
    }
}

// load_queries brings a token's queries and weights to registers, by way of shared memory and
// matrices, so that what comes out of there is right however a device lays matrices out.
void load_queries(uint t) {
    const uint rows = gl_SubgroupID * CM_N * PITCH;
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_B made[STEPS];
        [[unroll]] for (uint j = 0u; j < HEADS; j++) {
            const uint head = i * CM_N + row_of(j), at = t * pc.heads + min(head, pc.heads - 1u);
            uint words[WORDS];
            [[unroll]] for (uint w = 0u; w < WORDS; w += 2u) {
                const uvec2 two = q_at((at * index_row_bytes(FORMAT) + word_byte(w)) / 8u);
                words[w] = head < pc.heads ? two.x : 0u;
                words[w + 1u] = head < pc.heads ? two.y : 0u;
            }
            f16vec2 scale = f16vec2(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(q_scale_at(at), block_of());
            [[unroll]] for (uint k = 0u; k < STEPS; k++)
                [[unroll]] for (uint e = 0u; e < EACH; e++)
                    made[k][j * EACH + e] = number(words[(k * EACH + e) / PER], scale, k * EACH + e);
        }
        subgroupBarrier();
        [[unroll]] for (uint k = 0u; k < STEPS; k++)
            coopMatStore(made[k], key_s, rows + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        subgroupBarrier();
        [[unroll]] for (uint k = 0u; k < STEPS; k++)
            coopMatLoad(query_f[i * STEPS + k], key_s, rows + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
    }
    for (uint h = gl_SubgroupInvocationID; h < HG; h += SUBGROUP) {
        const uint at = t * pc.heads + min(h, pc.heads - 1u);
        const float scale = FORMAT == INDEX_FP8 ? 1.0 : cm_row_scale(q_scale_at(at));
        weight_s[gl_SubgroupID * HG + h] = h < pc.heads ? weights_at(at) * scale : 0.0;
    }
    subgroupBarrier();
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) { // with stride 0 rows are equal
        CM_C w;
        coopMatLoad(w, weight_s, gl_SubgroupID * HG + i * CM_N, 0u, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) weight_f[i][c] = w[c];
    }
}

// score: the logits of the tile of keys at row `at` of shared memory, of which the first belongs to
// a column.
void score(uint at, uint column) {
    CM_A keys[STEPS];
    [[unroll]] for (uint k = 0u; k < STEPS; k++)
        coopMatLoad(keys[k], key_s, at * PITCH + k * (CM_K / 8u), PITCH, gl_CooperativeMatrixLayoutRowMajor);
    float x[KEYS][2]; // two chains
    [[unroll]] for (uint j = 0u; j < KEYS; j++) x[j] = float[2](0.0, 0.0);
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i += HEAD_PAIR) {
        CM_C s[HEAD_PAIR];
        [[unroll]] for (uint h = 0u; h < HEAD_PAIR; h++) s[h] = CM_C(0.0);
        [[unroll]] for (uint k = 0u; k < STEPS; k++)
            [[unroll]] for (uint h = 0u; h < HEAD_PAIR; h++)
                if (i + h < HEAD_TILES) s[h] = coopMatMulAdd(keys[k], query_f[(i + h) * STEPS + k], s[h]);
        [[unroll]] for (uint h = 0u; h < HEAD_PAIR; h++)
            if (i + h < HEAD_TILES)
                [[unroll]] for (uint j = 0u; j < KEYS; j++)
                    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) x[j][c % 2u] += max(s[h][j * COLUMNS + c], 0.0) * weight_f[i + h][c];
    }
    float sum[KEYS];
    [[unroll]] for (uint j = 0u; j < KEYS; j++) sum[j] = x[j][0] + x[j][1];
    // Every step adds over two lanes of a row and, while there are several rows, leaves half of
    // them to each.
    [[unroll]] for (uint bit = 1u, count = KEYS; bit < P; bit <<= 1) {
        const bool upper = (part_ & bit) != 0u;
        if (count > 1u) {
            count /= 2u;
            [[unroll]] for (uint j = 0u; j < count; j++) {
                const float send = upper ? sum[j] : sum[j + count], own = upper ? sum[j + count] : sum[j];
                sum[j] = own + subgroupShuffleXor(send, bit);
            }
        } else {
            sum[0] += subgroupShuffleXor(sum[0], bit);
        }
    }
    const uint scales = scale_s[at + mine_];
    const float scale = FORMAT == INDEX_FP8 ? uintBitsToFloat(scales) : cm_row_scale(scales);
    const float logit = scales != ABSENT ? sum[0] * CM_UNSCALE * scale : LOGIT_NONE;
    column += mine_; // below column 0 it is a large number
    if (store_ && column < columns_) LogitWrite(dst_ + uint64_t(column) * 4ul).v = logit;
}

// share: of as many tiles or steps as end before an entry, those of this workgroup. They are found
// as in idx_logits_lanes.
uvec2 share(uint end, uint length) {
    const uint first = pc.first / length, count = end > pc.first ? (end + length - 1u) / length - first : 0u;
    uint chunk = max(uint(float(count) / float(gl_NumWorkGroups.x)), pc.chunk);
    while (chunk * gl_NumWorkGroups.x < count) chunk++;
    const uint begin = min(gl_WorkGroupID.x * chunk, count);
    return first + uvec2(begin, min(begin + chunk, count));
}

// score_shared: the tokens have one request, and the last entry that any of them wants is before
// end. Past it the last step is looked up and fetched again: a load that is always made can be on
// its way early.
void score_shared(uint end) {
    const uvec2 steps = share(end, TILE);
    if (steps.x >= steps.y) return;
    const uint own = gl_SubgroupID % KEY_TILES * CM_M, split = gl_SubgroupID / KEY_TILES;
    #define STEP_AT(i) (min(i, steps.y - 1u) * TILE + own)
    uint step_ = steps.x, at = 0u;
    Rows rows;
    fetch(logit_page(request_, STEP_AT(step_)), STEP_AT(step_), split, rows);
    uint page = logit_page(request_, STEP_AT(step_ + 1u));
    keep(rows, own, split);
    barrier();
    [[dont_unroll]] for (;;) {
        fetch(page, STEP_AT(step_ + 1u), split, rows);
        page = logit_page(request_, STEP_AT(step_ + 2u));
        subgroupBarrier();
        if (step_ * TILE < pc.first + columns_)
            [[dont_unroll]] for (uint i = 0u; i < TILE; i += CM_M) score(at + i, step_ * TILE + i - pc.first);
        if (++step_ >= steps.y) break;
        at = TILE - at;
        keep(rows, at + own, split);
        barrier();
    }
}

// score_alone: no other token of the workgroup need have the same request. All have as many turns
// as the one with the most.
void score_alone(uint end) {
    const uvec2 tiles = share(end, CM_M);
    const uint at = gl_SubgroupID * CM_M;
    [[dont_unroll]] for (uint tile = tiles.x; tile < tiles.y; tile++) {
        const uint n = tile * CM_M, page = logit_page(request_, n);
        Rows rows[SPLIT];
        [[unroll]] for (uint i = 0u; i < SPLIT; i++) fetch(page, n, i, rows[i]);
        [[unroll]] for (uint i = 0u; i < SPLIT; i++) keep(rows[i], at, i);
        subgroupBarrier();
        score(at, n - pc.first);
        subgroupBarrier();
    }
}

void main() {
    part_ = gl_SubgroupInvocationID % P;
    base_ = gl_SubgroupInvocationID / P;
    store_ = true;
    uint key = 0u;
    [[unroll]] for (uint bit = 1u, count = KEYS; bit < P; bit <<= 1) { // as score adds
        const bool upper = (part_ & bit) != 0u;
        if (count > 1u) {
            count /= 2u;
            if (upper) key += count;
        } else if (upper) {
            store_ = false;
        }
    }
    mine_ = row_of(key);
    const uint token0 = gl_WorkGroupID.y * SUBGROUPS, tokens = min(SUBGROUPS, pc.tokens - token0);
    const uint own = min(gl_SubgroupID, tokens - 1u);
    load_queries(token0 + own);
    // A lane has the request of one token, and the end of what it wants.
    const uint token = token0 + min(gl_SubgroupInvocationID, tokens - 1u);
    const int request = token_to_req_at(token);
    const uint end = logit_end(token);
    request_ = subgroupShuffle(request, own);
    const uint own_end = gl_SubgroupID < tokens ? subgroupShuffle(end, own) : 0u;
    dst_ = pc.dst_addr + uint64_t(token0 + own) * pc.width * 4ul;
    columns_ = own_end > pc.first ? own_end - pc.first : 0u;
    barrier(); // queries have been taken from where keys come
    if (subgroupMin(request) == subgroupMax(request)) score_shared(subgroupMax(end));
    else score_alone(subgroupMax(end));
}
