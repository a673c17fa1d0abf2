// Sparse MLA of one (token, heads, split) with cooperative matrices: sizes, shared memory, the two
// products and the softmax between them. Nothing depends on where a fragment's elements lie in a
// subgroup.
//
// Per head, over the valid rows k_j of a split, in base 2:
//
//   s_j = scale_log2e * dot(q, k_j),  l = sum exp2(s_j - m),  acc = sum exp2(s_j - m) k_j
//
// m is a reference near the maximum, not the maximum itself. As long as no s_j exceeds m by more
// than CM_STALE the weights fit their type, and acc, spread over the registers of all subgroups,
// need not be touched.
//
// A tile is TILE rows in shared memory. All subgroups make its scores S = Q K^T, each for some head
// tiles and one of KSPLIT parts of the 512 dims, and leave them in shared memory as f32.
// Invocations turn four neighbouring scores at a time into weights P. Then each subgroup adds P V
// to its own 512/SUBGROUPS columns of acc, for all heads.
//
// One invocation for each row works out where it lies, and keeps that in a ring in shared memory
// for those that load it.
//
// The kernel declares before the include:
//
//   HG, TILE, THREADS, SUBGROUP, CM_M, CM_N, CM_K, KSPLIT   by attention/matrix.go; its test has
//                the rules
//   BUFFERS      1 or 2: tiles of rows in shared memory
//   ROWS         how rows of kv_s and p_s lie, of lib/cm_rows.glsl
//   KEEP_TOP     whether the true maximum of the scores is wanted
//   q, dst (uvec4 rows[]), part_out, part_ml (vec4 rows[])  storage buffers
//   pc.heads, pc.splits, pc.scale_log2e
//
// and after it, before lib/cm_mla_tiles.glsl, how rows and queries come in: see there.
//
// Shared memory, bytes:
//   BUFFERS*TILE*1040 + KSPLIT*HG*(4*TILE + 16) + HG*(2*TILE + 20) + 80*TILE + 4
//
// NVIDIA's compiler keeps fragments in memory, which is three times slower, where functions call
// one another nine deep: docs/design/decode.md. What is written out several times should be short.
#ifndef LIB_CM_MLA_GLSL
#define LIB_CM_MLA_GLSL
#include "cm_element.glsl"
#include "cm_rows.glsl"
#include "mla_finish.glsl"

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_M;
const uint HEAD_PARTS = SUBGROUPS / KSPLIT < HEAD_TILES ? SUBGROUPS / KSPLIT : HEAD_TILES; // scores: subgroups side by side over the heads
const uint COLUMN_ROOM = SUBGROUPS / KSPLIT / HEAD_PARTS;  // and over the rows of a tile; where there are more subgroups, the rest wait
const uint COLUMN_PARTS = COLUMN_ROOM < TILE / CM_N ? COLUMN_ROOM : TILE / CM_N;
const uint QK_COLUMNS = TILE / CM_N / COLUMN_PARTS;        // and row tiles of each
const uint QK_TILES = HEAD_TILES / HEAD_PARTS;      // and head tiles of each
const uint QK_STEPS = 512u / CM_K / KSPLIT;
const uint OUT_TILES = 512u / CM_N / SUBGROUPS;     // column tiles of acc that a subgroup owns
const uint QUADS = TILE / 4u;                       // a row of scores in fours
const uint UNITS = HG * QUADS;                      // fours in a tile of scores
const uint UNITS_EACH = (UNITS + THREADS - 1u) / THREADS;
const uint ROW_PARTS = THREADS / TILE;              // invocations that bring in a row together
const uint KV_ROWS = BUFFERS * TILE;
const uint CHAINS = BUFFERS == 1u ? 2u : 1u;        // sums of score products side by side: with few heads one would wait for itself
const uint Q_STAGE = KV_ROWS / CM_M < HEAD_TILES ? KV_ROWS / CM_M : HEAD_TILES; // head tiles of Q that come in at a time
const uint Q_EACH = (Q_STAGE * CM_M * 64u + THREADS - 1u) / THREADS;            // units of 8 numbers of each invocation
const uint RING = 4u;                               // tiles whose rows have known places

// Rows are padded by 16 bytes so that the rows of a fragment fall into different banks. The arrays
// are of 16-byte vectors so that a compiler sees aligned fragment rows.
const uint KV_PITCH = 65u;
const uint P_PITCH = TILE / 8u + 1u;
const uint S_PITCH = ROWS != 0u && TILE == 16u ? 4u : TILE / 4u + 1u; // two rows of 16 are all banks
const uint OUT_PARTS = CM_M * 2u <= KV_ROWS ? 1u : 2u;  // of the columns of acc, one after the other where kv_s has no room
const uint OUT_PITCH = OUT_PARTS == 1u ? 130u : 65u;
#define CM_OUT_PLACE(h, c) (h % CM_M * OUT_PITCH + CM_POSITION(c) % (64u / OUT_PARTS) * 2u)

