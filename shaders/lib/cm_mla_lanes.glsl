// Sparse MLA of one (token, head group, split) where it is known how matrices lie in lanes: the formula, m and its laziness are those
// of lib/cm_mla_core.glsl, and so is what a subgroup multiplies. What differs: scores stay with the lanes that made them.
//
// A row of a matrix lies in LANES neighbouring lanes, EACH = CM_K/LANES elements in each, the same way for all three operands: element
// i of lane l is in row l/LANES + i/EACH*LINES, LINES = SUBGROUP/LANES, at column cm_column(i%EACH). The host has looked
// (attention/decode_lanes.go). Of the KSPLIT sums over parts of the dims a lane keeps its share, some whole rows of its elements, and
// passes the rest on, in the order of lanes: a row of scores is then in LANES lanes, and only weights go through shared memory as a matrix.
//
// Two barriers a tile:
//
//   load row of t+2 | acc += P V of t and scores of t+1, in turns | weights of t+1, row of t+2 to shared memory
//
// Both halves are without a branch, so that a compiler can mix what is in them: the scores behind the last tile are made for nothing.
// Where rows lie is found out for RING tiles at once, by one invocation for each row.
//
// The including kernel declares what lib/cm_mla_core.glsl wants, LANES, and
//
//   uvec2 cm_find(uint t, uint j)                     reads what says where entry j lies
//   uvec4 cm_locate(uvec2 found, uint j, bool inside) address of the row, how far behind it its scales lie, all ones if it counts, else 0
//   float mla_sink_of(uint head)
//
// with M = N = K = TILE, EACH 4 or 1, THREADS/TILE 4, 8 or 16, and shares of whole rows and of fours of scores.
//
// Shared memory, bytes: 2*TILE*1040 + 16*THREADS + max(16, (KSPLIT-1)*HG*TILE*4) + HG*(2*TILE + 24) + 8*TILE + 4: 45188 for HG 64, TILE 16,
// KSPLIT 2, 256 invocations.
#ifndef LIB_CM_MLA_LANES_GLSL
#define LIB_CM_MLA_LANES_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#include "cm_element.glsl"
#include "mla_finish.glsl"

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_M;
const uint HEAD_PARTS = SUBGROUPS / KSPLIT;         // scores: subgroups side by side over the heads
const uint QK_TILES = HEAD_TILES / HEAD_PARTS;      // and head tiles of each
const uint QK_STEPS = 512u / CM_K / KSPLIT;
const uint OUT_TILES = 512u / CM_N / SUBGROUPS;     // column tiles of acc that a subgroup owns
const uint ROW_PARTS = THREADS / TILE;              // invocations that bring in a row together
const uint RING = THREADS / TILE;                   // tiles whose rows have been found

const uint EACH = CM_K / LANES;                     // elements of a row in a lane
const uint LINES = SUBGROUP / LANES;                // rows side by side in a subgroup
const uint ROWS = CM_M / LINES;                     // rows of which a lane has some
const uint SCORES = QK_TILES * ROWS * EACH;         // scores of a lane, as sums over its subgroup's dims
const uint SHARE = SCORES / KSPLIT;                 // and as whole sums
const uint SHARE_ROWS = SHARE / EACH;
const uint FOURS = SHARE / 4u;
const uint PASSED = KSPLIT * (KSPLIT - 1u) * HEAD_PARTS * FOURS * SUBGROUP;

// Rows are padded by 16 bytes so that the rows of a fragment fall into different banks, and the arrays are of 16-byte
// vectors so that a compiler sees aligned fragment rows.
const uint KV_PITCH = 65u;
const uint P_PITCH = TILE / 8u + 1u;
const uint OUT_PITCH = 130u;

