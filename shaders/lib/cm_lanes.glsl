// What attn_decode_lanes and attn_prefill_lanes share: how the workgroup of one (token, heads,
// split) divides scores, weights and products among its subgroups, where it is known which lanes
// hold a row of an accumulator. Per head, in base 2:
//
//   s_j = scale_log2e * dot(q, k_j),  l = sum exp2(s_j - m),  acc = sum exp2(s_j - m) k_j
//
// m is the maximum of the first tile. If some s_j exceeds it by more than CM_STALE, the weights may
// not fit their type; then everything is done once more with the maximum of all tiles, which is
// known by then. The loop itself never looks back, and only adds to acc.
//
// Shared memory holds two tiles of TILE rows. The including file brings rows in and has the loop.
//
// Scores: a subgroup multiplies QK_TILES head tiles by one of KSPLIT parts of the 512 dims. KSPLIT
// subgroups exchange their partial sums as they lie in lanes, in fours of neighbouring components.
// Each gets some fours, whole, and makes weights of them. Q is loaded with head tiles, and rows in
// them, exchanged, so that the fours that a subgroup keeps for itself are its first.
//
// Lanes: PARTS neighbouring lanes share a row of an accumulator. Component i of a lane is in row
// lane/PARTS + i/EACH*APART, and columns go round the lanes in pairs (one by one if EACH is 1).
// attention/lanes.go checks that this is so.
//
// Each subgroup brings in the same SUB_ROWS rows of each tile. Its lanes hold the places of those
// of LOOKUP tiles, one each. The score of a row that does not count is masked.
//
// The order of statements is what a driver's scheduler has been seen to need: loads a barrier
// before their use, and addresses as a sum of constants, one number that a subgroup shares (which
// is why the subgroup's number is broadcast) and one of the lane.
//
// Shared memory, bytes: 2*TILE*1040 + 16*THREADS*(KSPLIT - 1)*OWN + CM_M*(2*TILE*HEAD_TILES + 16)
// + 4*HG + 8*TILE + 4.
#ifndef LIB_CM_LANES_GLSL
#define LIB_CM_LANES_GLSL
#include "cm_element.glsl"
#include "mla_finish.glsl"

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_M;
const uint HEAD_PARTS = SUBGROUPS / KSPLIT;      // scores: subgroups side by side over the heads
const uint QK_TILES = HEAD_TILES / HEAD_PARTS;   // and head tiles of each
const uint QK_STEPS = 512u / CM_K / KSPLIT;
const uint OUT_TILES = 512u / CM_N / SUBGROUPS;  // column tiles of acc that a subgroup owns
const uint OUT_WORDS = 64u / SUBGROUPS;          // the same in words of 8 numbers
const uint COMPS = CM_M * CM_N / SUBGROUP;       // components of an accumulator
const uint EACH = CM_N / PARTS;                  // of them, of one row
const uint PAIR = EACH < 2u ? 1u : 2u;
const uint APART = SUBGROUP / PARTS;             // rows between those of a lane
const uint UNITS = QK_TILES * COMPS / 4u;        // fours of scores that a lane multiplies
const uint OWN = UNITS / KSPLIT;                 // and that it turns into weights
const uint TILE_UNITS = COMPS / 4u;              // fours in a matrix, each of UNIT_ROWS neighbouring rows
const uint UNIT_ROWS = CM_M / TILE_UNITS;
const uint ROWS4 = EACH < 4u ? 4u / EACH : 1u;   // heads in a four
const uint LANE_HEADS = OWN * ROWS4;
const uint ROW_WORDS = 64u;                      // a row in words of 8 numbers
const uint ROW_PARTS = THREADS / TILE;           // lanes that bring in a row together
const uint SUB_ROWS = SUBGROUP / ROW_PARTS;      // rows of a tile that a subgroup brings in
const uint LOOKUP = SUBGROUP / SUB_ROWS;         // tiles whose places it holds

// Rows are padded by 16 bytes so that the rows of a fragment fall into different banks.
const uint KV_PITCH = 65u;
const uint P_PITCH = HEAD_TILES * TILE / 8u + 1u;
const uint OUT_PITCH = 130u;
const uint KV_TILE = TILE * KV_PITCH;

