// Sparse MLA of one (token, head group, split) with cooperative matrices: the part that decode and prefill share.
// Per head, over the valid rows k_j of the split, in base 2:
//
//   s_j = scale_log2e * dot(q, k_j),  l = sum exp2(s_j - m),  acc = sum exp2(s_j - m) k_j
//
// m is a reference near the maximum, not the maximum itself: as long as no s_j exceeds m by more than CM_STALE the weights fit
// their type, and acc, spread over the registers of all subgroups, need not be touched.
//
// A tile is TILE rows in shared memory. Its scores S = Q K^T are made by all subgroups, each for some head tiles and one of
// KSPLIT parts of the 512 dims, and leave through shared memory as f32; invocations turn four neighbouring scores at a time
// into weights P; then each subgroup adds P V to its own 512/SUBGROUPS columns of acc, for all heads. Nothing depends on where
// a fragment's elements lie in a subgroup. Rows of t+2 are on their way in registers while tile t is worked on, with two
// barriers a tile:
//
//   load t+2 | acc += P V of t, scores of t+1 | weights of t+1, rows of t+2 to shared memory
//
// The including kernel declares before the include: the constants HG, TILE, THREADS, SUBGROUP, CM_M, CM_N, CM_K, KSPLIT
// (SUBGROUPS = THREADS/SUBGROUP; HG is a multiple of CM_M, TILE of CM_M, CM_N and CM_K; KSPLIT divides SUBGROUPS, SUBGROUPS/KSPLIT
// divides HG/CM_M, KSPLIT*CM_K and SUBGROUPS*CM_N divide 512; TILE divides THREADS), the storage buffers q, dst
// (uvec4 rows[]), part_out and part_ml (vec4 rows[]), and pc.heads, pc.splits, pc.scale_log2e. After it, before
// lib/cm_sparse_mla_loop.glsl, it declares how rows come in:
//
//   struct CmRow                                            one invocation's raw share of a row
//   uvec2 cm_find(uint t, uint j)                           reads what says where entry j lies
//   void cm_fetch(uvec2 found, uint j, bool inside, out CmRow row)   starts loading; no branch
//   void cm_keep(CmRow row, uint at)                        writes the share to row `at` of kv_s, zeros where masked,
//                                                           and says through cm_set_valid whether it counts
//
// Shared memory, bytes: 2*TILE*1040 + KSPLIT*HG*(4*TILE + 16) + HG*(2*TILE + 24) + 8*TILE + 4: 47236 for HG 64, TILE 16, KSPLIT 2.
#ifndef LIB_CM_SPARSE_MLA_GLSL
#define LIB_CM_SPARSE_MLA_GLSL
#include "cm_element.glsl"
#include "mla_finish.glsl"

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_M;
const uint HEAD_PARTS = SUBGROUPS / KSPLIT;         // scores: subgroups side by side over the heads
const uint QK_TILES = HEAD_TILES / HEAD_PARTS;      // and head tiles of each
const uint QK_STEPS = 512u / CM_K / KSPLIT;
const uint OUT_TILES = 512u / CM_N / SUBGROUPS;     // column tiles of acc that a subgroup owns
const uint QUADS = TILE / 4u;                       // a row of scores in fours
const uint UNITS = HG * QUADS;                      // fours in a tile of scores
const uint UNITS_EACH = (UNITS + THREADS - 1u) / THREADS;
const uint ROW_PARTS = THREADS / TILE;              // invocations that bring in a row together

// Rows are padded by 16 bytes so that the rows of a fragment fall into different banks, and the arrays are of 16-byte
// vectors so that a compiler sees aligned fragment rows.
const uint KV_PITCH = 65u;
const uint P_PITCH = TILE / 8u + 1u;
const uint S_PITCH = TILE / 4u + 1u;
const uint OUT_PITCH = 130u;

shared uvec4 kv_s[2u * TILE * KV_PITCH];        // [2, TILE, 512] elements; also [.., 512] of Q, [CM_M, 512] f32 of acc
shared vec4 score_s[KSPLIT * HG * S_PITCH];     // [KSPLIT, HG, TILE] partial dot products; at the end [HG, QUADS] (l, max)
shared uvec4 p_s[HG * P_PITCH];                 // [HG, TILE] weights as elements
shared uvec4 valid_s[2u * QUADS];               // [2, TILE] 1: the row counts
shared vec4 factor_s[HG / 4u];                  // [HG] what rows of acc are multiplied by
shared float ref_s[HG];                         // [HG] m
shared uint stale_s;                            // some score of the tile outgrew m

#define CM_A coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>

CM_A q_f[QK_TILES][QK_STEPS];     // this subgroup's part of Q, for the whole kernel
CM_C acc_f[HEAD_TILES][OUT_TILES];

// One invocation's fours of scores: unit u*THREADS + cm_tid, head = unit / QUADS.
float m_[UNITS_EACH];
float l_[UNITS_EACH];
float l_add_[UNITS_EACH]; // of the newest tile, not yet in l_
float top_[UNITS_EACH];   // true maximum

uint cm_tid, cm_sub;        // invocation and subgroup
uint cm_row, cm_part;       // its row of a tile and its part of that row
uint cm_heads, cm_dims;     // its subgroup's part of the heads and of the dims, for scores

void cm_set_valid(uint at, bool valid) {
    if (cm_part == 0u) valid_s[at / 4u][at % 4u] = valid ? 1u : 0u;
}