shared uvec4 kv_s[2u * TILE * KV_PITCH];            // [2, TILE, 512] elements; also [.., 512] of Q, [CM_M, 512] f32 of acc
shared vec4 pass_s[PASSED > 0u ? PASSED : 1u];      // scores on their way to the subgroup that sums them, by lane
shared uvec4 p_s[HG * P_PITCH];                     // [HG, TILE] weights as elements
shared uvec4 where_s[THREADS];                      // [RING, TILE] where rows lie: what cm_locate gives
shared vec4 factor_s[HG / 4u];                      // [HG] what rows of acc are multiplied by
shared float sink_s[HG];                            // [HG] in base 2
shared vec2 bias_s[TILE];                           // [2, TILE] 0 for a row that counts, else CM_MASKED
shared uint stale_s;                                // some score of the tile outgrew m

#define CM_A coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>

CM_A q_f[QK_TILES][QK_STEPS];     // this subgroup's part of Q, for the whole kernel
CM_C acc_f[HEAD_TILES][OUT_TILES];

// A lane's share of the scores, row by row.
float own_[SHARE];        // what its own subgroup found
float m_[SHARE_ROWS];     // the same in all lanes of a row
float l_[SHARE_ROWS];
float l_add_[SHARE_ROWS]; // of the newest tile, not yet in l_

uint cm_tid, cm_sub, cm_lane; // invocation, subgroup, lane
uint cm_row, cm_part;         // its row of a tile and its part of that row
uint cm_heads, cm_dims;       // its subgroup's part of the heads and of the dims, for scores
uint cm_line, cm_place;       // its first row of a matrix and its place among the lanes of that

const float CM_MASKED = -2e30; // so far below MLA_FLOOR that the weight is 0 whatever m is

// cm_column: of element v of a row. With four, two neighbours in either half of the row.
uint cm_column(uint v) { return EACH == 4u ? v / 2u * (CM_N / 2u) + cm_place * 2u + v % 2u : cm_place; }

// cm_head: the head, within the group, of row r of the share.
uint cm_head(uint r) {
    const uint x = cm_dims * SHARE_ROWS + r;
    return (cm_heads * QK_TILES + x / ROWS) * CM_M + x % ROWS * LINES + cm_line;
}

// cm_begin: to be called first.
void cm_begin() {
    cm_tid = gl_LocalInvocationIndex;
    cm_sub = gl_SubgroupID;
    cm_lane = gl_SubgroupInvocationID;
    cm_row = cm_tid / ROW_PARTS;
    cm_part = cm_tid % ROW_PARTS;
    cm_heads = cm_sub / KSPLIT;
    cm_dims = cm_sub % KSPLIT;
    cm_line = cm_lane / LANES;
    cm_place = cm_lane % LANES;
}

// Queries go through kv_s into fragments, STAGE head tiles at a time.
const uint STAGE = 2u * TILE / CM_M < HEAD_TILES ? 2u * TILE / CM_M : HEAD_TILES;
const uint Q_EACH = (STAGE * CM_M * 64u + THREADS - 1u) / THREADS;

void cm_fetch_q(uint t, uint head0, uint first, out uvec4 w[Q_EACH]) {
    [[unroll]] for (uint i = 0u; i < Q_EACH; i++) {
        const uint at = i * THREADS + cm_tid, head = head0 + first * CM_M + at / 64u;
        w[i] = q.rows[(t * pc.heads + min(head, pc.heads - 1u)) * 64u + at % 64u]; // behind the last head it again: never written
    }
}