shared uvec4 kv_s[2u * KV_TILE];                                // [2, TILE, 512] elements; also of Q, and [CM_M, 512] f32 of acc
shared vec2 score_s[2u * THREADS * (KSPLIT - 1u) * OWN];        // [SUBGROUPS, KSPLIT - 1, OWN, 2, SUBGROUP] halves of fours on their way
shared uvec4 p_s[CM_M * P_PITCH];                               // [CM_M, HEAD_TILES, TILE] weights as elements
shared vec4 factor_s[HG / 4u];                                  // [HG] what rows of acc are multiplied by at the end
shared vec2 bias_s[TILE];                                       // [2, TILE] 0, or CM_MASKED where a row does not count
shared uint stale_s;                                            // some score outgrew m

const float CM_MASKED = 2.0 * MLA_FLOOR;

CM_A q_f[QK_TILES][QK_STEPS];     // this subgroup's part of Q, for the whole kernel
CM_C acc_f[HEAD_TILES][OUT_TILES];

float m_[LANE_HEADS], l_[LANE_HEADS], top_[LANE_HEADS]; // l and the true maximum of the lane's own columns
vec4 own_[OWN];   // partial scores that stay
vec4 s_[OWN];     // scores, then weights
uvec2 p_[OWN];    // weights as elements

uint cm_t, cm_begin, cm_end;      // token, and its range of entries
uint cm_sub, cm_lane;
uint cm_row, cm_part;             // the lane's row of a tile and its part of that row
uint cm_quarter;                  // its part of a row of an accumulator
uint cm_heads, cm_dims;           // its subgroup's part of the heads and of the dims, for scores

// cm_place: to be called first; lane is gl_SubgroupInvocationID.
void cm_place(uint t, uint lane) {
    cm_t = t;
    cm_sub = subgroupBroadcastFirst(gl_SubgroupID);
    cm_lane = lane;
    cm_row = cm_sub * SUB_ROWS + cm_lane / ROW_PARTS;
    cm_part = cm_lane % ROW_PARTS;
    cm_quarter = cm_lane % PARTS;
    cm_heads = cm_sub / KSPLIT;
    cm_dims = cm_sub % KSPLIT;
}

void cm_subgroup_sync() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

float cm_row_max(float x) {
    [[unroll]] for (uint k = 1u; k < PARTS; k *= 2u) x = max(x, subgroupShuffleXor(x, k));
    return x;
}

float cm_row_sum(float x) {
    [[unroll]] for (uint k = 1u; k < PARTS; k *= 2u) x += subgroupShuffleXor(x, k);
    return x;
}

// cm_own_head, cm_own_column: head of the group and row of the tile to which component c of own
// four y belongs.
uint cm_own_head(uint y, uint c) {
    const uint x = (cm_dims * OWN + y) * 4u + c;
    return (cm_heads * QK_TILES + x / COMPS) * CM_M + x % COMPS / EACH * APART + cm_lane / PARTS;
}

uint cm_own_column(uint c) {
    const uint e = c % EACH;
    return e / PAIR * (PAIR * PARTS) + PAIR * cm_quarter + e % PAIR;
}

// Which of a lane's heads component c of own four y is of.
uint cm_lane_head(uint y, uint c) { return y * ROWS4 + c * ROWS4 / 4u; }

#ifndef CM_SCORE_SCALE
#define CM_SCORE_SCALE pc.scale_log2e
#endif

#define CM_LOAD_VALUE(v, at, j) \
    coopMatLoad(v, kv_s, (at) + cm_sub * (OUT_TILES * CM_N / 8u) + (j) * (CM_N / 8u), KV_PITCH, gl_CooperativeMatrixLayoutRowMajor)

