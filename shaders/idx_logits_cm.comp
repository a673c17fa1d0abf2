// Indexer logits over paged keys with cooperative matrices: for entry n of token t's request,
// first <= n < first+width and n < lens[t],
//   dst[t][n-first] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
// as idx_logits.comp does, with BLOCKS too.
// Bindings:  0..5 of lib/index_logits.glsl; dst and keys by address.
// Workgroup: TOKENS tokens and a share of their keys, in tiles of TILE that are decoded once for
//   all tokens of a request. A subgroup holds HG heads of a token: subgroup = (token * HEAD_PARTS +
//   head part) * KEY_PARTS + key part.
// Constants: 0 page, 1 format, 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a product, 7 HG, 8
//   HEAD_PARTS, 9 TOKENS, 10 TILE, 11 ALONE (1: a subgroup decodes the keys it multiplies and waits
//   for no other), 12 HELD (1: weights stay in registers), 13 BLOCKS: entries of a candidate
//   block, or 0, with TOKENS 1, 14 ROWS (of lib/cm_rows.glsl: how keys lie). With CM_CODES
//   elements are the codes of E4M3 themselves, format is 1 and BLOCKS 0.
// Shared memory: TILE*272 (with CM_CODES TILE*144) + SUBGROUPS*N*(4M+16), which ROWS leaves unused,
//   + 4*TOKENS*HEAD_PARTS*HG + 4*PART_SUMS + 8*TILE bytes.
// Features:  cooperativeMatrix (f16; CM_CODES: e4m3), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups, subgroupShuffle;
//   with CM_CODES shaderFloat8, shaderInt8.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
#define ADDRESSED
#include "lib/kv_page.glsl"
#include "lib/index_logits.glsl"
#include "lib/cm_element.glsl"
#ifdef CM_CODES
#extension GL_EXT_float_e4m3 : require
#undef CM_ELEMENT
#define CM_ELEMENT floate4m3_t
const uint QUAD = 16u; // elements of 16 bytes: E4M3 as it is stored, without decoding
#else
const uint QUAD = 8u;
#endif

#include "lib/cm_shape.glsl"
layout(constant_id = 7) const uint HG = 64u;
layout(constant_id = 8) const uint HEAD_PARTS = 1u;
layout(constant_id = 9) const uint TOKENS = 1u;
layout(constant_id = 10) const uint TILE = 64u;
layout(constant_id = 11) const uint ALONE = 1u;
layout(constant_id = 12) const uint HELD = 1u;
layout(constant_id = 13) const uint BLOCKS = 0u;
layout(constant_id = 14) const uint ROWS = 0u;
#ifdef CM_CODES
#define CM_CODE_ROWS
#define LOAD_KEYS CM_LOAD_CODES
#else
#define LOAD_KEYS CM_LOAD_ROWS
#endif
#include "lib/cm_rows.glsl"

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint KEY_PARTS = SUBGROUPS / (HEAD_PARTS * TOKENS);
const uint KEY_TILES = TILE / CM_N / KEY_PARTS; // matrices of keys that a subgroup multiplies in a tile
const uint HEAD_TILES = HG / CM_M;
const uint STEPS = INDEX_DIM / CM_K;
const uint HEAD_ROWS = TOKENS * HEAD_PARTS * HG;
const uint OWN_ROWS = TILE / SUBGROUPS;         // rows of a tile that a subgroup decodes
const uint EACH = TILE * 8u / THREADS;          // of these, one invocation's parts
const uint PART_SUMS = HEAD_PARTS == 1u ? 1u : TOKENS * HEAD_PARTS * TILE;
const bool ONE_PAGE = (BLOCKS > 0u ? 1u : PAGE % TILE) == 0u; // a tile lies in one page
const uint PLACES = ONE_PAGE ? 1u : EACH;       // pages to look up
const uint SLOTS = BLOCKS > 0u ? EACH : 1u;     // and slots in them
const uint SUM_PITCH = CM_M / 4u + 1u;
const uint TILE_PITCH = INDEX_DIM / QUAD + 1u, PART_QUADS = 16u / QUAD;
const uint PARTS = CM_K < 32u ? 2u : CM_K / 8u;  // of a row of queries that come in at a time
const uint PART_ROWS = HEAD_ROWS > TILE ? HEAD_ROWS : TILE * TILE_PITCH;
const bool BY_PARTS = PART_ROWS * PART_QUADS * PARTS <= TILE * TILE_PITCH; // queries do not fit at once, but parts of all do