// With ROWS each of four neighbouring matrices of acc has every fourth of their columns.
#define CM_OUT_READ(h, c) \
    const uint first_ = h % CM_M * OUT_PITCH, word_ = CM_POSITION(c) % (64u / OUT_PARTS), turn_ = word_ % (CM_N / 2u); \
    vec4 a, b; \
    if (ROWS == 0u) { \
        a = uintBitsToFloat(kv_s[first_ + word_ * 2u]); \
        b = uintBitsToFloat(kv_s[first_ + word_ * 2u + 1u]); \
    } else { \
        [[unroll]] for (uint i_ = 0u; i_ < 4u; i_++) { \
            const vec4 x_ = uintBitsToFloat(kv_s[first_ + (word_ - turn_) * 2u + i_ * CM_N / 4u + turn_ / 2u]); \
            a[i_] = turn_ % 2u == 0u ? x_.x : x_.z; \
            b[i_] = turn_ % 2u == 0u ? x_.y : x_.w; \
        } \
    }

shared uvec4 kv_s[KV_ROWS * KV_PITCH];          // [KV_ROWS, 512] elements, a tile or two; also [.., 512] of Q, a part of acc
shared vec4 score_s[KSPLIT * HG * S_PITCH];     // [KSPLIT, HG, TILE] partial dot products; at the end [HG, QUADS] (l, max)
shared uvec4 p_s[HG * P_PITCH];                 // [HG, TILE] weights as elements
shared vec4 factor_s[HG / 4u];                  // [HG] what rows of acc are multiplied by
shared uint stale_s;                            // some score of the tile outgrew m
shared vec4 bias_s[RING * QUADS];  // [RING, TILE] 0, or CM_MASKED where a row does not count
shared uvec4 where_s[RING * TILE]; // [RING, TILE] of cm_locate

CM_A q_f[QK_TILES][QK_STEPS];     // this subgroup's part of Q, for the whole kernel
CM_C acc_f[HEAD_TILES][OUT_TILES];

// One invocation's fours of scores: unit u*THREADS + cm_tid, head = unit / QUADS.
float m_[UNITS_EACH];
float l_[UNITS_EACH];
float l_add_[UNITS_EACH]; // of the newest tile, not yet in l_
float top_[UNITS_EACH];   // true maximum

uint cm_tid, cm_sub;        // invocation and subgroup
uint cm_row, cm_part;       // its row of a tile and its part of that row
uint cm_heads, cm_columns, cm_dims; // its subgroup's part of the heads, the tile and the dims, for scores

#ifndef CM_SCORE_SCALE
#define CM_SCORE_SCALE pc.scale_log2e
#define CM_FINAL_L(l) (l)
#define CM_FINAL_M(m) (m)
#endif

float cm_max4(vec4 s) { return max(max(s.x, s.y), max(s.z, s.w)); }

uint cm_lane() { return ROWS == 0u ? 0u : gl_SubgroupInvocationID; }

// CM_VECTORS: where matrix n of `size` columns begins, in vectors of `each`. Mesa's compilers take
// n's constant part out of addresses if the division comes first, else each step of a loop has
// registers of its own. A kernel that NVIDIA's compiler gets has the form that was timed with it.
#ifdef CM_DIVIDE_FIRST
#define CM_BEGIN(n, size, each) ((n) * (size / each))
#else
#define CM_BEGIN(n, size, each) ((n) * size / each)
#endif
#define CM_VECTORS(n, size, each) (ROWS == 0u ? CM_BEGIN(n, size, each) : (n) * (size / each))