// cm_load_q: through kv_s into fragments. Ends with a barrier.
void cm_load_q(uint t, uint head0) {
    const uint STAGE = 2u * TILE / CM_M < HEAD_TILES ? 2u * TILE / CM_M : HEAD_TILES; // head tiles at a time
    const uint COUNT = (STAGE * CM_M * 64u + THREADS - 1u) / THREADS;
    [[dont_unroll]] for (uint first = 0u; first < HEAD_TILES; first += STAGE) {
        uvec4 w[COUNT];
        [[unroll]] for (uint i = 0u; i < COUNT; i++) {
            const uint at = i * THREADS + cm_tid, head = head0 + first * CM_M + at / 64u;
            w[i] = q.rows[(t * pc.heads + min(head, pc.heads - 1u)) * 64u + at % 64u];
            if (head >= pc.heads) w[i] = uvec4(0u);
        }
        if (first > 0u) barrier(); // fragments of the stage before have been loaded
        [[unroll]] for (uint i = 0u; i < COUNT; i++) {
            const uint at = i * THREADS + cm_tid;
            if (at < STAGE * CM_M * 64u) kv_s[at / 64u * KV_PITCH + at % 64u] = cm_from_bf16x8(w[i]);
        }
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

// cm_scores: the dot products of Q with the rows in buffer `buf`, to score_s.
void cm_scores(uint buf) {
    [[unroll]] for (uint j = 0u; j < TILE / CM_N; j++) {
        CM_C s[QK_TILES];
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = CM_C(0.0);
        [[unroll]] for (uint k = 0u; k < QK_STEPS; k++) {
            CM_B rows; // K^T: rows of kv_s are its columns
            coopMatLoad(rows, kv_s, (buf * TILE + j * CM_N) * KV_PITCH + (cm_dims * QK_STEPS + k) * CM_K / 8u, KV_PITCH,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0u; i < QK_TILES; i++) s[i] = coopMatMulAdd(q_f[i][k], rows, s[i]);
        }
        [[unroll]] for (uint i = 0u; i < QK_TILES; i++) {
            coopMatStore(s[i], score_s, (cm_dims * HG + (cm_heads * QK_TILES + i) * CM_M) * S_PITCH + j * CM_N / 4u, S_PITCH,
                         gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

bvec4 cm_valid(uint buf, uint quad) { return notEqual(valid_s[buf * QUADS + quad], uvec4(0u)); }

// cm_score4: four scores of a head in base 2, the masked ones at the floor.
vec4 cm_score4(uint head, uint quad, bvec4 valid) {
    vec4 s = score_s[head * S_PITCH + quad];
    [[unroll]] for (uint k = 1u; k < KSPLIT; k++) s += score_s[(k * HG + head) * S_PITCH + quad];
    return mix(vec4(MLA_FLOOR), s * pc.scale_log2e, valid);
}

float cm_max4(vec4 s) { return max(max(s.x, s.y), max(s.z, s.w)); }

// cm_weights: scores to weights, in p_s. What is added to l stays in l_add_ until it is known that no score was stale.
void cm_weights(uint buf) {
    bool stale = false;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint unit = u * THREADS + cm_tid;
        if (UNITS % THREADS != 0u && unit >= UNITS) break;
        const uint head = unit / QUADS, quad = unit % QUADS;
        const bvec4 valid = cm_valid(buf, quad);
        const vec4 s = cm_score4(head, quad, valid);
        const float top = cm_max4(s);
        top_[u] = max(top_[u], top);
        stale = stale || top > m_[u] + CM_STALE;
        const vec4 p = mix(vec4(0.0), exp2(s - m_[u]), valid); // exactly 0 where masked
        l_add_[u] = (p.x + p.y) + (p.z + p.w);
        const uvec2 w = cm_pack(p);
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u] = w.x;
        p_s[head * P_PITCH + quad / 2u][quad % 2u * 2u + 1u] = w.y;
    }
    if (stale) atomicOr(stale_s, 1u);
}

// cm_rescale: makes m the maximum over all tiles up to the one whose scores lie in score_s, and brings l and acc along.
// Rarely needed after the first tile. score_s must be complete (a barrier before); two barriers inside.
void cm_rescale(uint buf) {
    for (uint head = cm_tid; head < HG; head += THREADS) {
        float top = ref_s[head];
        [[unroll]] for (uint quad = 0u; quad < QUADS; quad++) top = max(top, cm_max4(cm_score4(head, quad, cm_valid(buf, quad))));
        factor_s[head / 4u][head % 4u] = exp2(ref_s[head] - top);
        ref_s[head] = top;
    }
    barrier();
    if (cm_tid == 0u) stale_s = 0u;
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) {
        const uint head = (u * THREADS + cm_tid) / QUADS % HG;
        m_[u] = ref_s[head];
        l_[u] *= factor_s[head / 4u][head % 4u];
    }
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        CM_C factor; // stride 0: every column the same
        coopMatLoad(factor, factor_s, i * CM_M / 4u, 0u, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) acc_f[i][j] *= factor;
    }
    barrier();
}

// cm_accumulate: acc += P V for the rows in buffer `buf`.
void cm_accumulate(uint buf) {
    [[unroll]] for (uint k = 0u; k < TILE / CM_K; k++) {
        CM_A p[HEAD_TILES];
        [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
            coopMatLoad(p[i], p_s, i * CM_M * P_PITCH + k * CM_K / 8u, P_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            CM_B rows;
            coopMatLoad(rows, kv_s, (buf * TILE + k * CM_K) * KV_PITCH + (cm_sub * OUT_TILES + j) * CM_N / 8u, KV_PITCH,
                        gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) acc_f[i][j] = coopMatMulAdd(p[i], rows, acc_f[i][j]);
        }
    }
    [[unroll]] for (uint u = 0u; u < UNITS_EACH; u++) l_[u] += l_add_[u];
}

#endif