shared uvec4 row_s[TILE * TILE_PITCH];                // [TILE, 128] elements of keys, at first of queries
shared vec4 sum_s[SUBGROUPS * CM_N * SUM_PITCH];      // [SUBGROUPS, N keys, M] sums over heads M apart
shared vec4 weight_s[HEAD_ROWS / 4u];                 // [TOKENS, HEAD_PARTS, HG]
shared float part_s[PART_SUMS];                       // [TOKENS, HEAD_PARTS, TILE] sums over a part of the heads
shared float scale_s[2u * TILE];                      // of the keys of this tile and the next; -1: there is no such key

#include "lib/cm_index_row.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer KvRead4 { uvec4 v; };

CM_A q_f[HEAD_TILES][STEPS];
CM_C weight_f[HEAD_TILES];

uint tid, sub, lane;
uint token_, head_part_, key_part_; // of this subgroup
uint row0_, part_;                  // this invocation decodes part_ of rows row0_, row0_ + SUBGROUP/8, ..
uint t_, begin_, end_;              // this subgroup's token and the entries it wants

// sync: what this subgroup (or all) stored in shared memory is seen by it (or all).
void sync() {
    if (ALONE != 0u) subgroupBarrier();
    else barrier();
}

uint row_of(uint i) { return row0_ + i * (SUBGROUP / ROW_PARTS); }

// A run of the workgroup's tokens that belong to one request.
struct Run {
    int request;
    uint a, b;  // tokens
    uint end;   // one past the last entry that any of them wants
};

struct Rows {
    uvec4 codes[EACH];
    uint scales[EACH];
    bool there[EACH];
};

void find(Run r, uint tile, out uint page[PLACES], inout uint slot[SLOTS]) {
    [[unroll]] for (uint i = 0u; i < PLACES; i++) {
        uint n = tile * TILE + (ONE_PAGE ? 0u : row_of(i));
        if (BLOCKS > 0u) {
            n = logit_entry(t_, n, BLOCKS);
            slot[min(i, SLOTS - 1u)] = n % PAGE;
        }
        page[i] = logit_page(r.request, n);
    }
}

// fetch: rows that are not there are read from page 0, so that no load hangs on a condition.
void fetch(uint page[PLACES], uint slots[SLOTS], uint tile, out Rows rows) {
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        const uint slot = BLOCKS > 0u ? slots[min(i, SLOTS - 1u)] : (tile * TILE + row_of(i)) % PAGE, found = page[ONE_PAGE ? 0u : i];
        rows.there[i] = found < pc.keys_pages;
        const uint64_t at = pc.keys_addr + uint64_t(rows.there[i] ? found : 0u) * pc.keys_stride;
        if (FORMAT == INDEX_FP8) rows.codes[i] = KvRead4(at + slot * 128u + part_ * 16u).v;
        else rows.codes[i] = KvRead2(at + slot * 64u + part_ * 8u).v.xyxy;
        rows.scales[i] = KvRead1(at + index_scale_byte(FORMAT, PAGE, slot)).v;
    }
}

void keep(Rows rows, uint buf) {
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        const uint row = row_of(i);
        cm_keep_part(rows.codes[i], rows.scales[i], row, part_, cm_half(row));
        const float scale = FORMAT == INDEX_FP8 ? uintBitsToFloat(rows.scales[i]) : cm_row_scale(rows.scales[i]);
        if (part_ == 0u) scale_s[buf * TILE + row] = rows.there[i] ? scale : -1.0;
    }
}

// finish: the sum over all heads of row `row` of a tile, to dst if token t wants it.
void finish(uint t, uint begin, uint end, uint tile, uint row, uint buf, float sum) {
    const uint n = tile * TILE + row;
    const float scale = scale_s[buf * TILE + row];
    if (n >= begin && n < end) logit_store(t, n - begin, scale < 0.0 ? LOGIT_NONE : sum * CM_UNSCALE * scale);
}