// cm_scores: the dot products of Q with the rows in buffer `buf`, to score_s.
void cm_scores(uint buf) {
    if (COLUMN_PARTS < COLUMN_ROOM && cm_columns >= COLUMN_PARTS) return;
    [[unroll]] for (uint column = 0u; column < QK_COLUMNS; column++) {
        const uint j = cm_columns * QK_COLUMNS + column;
        CM_C s[CHAINS][QK_TILES];
        [[unroll]] for (uint i = 0u; i < CHAINS * QK_TILES; i++) s[i / QK_TILES][i % QK_TILES] = CM_C(0.0);
        [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
            CM_B rows; // K^T: rows of kv_s are its columns
            CM_LOAD_ROWS(rows, kv_s, buf * TILE + j * CM_N, CM_VECTORS(cm_dims * QK_STEPS + k, CM_K, 8u), KV_PITCH, cm_lane(),
                         gl_CooperativeMatrixLayoutColumnMajor)
            [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[k % CHAINS][i] = coopMatMulAdd(q_f[i][k], rows, s[k % CHAINS][i]);
        }
        if (CHAINS > 1u) {
            [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[0][i] += s[CHAINS - 1u][i];
        }
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            coopMatStore(s[0][i], score_s, (cm_dims * HG + (cm_heads * QK_TILES + i) * CM_M) * S_PITCH + CM_VECTORS(j, CM_N, 4u), S_PITCH,
                         gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

// CM_VALUES: row k of V, of a column of each of four matrices, as their element e: one load.
#define CM_VALUES(v, e, at, half_) { \
    CM_PUT(v[0][e], v[1][e], kv_s[at][(half_) * 2u]) \
    CM_PUT(v[2][e], v[3][e], kv_s[at][(half_) * 2u + 1u]) \
}

// cm_load_values: the rows of V from row0 on, of the columns of four matrices from j on, of which
// each gets every fourth.
void cm_load_values(uint row0, uint j, out CM_B v[4]) {
    const uint lane = cm_lane(), quad = (cm_sub * OUT_TILES + j) * CM_N / 8u, count = v[0].length();
    if (ROWS == 1u) {
        const uint part = count == CM_K ? 0u : lane / 16u, half_ = lane % 2u ^ part, other = half_ ^ 1u;
        const uint at = (row0 + part * count) * KV_PITCH + quad + lane % 16u / 2u;
        [[unroll]] for (uint e = 0u; e < count; e++) CM_VALUES(v, e, at + e * KV_PITCH, (e < 8u ? half_ : other))
    } else {
        const uint at = (row0 + lane) * KV_PITCH + quad;
        [[unroll]] for (uint e = 0u; e < count; e++) CM_VALUES(v, e, at + e / 2u, (e % 2u ^ cm_half(row0 + lane)))
    }
}

// cm_accumulate: acc += P V for the rows in buffer `buf`.
void cm_accumulate(uint buf) {
    [[unroll]] for (uint k = 0u; k < TILE / CM_K; k++) {
        if (ROWS != 0u) {
            [[unroll]] for (uint j = 0u; j < OUT_TILES; j += 4u) {
                CM_B v[4];
                cm_load_values(buf * TILE + k * CM_K, j, v);
                [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) { // with all of P loaded before, RADV spills
                    CM_A p;
                    CM_LOAD_ROWS(p, p_s, i * CM_M, k * CM_K / 8u, P_PITCH, cm_lane(), gl_CooperativeMatrixLayoutRowMajor)
                    [[unroll]] for (uint x = 0u; x < 4u; x++) acc_f[i][j + x] = coopMatMulAdd(p, v[x], acc_f[i][j + x]);
                }
            }
            continue;
        }
        CM_A p[HEAD_TILES];
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            coopMatLoad(p[i], p_s, i * CM_M * P_PITCH + CM_BEGIN(k, CM_K, 8u), P_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            CM_B rows;
            coopMatLoad(rows, kv_s, (buf * TILE + k * CM_K) * KV_PITCH + CM_BEGIN(cm_sub * OUT_TILES + j, CM_N, 8u), KV_PITCH,
                        gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) acc_f[i][j] = coopMatMulAdd(p[i], rows, acc_f[i][j]);
        }
    }
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) l_[u] += l_add_[u];
}

// A masked score lies so far below any m that its weight is 0.
const float CM_MASKED = 2.0 * MLA_FLOOR;

// cm_score4: four dot products of a head.
vec4 cm_score4(uint head, uint quad) {
    vec4 s = score_s[head * S_PITCH + quad];
    [[unroll]] for (uint k = 1u; k < KSPLIT; k++) s += score_s[(k * HG + head) * S_PITCH + quad];
    return s;
}

// cm_weights: scores of a tile to weights, in p_s. What is added to l stays in l_add_ until it is
// known that no score was stale.
void cm_weights(uint tile) {
    bool stale = false;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
        vec4 d;
        if (KEEP_TOP) {
            const vec4 s = cm_score4(head, quad) * CM_SCORE_SCALE + bias_s[tile % RING * QUADS + quad];
            top_[u] = max(top_[u], cm_max4(s));
            d = s - m_[u];
        } else d = cm_score4(head, quad) * CM_SCORE_SCALE + (bias_s[tile % RING * QUADS + quad] - m_[u]);
        stale = stale || cm_max4(d) > CM_STALE;
        const vec4 p = exp2(d);
        l_add_[u] = (p.x + p.y) + (p.z + p.w);
        const uvec2 w = cm_pack_weights(p);
        const uint pair = (quad % 2u ^ cm_half(head)) * 2u;
        p_s[head * P_PITCH + quad / 2u][pair] = w.x;
        p_s[head * P_PITCH + quad / 2u][pair + 1u] = w.y;
    }
    if (stale) atomicOr(stale_s, 1u);
}

// cm_rescale: makes m the maximum over all tiles up to this one, whose scores lie in score_s, and
// brings l and acc along. Rarely needed after the first tile. A barrier comes before; two are
// inside.
void cm_rescale(uint tile) {
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) { // maxima of fours, in the place of weights that are done with
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
        p_s[head * P_PITCH + quad / 4u][quad % 4u] =
            floatBitsToUint(cm_max4(cm_score4(head, quad) * CM_SCORE_SCALE + bias_s[tile % RING * QUADS + quad]));
    }
    barrier();
    if (cm_tid == 0u) stale_s = 0u;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS;
        float top = m_[u];
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) top = max(top, uintBitsToFloat(p_s[head * P_PITCH + quad / 4u][quad % 4u]));
        const float factor = exp2(m_[u] - top);
        m_[u] = top;
        l_[u] *= factor;
        if (unit % QUADS == 0u) factor_s[head / 4u][head % 4u] = factor;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C factor; // stride 0: every column the same
        coopMatLoad(factor, factor_s, i * CM_M / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] *= factor;
    }
}

#endif