// cm_scores: partial dot products of Q with the tile at `at`, exchanged. The fragments of V of the
// tile at `before` are loaded among the last steps.
void cm_scores(uint at, uint before, out CM_B v[OUT_TILES]) {
    CM_C s[QK_TILES];
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = CM_C(0.0);
    [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
        CM_B rows; // K^T: rows of kv_s are its columns
        coopMatLoad(rows, kv_s, at + cm_dims * (QK_STEPS * CM_K / 8u) + k * (CM_K / 8u), KV_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = coopMatMulAdd(q_f[i][k], rows, s[i]);
        if (k + OUT_TILES >= QK_STEPS) CM_LOAD_VALUE(v[k + OUT_TILES - QK_STEPS], before, k + OUT_TILES - QK_STEPS);
    }
    [[unroll]] for (uint y = 0u; y < UNITS; y++) {
        const uint i = y / TILE_UNITS, c = y % TILE_UNITS * 4u, of = y / OWN;
        if (of == 0u) own_[y % OWN] = vec4(s[i][c], s[i][c + 1u], s[i][c + 2u], s[i][c + 3u]);
        else {
            const uint to = (cm_sub ^ of) * ((KSPLIT - 1u) * OWN * 2u * SUBGROUP) + ((of - 1u) * OWN + y % OWN) * (2u * SUBGROUP) + cm_lane;
            score_s[to] = vec2(s[i][c], s[i][c + 1u]);
            score_s[to + SUBGROUP] = vec2(s[i][c + 2u], s[i][c + 3u]);
        }
    }
}

// cm_sum_scores: the scores of own fours in base 2, masked.
void cm_sum_scores(uint buf) {
    const uint from = cm_sub * ((KSPLIT - 1u) * OWN * 2u * SUBGROUP) + cm_lane;
    [[unroll]] for (uint y = 0u; y < OWN; y++) {
        vec4 s = own_[y], bias;
        [[unroll]] for (uint k = 0u; k < KSPLIT - 1u; k++) {
            s.xy += score_s[from + (k * OWN + y) * (2u * SUBGROUP)];
            s.zw += score_s[from + (k * OWN + y) * (2u * SUBGROUP) + SUBGROUP];
        }
        [[unroll]] for (uint c = 0u; c < 4u; c += PAIR) {
            if (PAIR == 2u) {
                const vec2 b = bias_s[buf * (TILE / 2u) + cm_quarter + c % EACH / 2u * PARTS];
                bias[c] = b.x;
                bias[c + 1u] = b.y;
            } else bias[c] = bias_s[buf * (TILE / 2u) + cm_own_column(c) / 2u][cm_own_column(c) % 2u];
        }
        s_[y] = s * CM_SCORE_SCALE + bias;
    }
}

void cm_high(out float high[LANE_HEADS]) {
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) high[r] = CM_MASKED;
    [[unroll]] for (uint c = 0u; c < OWN * 4u; c++) {
        const uint r = cm_lane_head(c / 4u, c % 4u);
        high[r] = max(high[r], s_[c / 4u][c % 4u]);
    }
}

// cm_pack_half: weights as elements. bf16 rounds to nearest, ties up: weights are not negative, and
// a NaN is already in l.
uvec2 cm_pack_half(vec4 p) {
#ifdef CM_BF16
    const uvec4 u = floatBitsToUint(p) + 0x8000u;
    return uvec2((u.x >> 16) | (u.y & 0xFFFF0000u), (u.z >> 16) | (u.w & 0xFFFF0000u));
#else
    return cm_pack_weights(p);
#endif
}

void cm_weights() {
    float high[LANE_HEADS];
    cm_high(high);
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) top_[r] = max(top_[r], high[r]);
    [[unroll]] for (uint y = 0u; y < OWN; y++) {
        [[unroll]] for (uint c = 0u; c < 4u; c++) {
            s_[y][c] = exp2(s_[y][c] - m_[cm_lane_head(y, c)]);
            l_[cm_lane_head(y, c)] += s_[y][c];
        }
        p_[y] = cm_pack_half(s_[y]);
    }
}

void cm_put_word(uint head, uint column, uint w) {
    const uint at = (head % CM_M * P_PITCH * 8u + head / CM_M * TILE + column) / 2u;
    p_s[at / 4u][at % 4u] = w;
}