// load_weights: of head tile i of this subgroup. Stride 0: every column the same.
void load_weights(out CM_C w, uint i) {
    coopMatLoad(w, weight_s, ((token_ * HEAD_PARTS + head_part_) * HG + i * CM_M) / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
}

// keep_query: part `part` of head row `row` of the workgroup's to row_s, with pitch quads from row
// to row and its second half `half_` quads behind the first; part 0 brings the head's weight along.
void keep_query(uint t0, uint row, uint part, uint at, uint half_) {
    const uint head = row % (HEAD_PARTS * HG), t = t0 + row / (HEAD_PARTS * HG);
    const bool real = head < pc.heads && t < pc.tokens;
    const uint q = real ? t * pc.heads + head : 0u;
    uvec4 codes;
    uint scales = 0u;
    if (FORMAT == INDEX_FP8) {
        codes = uvec4(q_at(q * 16u + part * 2u), q_at(q * 16u + part * 2u + 1u));
    } else {
        codes = q_at(q * 8u + part).xyxy;
        scales = q_scale_at(q);
    }
    cm_keep_halves(real ? codes : uvec4(0u), scales, part, at, at + half_, 0u);
    if (part == 0u && row < HEAD_ROWS) {
        const float scale = FORMAT == INDEX_FP8 ? 1.0 : cm_row_scale(scales);
        weight_s[row / 4u][row % 4u] = real ? weights_at(q) * scale : 0.0;
    }
}

// load_heads: q and weights of all tokens through row_s, TILE rows at a time, into fragments.
void load_heads(uint t0, uint mine) {
    [[dont_unroll]] for (uint first = 0u; first < HEAD_ROWS; first += TILE) {
        barrier();
        [[unroll]] for (uint i = 0u; i < EACH; i++) keep_query(t0, first + row_of(i), part_, row_of(i) * ROW_PITCH + part_, ROW_PARTS);
        barrier();
        if (mine >= first && mine < first + TILE) {
            [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
                [[unroll]] for (uint k = 0u; k < STEPS; k++) {
                    coopMatLoad(q_f[i][k], row_s, (mine - first + i * CM_M) * ROW_PITCH + k * CM_K / QUAD, ROW_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }
}

// load_parts: the same, some parts of all heads at a time. Each fragment is loaded once and under
// no condition: else compilers hold its halves apart, and RADV moves all of them before each
// product.
void load_parts(uint t0, uint mine) {
    [[unroll]] for (uint first = 0u; first < ROW_PARTS; first += PARTS) {
        barrier();
        [[unroll]] for (uint at = tid; at < HEAD_ROWS * PARTS; at += THREADS) {
            keep_query(t0, at / PARTS, first + at % PARTS, at / PARTS * (PART_QUADS * PARTS) + at % PARTS, PARTS);
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            [[unroll]] for (uint x = 0u; x < PART_QUADS * PARTS; x += CM_K / QUAD) { // of the first halves, then of the second
                coopMatLoad(q_f[i][(x / PARTS * ROW_PARTS + first + x % PARTS) / (CM_K / QUAD)], row_s,
                            (mine + i * CM_M) * (PART_QUADS * PARTS) + x, PART_QUADS * PARTS, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
    }
}

void load_queries(uint t0) {
    const uint mine = (token_ * HEAD_PARTS + head_part_) * HG;
    if (BY_PARTS) load_parts(t0, mine);
    else load_heads(t0, mine);
    if (HELD != 0u) {
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) load_weights(weight_f[i], i);
    }
    barrier();
}

float key_sum_; // with ROWS: of key lane % N

// sum_heads: this subgroup's heads against the keys of rows row0 .. row0+N-1, to its part of sum_s;
// with ROWS to key_sum_.
void sum_heads(uint row0) {
    CM_C s[HEAD_TILES];
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) s[i] = CM_C(0.0);
    [[unroll]] for (uint k = 0u; k < STEPS; k++) {
        CM_B keys; // rows of row_s are its columns
        LOAD_KEYS(keys, row_s, row0, k * CM_K / QUAD, ROW_PITCH, lane, gl_CooperativeMatrixLayoutColumnMajor)
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) s[i] = coopMatMulAdd(q_f[i][k], keys, s[i]);
    }
    // Heads M apart meet in one component, wherever a subgroup keeps it.
    CM_C sum = CM_C(0.0);
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C w;
        if (HELD != 0u) w = weight_f[i];
        else load_weights(w, i);
        [[unroll]] for (uint e = 0u; e < sum.length(); e++) sum[e] += max(s[i][e], 0.0) * w[e];
    }
    if (ROWS != 0u) {
        key_sum_ = 0.0;
        [[unroll]] for (uint e = 0u; e < sum.length(); e++) key_sum_ += sum[e];
        [[unroll]] for (uint x = CM_N; x < SUBGROUP; x *= 2u) key_sum_ += subgroupShuffleXor(key_sum_, x);
    } else coopMatStore(sum, sum_s, sub * CM_N * SUM_PITCH, SUM_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
}

// multiply: the logits of this subgroup's share of a tile, or the sums over its part of the heads.
// Without `mine` it only keeps the barriers company: a driver may make every subgroup wait at each
// of them.
void multiply(uint tile, uint buf, bool mine) {
    [[dont_unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
        const uint row0 = (key_part_ * KEY_TILES + j) * CM_N;
        if (mine) sum_heads(row0);
        if (ROWS == 0u) subgroupBarrier();
        for (uint key = lane; mine && key < CM_N; key += SUBGROUP) {
            float all = key_sum_;
            if (ROWS == 0u) {
                vec4 four = sum_s[(sub * CM_N + key) * SUM_PITCH];
                [[unroll]] for (uint m = 1u; m < CM_M / 4u; m++) four += sum_s[(sub * CM_N + key) * SUM_PITCH + m];
                all = (four.x + four.y) + (four.z + four.w);
            }
            if (HEAD_PARTS == 1u) finish(t_, begin_, end_, tile, row0 + key, buf, all);
            else part_s[(token_ * HEAD_PARTS + head_part_) * TILE + row0 + key] = all;
            if (ROWS != 0u) break; // each key has a lane
        }
        if (ROWS == 0u) subgroupBarrier();
    }
}

// add_parts: logits from the sums over parts of the heads, in order.
void add_parts(Run r, uint t0, uint tile, uint buf) {
    for (uint at = tid; at < TOKENS * TILE; at += THREADS) {
        const uint token = at / TILE, row = at % TILE, t = t0 + token;
        if (token < r.a || token >= r.b) continue;
        float sum = part_s[token * HEAD_PARTS * TILE + row];
        for (uint p = 1u; p < HEAD_PARTS; p++) sum += part_s[(token * HEAD_PARTS + p) * TILE + row];
        finish(t, pc.first, logit_end(t), tile, row, buf, sum);
    }
}

// score: tiles [tile, last) of a run, tile < last. With LOAD the queries are loaded while the first
// rows are on their way.
void score(Run r, uint t0, uint tile, uint last, bool load) {
    // Past the end the last tile is looked up and fetched again: a load that is always made can be
    // on its way early.
    #define TILE_AT(i) min(i, last - 1u)
    uint page[PLACES], slots[SLOTS];
    Rows first_rows;
    find(r, tile, page, slots);
    fetch(page, slots, tile, first_rows);
    find(r, TILE_AT(tile + 1u), page, slots);
    if (load) load_queries(t0);
    else barrier();
    uint buf = 0u;
    keep(first_rows, 0u);
    [[dont_unroll]] for (;;) {
        Rows rows;
        fetch(page, slots, TILE_AT(tile + 1u), rows);
        sync();
        uint next[PLACES];
        find(r, TILE_AT(tile + 2u), next, slots);
        multiply(tile, buf, TOKENS == 1u || (token_ >= r.a && token_ < r.b));
        sync();
        if (HEAD_PARTS > 1u) add_parts(r, t0, tile, buf);
        tile++;
        if (tile >= last) break;
        buf ^= 1u;
        keep(rows, buf);
        [[unroll]] for (uint i = 0u; i < PLACES; i++) page[i] = next[i];
    }
}

void main() {
    tid = gl_LocalInvocationIndex;
    sub = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    key_part_ = sub % KEY_PARTS;
    head_part_ = sub / KEY_PARTS % HEAD_PARTS;
    token_ = sub / KEY_PARTS / HEAD_PARTS;
    row0_ = sub * OWN_ROWS + lane / ROW_PARTS;
    part_ = lane % ROW_PARTS;
    const uint t0 = gl_WorkGroupID.y * TOKENS;
    t_ = t0 + token_;
    begin_ = pc.first;
    end_ = t_ < pc.tokens ? logit_end(t_) : 0u;

    bool load = true;
    if (BY_PARTS) load_queries(t0);
    uint t = 0u;
    [[dont_unroll]] while (t < TOKENS && t0 + t < pc.tokens) {
        Run r;
        r.a = t;
        r.request = token_to_req_at(t0 + t);
        r.end = 0u;
        for (; t < TOKENS && t0 + t < pc.tokens && token_to_req_at(t0 + t) == r.request; t++) r.end = max(r.end, logit_end(t0 + t));
        r.b = t;
        if (r.end <= pc.first) continue;
        // Shares follow from the lengths there are, not from the width: a short context is spread
        // over all workgroups too.
        const uint tile0 = pc.first / TILE, tiles = (r.end + TILE - 1u) / TILE - tile0;
        const uint chunk = max((tiles + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x, pc.chunk);
        const uint from = min(gl_WorkGroupID.x * chunk, tiles), to = min(from + chunk, tiles);
        if (from >= to) continue;
        if (BY_PARTS) score(r, t0, tile0 + from, tile0 + to, false);
        else {
            score(r, t0, tile0 + from, tile0 + to, load);
            load = false;
        }
    }
}