// cm_load_q: w and next are the first two lots. Ends with a barrier.
void cm_load_q(uint t, uint head0, uvec4 w[Q_EACH], uvec4 next[Q_EACH]) {
    [[unroll]] for (uint first = 0u; first < HEAD_TILES; first += STAGE) {
        if (first > 0u) barrier(); // fragments of the stage before have been loaded
        [[unroll]] for (uint i = 0u; i < Q_EACH; i++) {
            const uint at = i * THREADS + cm_tid;
            if (at < STAGE * CM_M * 64u) kv_s[at / 64u * KV_PITCH + at % 64u] = cm_from_bf16x8(first == 0u ? w[i] : next[i]);
        }
        if (first > 0u && first + STAGE < HEAD_TILES) cm_fetch_q(t, head0, first + STAGE, next);
        barrier();
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            const uint tile = cm_heads * QK_TILES + i;
            if (tile >= first && tile < first + STAGE) {
                [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
                    coopMatLoad(q_f[i][k], kv_s, (tile - first) * CM_M * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }
    barrier();
}

#include "cm_lanes_row.glsl"

// cm_share: a lane keeps its share of its subgroup's sums and leaves the others theirs.
void cm_share(CM_C s[QK_TILES]) {
    const uint n = ROWS * EACH; // of a fragment
    [[unroll]] for (uint y = 0u; y < SCORES; y += 4u) {
        const vec4 x = vec4(s[y / n][y % n], s[y / n][y % n + 1u], s[y / n][y % n + 2u], s[y / n][y % n + 3u]);
        const uint owner = y / SHARE, four = y % SHARE / 4u;
        if (owner == cm_dims) {
            [[unroll]] for (uint v = 0u; v < 4u; v++) own_[four * 4u + v] = x[v];
        } else {
            pass_s[(((cm_heads * KSPLIT + owner) * (KSPLIT - 1u) + cm_dims - (cm_dims > owner ? 1u : 0u)) * FOURS + four) * SUBGROUP + cm_lane] = x;
        }
    }
}

// cm_scores: the dot products of Q with the rows in buffer `buf`.
void cm_scores(uint buf) {
    CM_C s[QK_TILES];
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = CM_C(0.0);
    [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
        CM_B rows; // K^T: rows of kv_s are its columns
        coopMatLoad(rows, kv_s, buf * TILE * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = coopMatMulAdd(q_f[i][k], rows, s[i]);
    }
    cm_share(s);
}

// cm_products: acc += P V of the rows in buffer `buf`, and in between cm_scores of the other one: what a step of one waits for, the other hides.
void cm_products(uint buf) {
    const uint TURN = (HEAD_TILES * OUT_TILES + QK_STEPS - 1u) / QK_STEPS; // products with P for a step of the scores
    CM_C s[QK_TILES];
    CM_A p[HEAD_TILES];
    CM_B rows, columns;
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) coopMatLoad(p[i], p_s, i * CM_M * P_PITCH, P_PITCH, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = CM_C(0.0);
    [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
        coopMatLoad(rows, kv_s, (buf ^ 1u) * TILE * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = coopMatMulAdd(q_f[i][k], rows, s[i]);
        // Constant bounds: with ones that depend on k a driver gave up unrolling, and kept acc in memory.
        [[unroll]] for (uint y = 0u; y < TURN; y++) {
            const uint x = k * TURN + y, j = x / HEAD_TILES, i = x % HEAD_TILES;
            if (x < HEAD_TILES * OUT_TILES) {
                if (i == 0u) coopMatLoad(columns, kv_s, buf * TILE * KV_PITCH + (cm_sub * OUT_TILES + j) * CM_N / 8u, KV_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                acc_f[i][j] = coopMatMulAdd(p[i], columns, acc_f[i][j]);
            }
        }
    }
    cm_share(s);
}

// cm_score: element v of row r of the share, in base 2, far below the floor where masked.
float cm_score(uint buf, uint r, uint v) {
    const uint x = r * EACH + v, c = buf * TILE + cm_column(v);
    float s = own_[x];
    [[unroll]] for (uint k = 0u; k + 1u < KSPLIT; k++) {
        s += pass_s[(((cm_heads * KSPLIT + cm_dims) * (KSPLIT - 1u) + k) * FOURS + x / 4u) * SUBGROUP + cm_lane][x % 4u];
    }
    return fma(s, pc.scale_log2e, bias_s[c / 2u][c % 2u]);
}

// cm_weights: scores to weights, in p_s; true if one was stale. What is added to l stays in l_add_ until it is known that none was.
bool cm_weights(uint buf) {
    float above = 0.0;
    [[unroll]] for (uint r = 0u; r < SHARE_ROWS; r++) {
        float p[4];
        float sum = 0.0;
        [[unroll]] for (uint v = 0u; v < EACH; v++) {
            const float d = cm_score(buf, r, v) - m_[r]; // after a rescaling at most 0, however large both are
            above = max(above, d);
            p[v] = exp2(d);
            sum += p[v];
        }
        l_add_[r] = sum;
        const uint to = cm_head(r) * P_PITCH;
        if (EACH == 4u) {
            p_s[to][cm_place] = cm_weight2(p[0], p[1]);
            p_s[to + 1u][cm_place] = cm_weight2(p[2], p[3]);
        } else {
            const float next = subgroupShuffleXor(p[0], 1u);
            if (cm_place % 2u == 0u) p_s[to + cm_place / 8u][cm_place % 8u / 2u] = cm_weight2(p[0], next);
        }
    }
    return above > CM_STALE;
}

// cm_rescale: makes m the maximum over all tiles up to the one whose scores are there, and brings l and acc along. Rarely needed
// after the first tile. The scores must be complete (a barrier before); two barriers inside.
void cm_rescale(uint buf) {
    [[unroll]] for (uint r = 0u; r < SHARE_ROWS; r++) {
        float top = m_[r];
        [[unroll]] for (uint v = 0u; v < EACH; v++) top = max(top, cm_score(buf, r, v));
        [[unroll]] for (uint d = 1u; d < LANES; d *= 2u) top = max(top, subgroupShuffleXor(top, d));
        const float factor = exp2(m_[r] - top);
        m_[r] = top;
        l_[r] *= factor;
        const uint head = cm_head(r);
        if (cm_place == 0u) factor_s[head / 4u][head % 4u] = factor;
    }
    barrier();
    if (cm_tid == 0u) stale_s = 0u;
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C factor; // stride 0: every column the same
        coopMatLoad(factor, factor_s, i * CM_M / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] *= factor;
    }
    barrier();
}

uvec4 cm_where(uint tile) { return where_s[tile % RING * TILE + cm_row]; }

// cm_loop: positions [begin, end) of token t, begin < end.
void cm_loop(uint t, uint head0, uint begin, uint end, float sink2) {
    const uint tiles = (end - begin + TILE - 1u) / TILE;
    {
        // A device that returns loads in order would have the rows wait for all of Q: its second half is asked for after them.
        uvec4 w0[Q_EACH], w1[Q_EACH];
        const uint at = begin + cm_tid, j = min(at, end - 1u);
        const uvec2 found = cm_find(t, j);
        cm_fetch_q(t, head0, 0u, w0);
        where_s[cm_tid] = cm_locate(found, j, at < end);
        if (cm_tid < HG) sink_s[cm_tid] = sink2;
        barrier();
        const uvec4 where0 = cm_where(0u), where1 = cm_where(1u);
        CmRow row, row1;
        cm_fetch(where0, row);
        cm_fetch(where1, row1);
        cm_fetch_q(t, head0, STAGE, w1);
        cm_load_q(t, head0, w0, w1);
        uint mask = where0.w;
        [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
            cm_keep(row, mask, x * TILE + cm_row);
            cm_move(row, row1);
            mask = where1.w;
        }
    }
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] = CM_C(0.0);
    }
    barrier();
    cm_scores(0u);

    uint tile = 0u, buf = 0u;
    [[dont_unroll]] while (tile < tiles) { // again only when a score outgrew m
        barrier();
        cm_rescale(buf);
        if (cm_weights(buf)) atomicOr(stale_s, 1u);
        [[dont_unroll]] for (;;) {
            const uvec4 where = cm_where(tile + 2u);
            CmRow row;
            cm_fetch(where, row);
            // The ring is empty behind these rows: what says where the next ones lie is on its way during the products.
            const bool refill = (tile + 3u) % RING == 0u;
            const uint at = begin + (tile + 3u) * TILE + cm_tid, j = min(at, end - 1u);
            uvec2 found = uvec2(0u);
            if (refill) found = cm_find(t, j);
            barrier();
            if (stale_s != 0u) break;
            [[unroll]] for (uint r = 0u; r < SHARE_ROWS; r++) l_[r] += l_add_[r];
            cm_products(buf);
            tile++;
            if (tile >= tiles) break;
            if (refill) where_s[cm_tid] = cm_locate(found, j, at < end);
            barrier();
            const bool stale = cm_weights(buf ^ 1u);
            cm_keep(row, where.w, buf * TILE + cm_row);
            if (stale) atomicOr(stale_s, 1u);
            buf ^= 1u;
        }
    }
    barrier();
}

// cm_attend: positions [begin, end) of token t for the heads from head0 on; sink2 is head head0 + cm_tid's. Writes the finished rows and
// their lse when there is one split, else the partial ones.
void cm_attend(uint t, uint head0, uint split, uint begin, uint end, float sink2) {
    [[unroll]] for (uint r = 0u; r < SHARE_ROWS; r++) {
        m_[r] = MLA_FLOOR;
        l_[r] = 0.0;
    }
    if (cm_tid == 0u) stale_s = 0u;
    if (begin < end) {
        cm_loop(t, head0, begin, end, sink2);
    } else {
        if (cm_tid < HG) sink_s[cm_tid] = sink2;
        barrier();
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] = CM_C(0.0);
        }
    }
    [[unroll]] for (uint r = 0u; r < SHARE_ROWS; r++) {
        float l = l_[r];
        [[unroll]] for (uint d = 1u; d < LANES; d *= 2u) l += subgroupShuffleXor(l, d);
        const uint h = cm_head(r), head = head0 + h;
        if (cm_place == 0u && head < pc.heads) {
            if (pc.splits > 1u) {
                part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m_[r], l, m_[r], 0.0);
            } else {
                factor_s[h / 4u][h % 4u] = mla_factor(m_[r], l, sink_s[h]);
                if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m_[r], l);
            }
        }
    }
    if (pc.splits > 1u) {
        if (begin >= end) return; // its accumulator is never read
        if (head0 + HG <= pc.heads) {
            [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
                [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
                    coopMatStore(acc_f[i][j], part_out.rows, ((t * pc.splits + split) * pc.heads + head0 + i * CM_M) * 128u + (cm_sub * OUT_TILES + j) * CM_N / 4u,
                                 128u, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            return;
        }
    }
    // One head tile of acc after the other through shared memory, where rows can be told apart.
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            coopMatStore(acc_f[i][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        [[dont_unroll]] for (uint at = cm_tid; at < CM_M * 64u; at += THREADS) {
            const uint r = at / 64u, c = at % 64u, h = i * CM_M + r;
            if (head0 + h >= pc.heads) break;
            const vec4 a = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u]), b = uintBitsToFloat(kv_s[r * OUT_PITCH + c * 2u + 1u]);
            if (pc.splits == 1u) {
                const float f = factor_s[h / 4u][h % 4u];
                const vec4 x = a * f, y = b * f;
                dst.rows[(t * pc.heads + head0 + h) * 64u + c] = uvec4(cm_out2(x.xy), cm_out2(x.zw), cm_out2(y.xy), cm_out2(y.zw));
            } else {
                const uint out_row = ((t * pc.splits + split) * pc.heads + head0 + h) * 128u;
                part_out.rows[out_row + c * 2u] = a;
                part_out.rows[out_row + c * 2u + 1u] = b;
            }
        }
    }
}

#endif