// cm_put_weights: to p_s, where they stay until the next tile's.
void cm_put_weights() {
    [[unroll]] for (uint y = 0u; y < OWN; y++) {
        [[unroll]] for (uint c = 0u; c < 4u; c += PAIR) {
            if (EACH >= 4u && PARTS % 4u == 0u) { // the second word lies whole vectors behind the first
                const uint head = cm_own_head(y, 0u), at = (head % CM_M * P_PITCH * 8u + head / CM_M * TILE + cm_own_column(0u)) / 2u;
                p_s[at / 4u + c / 2u * (PARTS / 4u)][at % 4u] = p_[y][c / 2u];
            } else if (PAIR == 2u) cm_put_word(cm_own_head(y, c), cm_own_column(c), p_[y][c / 2u]);
            else { // a word is of two lanes
                const uint v = p_[y][c / 2u] >> (c % 2u * 16u) & 0xFFFFu, w = subgroupShuffleXor(v, 1u);
                if (cm_lane % 2u == 0u) cm_put_word(cm_own_head(y, c), cm_own_column(c), v | w << 16);
            }
        }
    }
}

// The products with V come in four parts, between which a subgroup does other things. The numbers
// of the parts are no literals: glslang checks those against the arrays' sizes with the constants'
// defaults.
const uint QUARTER = HEAD_TILES / 4u;
const uint PART0 = HEAD_TILES / (HEAD_TILES + 1u), PART1 = PART0 + 1u, PART2 = PART0 + 2u, PART3 = PART0 + 3u;
#define CM_LOAD_WEIGHTS(p, part) \
    [[unroll]] for (uint x = 0u; x < QUARTER; x++) { \
        coopMatLoad(p[x], p_s, (part * QUARTER + x) * (TILE / 8u), P_PITCH, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define CM_ACCUMULATE(p, v, part) \
    [[unroll]] for (uint x = 0u; x < QUARTER; x++) { \
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) \
            acc_f[part * QUARTER + x][j] = coopMatMulAdd(p[x], v[j], acc_f[part * QUARTER + x][j]); \
    }

// Parts that the loops of decode and prefill share. They are macros because drivers schedule
// functions in another way.

// CM_NO_OUTPUT: acc before the first tile.
#define CM_NO_OUTPUT \
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) { \
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] = CM_C(0.0); \
    }

// CM_NO_ROWS: l, m and the true maximum of an empty list.
#define CM_NO_ROWS \
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) { \
        m_[r] = MLA_FLOOR; \
        l_[r] = 0.0; \
        top_[r] = MLA_FLOOR; \
    }

// CM_FIRST_TILES: the first two tiles to shared memory, the scores of the first, m from these
// unless it is given, and l and the true maximum before it.
#define CM_FIRST_TILES(given) \
    barrier(); \
    cm_keep_first(row0, valid0, 0u); \
    cm_keep_first(row1, valid1, 1u); \
    CM_NO_OUTPUT \
    barrier(); \
    cm_scores(0u, 0u, v); \
    barrier(); \
    cm_sum_scores(0u); \
    if (!(given)) { \
        float high[LANE_HEADS]; \
        cm_high(high); \
        [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) m_[r] = max(MLA_FLOOR, cm_row_max(high[r])); \
    } \
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) { \
        l_[r] = 0.0; \
        top_[r] = m_[r]; \
    }

// CM_LAST_TILE: P V of the last tile, and the maximum of whole rows.
#define CM_LAST_TILE(tile) \
    [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) CM_LOAD_VALUE(v[j], ((tile) & 1u) * KV_TILE, j); \
    barrier(); \
    CM_A p[QUARTER]; \
    CM_LOAD_WEIGHTS(p, PART0) \
    CM_ACCUMULATE(p, v, PART0) \
    CM_LOAD_WEIGHTS(p, PART1) \
    CM_ACCUMULATE(p, v, PART1) \
    CM_LOAD_WEIGHTS(p, PART2) \
    CM_ACCUMULATE(p, v, PART2) \
    CM_LOAD_WEIGHTS(p, PART3) \
    CM_ACCUMULATE(p, v, PART3) \
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) top_[r] = cm_row_max(top_[r]);

// CM_BREAK_UNLESS_STALE: leaves the loop over passes unless a score outgrew m; then m becomes the
// true maximum.
#define CM_BREAK_UNLESS_STALE \
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) { \
        if (top_[r] - m_[r] > CM_STALE) stale_s = 1u; \
    } \
    barrier(); \
    if (stale_s == 0u) break; \
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) m_[r] = top_[r];

void cm_keep_bias(bool valid, uint buf) {
    if (cm_part == 0u) bias_s[buf * (TILE / 2u) + cm_row / 2u][cm_row % 2u] = valid ? 0.0 : CM_MASKED;
}

#include "cm_write.glsl"

const uint Q_WORDS = ROW_WORDS / KSPLIT;              // of a head, for a subgroup
const uint Q_EACH = CM_M * Q_WORDS / SUBGROUP;        // words of a lane and head tile
const uint Q_ALL = QK_TILES * Q_EACH;
const uint Q_PARTS = HEAD_PARTS < 2u ? HEAD_PARTS : 2u; // head parts that find room in kv_s at a time

// CM_Q_HEAD: the head, from head0 on, of a lane's word `at` of head tile i; turn is cm_dims * OWN.
#define CM_Q_HEAD(head0, turn, i, at) \
    ((head0) + (cm_heads * QK_TILES + ((i) ^ (turn) / TILE_UNITS)) * CM_M + ((at) / Q_WORDS ^ (turn) % TILE_UNITS * UNIT_ROWS))

void cm_fetch_q(uint head0, out uvec4 w[Q_ALL]) {
    const uint turn = cm_dims * OWN;
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
        [[unroll]] for (uint x = 0u; x < Q_EACH; x++) {
            const uint at = x * SUBGROUP + cm_lane;
            const uint head = CM_Q_HEAD(head0, turn, i, at);
            const uvec4 v = q.rows[(cm_t * pc.heads + min(head, pc.heads - 1u)) * ROW_WORDS + CM_WORD_AT(cm_dims * Q_WORDS + at % Q_WORDS)];
            w[i * Q_EACH + x] = head < pc.heads ? v : uvec4(0u);
        }
    }
}

// cm_load_q: through a subgroup's own part of kv_s into fragments, one head tile after the other.
void cm_load_q(uvec4 w[Q_ALL]) {
    const uint base = cm_heads % Q_PARTS * (CM_M * KV_PITCH) + cm_dims * Q_WORDS;
    [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
        [[unroll]] for (uint round = 0u; round < HEAD_PARTS / Q_PARTS; round++) {
            if (HEAD_PARTS > Q_PARTS) barrier();
            if (HEAD_PARTS > Q_PARTS && cm_heads / Q_PARTS != round) continue;
            [[unroll]] for (uint x = 0u; x < Q_EACH; x++) {
                const uint at = x * SUBGROUP + cm_lane;
                kv_s[base + at / Q_WORDS * KV_PITCH + at % Q_WORDS] = cm_from_bf16x8(w[i * Q_EACH + x]);
            }
            cm_subgroup_sync();
            [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
                coopMatLoad(q_f[i][k], kv_s, base + k * (CM_K / 8u), KV_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            }
            cm_subgroup_sync();
        }
    }
}

// cm_put_output: a subgroup's own columns, one head tile after the other, through shared memory,
// where rows can be told apart.
void cm_put_output(uint head0, uint split) {
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            coopMatStore(acc_f[i][j], kv_s, (cm_sub * OUT_TILES + j) * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        cm_subgroup_sync();
        [[dont_unroll]] for (uint at = cm_lane; at < CM_M * OUT_WORDS; at += SUBGROUP) {
            const uint c = CM_WORD_AT(cm_sub * OUT_WORDS + at % OUT_WORDS), h = i * CM_M + at / OUT_WORDS;
            if (head0 + h >= pc.heads) break;
            cm_write(cm_t, head0, split, h, c);
        }
        cm_subgroup_sync();
    }
}

#endif
