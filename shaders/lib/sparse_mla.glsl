// Sparse MLA of one (token, head group, split) without matrix units: the part that decode
// and prefill share. Per head, over the valid rows k_j of the split, in base 2:
//
//   s_j = scale_log2e * dot(q, k_j),  l = sum exp2(s_j - m),  acc = sum exp2(s_j - m) k_j
//
// m is the largest score up to some tile: it follows the largest only when that has gone MLA_STALE
// beyond it.
//
// The including kernel declares, before the include: constants HG (heads per workgroup: 4, 8 or
// 16), TILE (rows at a time, 4, 8 or 16) and 16*HG invocations, storage buffers q and dst (uvec4
// rows[]), part_out and part_ml (vec4 rows[]), pc.heads, pc.splits, pc.scale_log2e, and
//
//   const uint MLA_LANES = 16*HG/TILE      invocations that bring in a row
//   const uint MLA_UNITS = 64/MLA_LANES    units of 8 dims of each
//   MlaRow                                 these units as they lie in memory
//   int mla_entry(uint t, uint j)          entry j of token t's lists
//   bool mla_fetch(uint j, int entry, uint c, out MlaRow w)
//                                          asks for units c, c + MLA_LANES, .. of the row;
//                                          false: masked
//   uvec4 mla_unit(MlaRow w, uint c, uint i)    unit c + i*MLA_LANES of it as bf16
//   float mla_sink_of(uint head)
//   void mla_done(uint t, uint head, float m, float l, float top)
//                                          of a finished row; top: its largest score
//
// What an invocation does in a tile. It brings in a share of a row, asked for a tile before. It
// takes the dot products of 4 heads with 4 rows over its share of the dims. It sums those of two
// scores, in a fixed order, and makes weights of them. It adds 8 dims of all TILE rows to its
// accumulators, of 4 heads. A masked row is zero in shared memory and its weight is 0, so nothing
// that lies at a masked slot is ever read.
// With DOT2 queries, rows and weights are f16, as lib/cm_element.glsl has them.
// Shared memory, bytes:
//   (HG + TILE)*1024 + 1024/TILE*(HG*(TILE/2 + 2) + 1) + 6*HG*TILE + 4*(HG + TILE) + 4
#ifndef LIB_SPARSE_MLA_GLSL
#define LIB_SPARSE_MLA_GLSL
#include "bf16.glsl"
#include "mla_finish.glsl"
#include "dot2.glsl"
#ifdef DOT2
#include "cm_element.glsl"
#endif

const uint MLA_THREADS = 16u * HG;
const uint MLA_HEAD_BLOCKS = HG / 4u;
const uint MLA_SHARES = 256u / TILE;                    // of the dims, one for each of the invocations of a block of 4 x 4 scores
const uint MLA_HALF = MLA_SHARES / 2u;                  // sums that are left when every second share has been added to another
const uint MLA_PAIRS = TILE / 2u;                       // of rows: an invocation turns two scores into weights
const uint MLA_DOT_HEAD = MLA_PAIRS + 2u;               // pairs of a head, and of a share, padded against bank conflicts
const uint MLA_DOTS = HG * MLA_DOT_HEAD + 1u;
const float MLA_STALE = 8.0;                            // weights stay below 2^8
const uint MLA_FOURS = HALVES ? 1u : 2u;                // of fours of dims: from unit to unit,
const uint MLA_NEXT = HALVES ? 64u : 1u;                // and the second of a unit
const uint MLA_P_PITCH = HG / 4u + 1u;                  // padded against bank conflicts

#ifdef DOT2
shared uvec2 q_s[HG * 128u + HG / 4u];  // [HG, 512] f16, and 8 bytes behind every four heads
#else
shared uvec4 q_s[HG * 64u];             // [HG, 512] bf16
#endif
shared uvec4 kv_s[TILE * 64u];          // [TILE, 512] of the same
shared vec2 dot_s[MLA_HALF * MLA_DOTS]; // [shares, HG, TILE]; at the end l and the largest score of each pair, then m
#ifdef DOT2
shared uvec4 p_s[TILE / 2u * MLA_P_PITCH]; // [TILE, HG], two rows a word
#else
shared vec4 p_s[TILE * HG / 4u];        // [TILE, HG]
#endif
shared float top_s[HG * MLA_PAIRS];     // larger score of each pair
shared float factor_s[HG];
shared uint valid_s[TILE];
shared uint stale_s;                    // 1 + first row of the last tile that went beyond m

vec4 mla_acc[8];                        // 8 dims of each of 4 heads

// mla_keep_query, mla_query: the i-th unit of all heads, a unit of head + i of four.
#ifdef DOT2
uvec4 mla_numbers(uvec4 w) { return cm_from_bf16x8(w); }

float mla_dot2(uint a, uint b, float sum) { return dot2(unpackFloat2x16(a), unpackFloat2x16(b), sum); }

// RADV loads 8 bytes a lane. 16 lanes, which have eight units of two fours of heads, meet all
// banks.
void mla_keep_query(uint i, uvec4 w) {
    q_s[i * 2u + i / 256u] = w.xy;
    q_s[i * 2u + i / 256u + 1u] = w.zw;
}

uvec4 mla_query(uint head, uint i, uint unit) {
    const uint at = head * 128u + head / 4u + unit * 2u + i * 128u;
    return uvec4(q_s[at], q_s[at + 1u]);
}
#else
uvec4 mla_numbers(uvec4 w) { return w; }

void mla_unpack(uvec4 w, out vec4 lo, out vec4 hi) {
    lo = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y));
    hi = vec4(bf16_unpack2(w.z), bf16_unpack2(w.w));
}

float mla_dot2(uint a, uint b, float sum) {
    const vec2 x = bf16_unpack2(a), y = bf16_unpack2(b);
    return fma(x.y, y.y, fma(x.x, y.x, sum));
}

void mla_keep_query(uint i, uvec4 w) { q_s[i] = w; }

uvec4 mla_query(uint head, uint i, uint unit) { return q_s[(head + i) * 64u + unit]; }
#endif

// mla_scores: the dot products of this invocation's block over its share of the dims, in two
// rounds: the second half of the shares hands its sums to the first, which passes on both.
void mla_scores(uint lane) {
    const uint slot = lane % MLA_HALF, block = lane / MLA_HALF % (MLA_THREADS / MLA_SHARES), second = lane / (MLA_THREADS / 2u);
    const uint head = block % MLA_HEAD_BLOCKS * 4u, row = block / MLA_HEAD_BLOCKS * 4u;
    vec4 dots[4];
    [[unroll]] for (uint i = 0u; i < 4u; i++) dots[i] = vec4(0.0);
    [[unroll]] for (uint step = 0u; step < 64u / MLA_SHARES; step++) {
        const uint unit = slot + second * MLA_HALF + step * MLA_SHARES;
        uvec4 a[4], b[4];
        [[unroll]] for (uint i = 0u; i < 4u; i++) a[i] = mla_query(head, i, unit);
        [[unroll]] for (uint j = 0u; j < 4u; j++) b[j] = kv_s[(row + j) * 64u + unit];
        [[unroll]] for (uint w = 0u; w < 4u; w++) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                [[unroll]] for (uint j = 0u; j < 4u; j++) dots[i][j] = mla_dot2(a[i][w], b[j][w], dots[i][j]);
            }
        }
    }
    const uint at = slot * MLA_DOTS + head * MLA_DOT_HEAD + row / 2u;
    if (second == 1u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            dot_s[at + i * MLA_DOT_HEAD] = dots[i].xy;
            dot_s[at + i * MLA_DOT_HEAD + 1u] = dots[i].zw;
        }
    }
    barrier();
    if (second == 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            dot_s[at + i * MLA_DOT_HEAD] += dots[i].xy;
            dot_s[at + i * MLA_DOT_HEAD + 1u] += dots[i].zw;
        }
    }
}

// mla_weigh: exp2(s - m) of the scores that count.
vec2 mla_weigh(vec2 s, float m, bvec2 valid) {
    return mix(vec2(0.0), exp2(clamp(s - m, vec2(-300.0), vec2(100.0))), valid);
}

// What needs p_s stands behind mla_scores: Mesa lays shared memory out in the order of first use,
// and with p_s in front of dot_s ANV's kernels take a fifth more clocks on Arc A.
#ifdef DOT2
void mla_put_weights(uint head, uint pair, vec2 p) {
    p_s[pair * MLA_P_PITCH + head / 4u][head % 4u] = packFloat2x16(f16vec2(p));
}

// mla_values: 8 dims of a row: four of each half of the dims, so that loads of 8 bytes, as RADV has
// them, meet in no bank.
uvec4 mla_values(uint r, uint unit) {
    const uint at = r * 64u + unit / 2u, two = unit % 2u * 2u;
    return uvec4(kv_s[at][two], kv_s[at][two + 1u], kv_s[at + 32u][two], kv_s[at + 32u][two + 1u]);
}

// mla_add: rows r4 to r4 + 3 of 8 dims, times their weights, of 4 heads.
void mla_add(uint r4, uint unit, uint first) {
    [[unroll]] for (uint r = r4; r < r4 + 4u; r += 2u) {
        const uvec4 a = mla_values(r, unit), b = mla_values(r + 1u, unit);
        const uvec4 p = p_s[r / 2u * MLA_P_PITCH + first / 4u];
        [[unroll]] for (uint d = 0u; d < 4u; d++) {
            const f16vec2 x = unpackFloat2x16(a[d]), y = unpackFloat2x16(b[d]);
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint at = 2u * i + d / 2u, e = d % 2u * 2u;
                mla_acc[at][e] = dot2(f16vec2(x.x, y.x), unpackFloat2x16(p[i]), mla_acc[at][e]);
                mla_acc[at][e + 1u] = dot2(f16vec2(x.y, y.y), unpackFloat2x16(p[i]), mla_acc[at][e + 1u]);
            }
        }
    }
}

// mla_store: 8 dims of a finished row that begins at unit row of dst.
void mla_store(uint row, uint unit, uvec4 w) {
    dst.rows[row + unit / 2u][unit % 2u * 2u] = w.x;
    dst.rows[row + unit / 2u][unit % 2u * 2u + 1u] = w.y;
    dst.rows[row + 32u + unit / 2u][unit % 2u * 2u] = w.z;
    dst.rows[row + 32u + unit / 2u][unit % 2u * 2u + 1u] = w.w;
}
#else
void mla_put_weights(uint head, uint pair, vec2 p) {
    p_s[(2u * pair * HG + head) / 4u][head % 4u] = p.x;
    p_s[((2u * pair + 1u) * HG + head) / 4u][head % 4u] = p.y;
}

void mla_add(uint r4, uint unit, uint first) {
    [[unroll]] for (uint r = r4; r < r4 + 4u; r++) {
        vec4 a, b;
        mla_unpack(kv_s[r * 64u + unit], a, b);
        const vec4 x = p_s[(r * HG + first) / 4u];
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            mla_acc[2u * i] += x[i] * a;
            mla_acc[2u * i + 1u] += x[i] * b;
        }
    }
}

void mla_store(uint row, uint unit, uvec4 w) { dst.rows[row + unit] = w; }
#endif

// mla_finish: joins what the invocations know of each head, and writes it.
void mla_finish(uint t, uint head0, uint split, uint lane, float m, float l, float peak) {
    if (lane < HG * MLA_PAIRS) {
        dot_s[lane] = vec2(l, peak);
        if (lane % MLA_PAIRS == 0u) dot_s[MLA_DOTS + lane / MLA_PAIRS] = vec2(m, 0.0);
    }
    barrier();
    if (lane < HG && head0 + lane < pc.heads) {
        const uint head = head0 + lane;
        vec2 all = vec2(0.0, MLA_FLOOR);
        for (uint i = 0u; i < MLA_PAIRS; i++) {
            const vec2 x = dot_s[lane * MLA_PAIRS + i];
            all = vec2(all.x + x.x, max(all.y, x.y));
        }
        m = dot_s[MLA_DOTS + lane].x;
        factor_s[lane] = all.x == 0.0 ? -1.0 : mla_factor(m, all.x, mla_sink_of(head)); // -1: the row is empty
        if (pc.splits > 1u) part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m, all.x, all.y, 0.0);
        else mla_done(t, head, m, all.x, all.y);
    }
    barrier();
    const uint unit = lane % 64u, first = lane / 64u * 4u;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint head = head0 + first + i;
        if (head >= pc.heads) break;
        if (pc.splits == 1u) {
            const float f = factor_s[first + i];
            const vec4 a = f < 0.0 ? vec4(0.0) : mla_acc[2u * i] * f, b = f < 0.0 ? vec4(0.0) : mla_acc[2u * i + 1u] * f;
            mla_store((t * pc.heads + head) * 64u, unit,
                      uvec4(bf16_pack2(a.x, a.y), bf16_pack2(a.z, a.w), bf16_pack2(b.x, b.y), bf16_pack2(b.z, b.w)));
        } else {
            const uint at = ((t * pc.splits + split) * pc.heads + head) * 128u + unit * MLA_FOURS;
            part_out.rows[at] = mla_acc[2u * i];
            part_out.rows[at + MLA_NEXT] = mla_acc[2u * i + 1u];
        }
    }
}

// mla_attend: positions [begin, end) of token t for the heads from head0 on. Writes the
// finished rows when there is one split, else the partial ones.
void mla_attend(uint t, uint head0, uint split, uint begin, uint end) {
    const uint lane = gl_LocalInvocationIndex;
    const uint row = lane / MLA_LANES, column = lane % MLA_LANES;        // to bring in
    const uint own_head = lane / MLA_PAIRS, pair = lane % MLA_PAIRS;     // whose scores become weights
    const bool weighs = lane < HG * MLA_PAIRS;
    const uint unit = lane % 64u, first = lane / 64u * 4u;        // of the accumulators

    MlaRow w;
    const uint j = begin + row;
    bool valid = j < end;
    if (valid) valid = mla_fetch(j, mla_entry(t, j), column, w);
    int entry = j + TILE < end ? mla_entry(t, j + TILE) : -1;

    for (uint i = lane; i < HG * 64u; i += MLA_THREADS) {
        const uint head = head0 + i / 64u;
        mla_keep_query(i, head < pc.heads ? mla_numbers(q.rows[(t * pc.heads + head) * 64u + i % 64u]) : uvec4(0u));
    }
    if (lane == 0u) stale_s = 0u;
    [[unroll]] for (uint i = 0u; i < 8u; i++) mla_acc[i] = vec4(0.0);
    float m = MLA_FLOOR, l = 0.0, peak = MLA_FLOOR; // m of own_head; l and peak of this invocation's scores

    for (uint j0 = begin; j0 < end; j0 += TILE) {
        barrier(); // the last tile's readers of kv_s
        if (column == 0u) valid_s[row] = uint(valid);
        [[unroll]] for (uint i = 0u; i < MLA_UNITS; i++)
            kv_s[row * 64u + i * MLA_LANES + column] = valid ? mla_numbers(mla_unit(w, column, i)) : uvec4(0u);
        barrier();
        const uint next = j0 + TILE + row; // asked for here: all of the products below are to come
        valid = mla_fetch(next, entry, column, w);
        entry = next + TILE < end ? mla_entry(t, next + TILE) : -1;
        mla_scores(lane);
        barrier();

        vec2 s = vec2(0.0), p = vec2(0.0);
        bvec2 counts = bvec2(false);
        if (weighs) {
            for (uint i = 0u; i < MLA_HALF; i++) s += dot_s[i * MLA_DOTS + own_head * MLA_DOT_HEAD + pair];
            precise vec2 scaled = s * pc.scale_log2e; // rounded, for all that follows
            counts = bvec2(valid_s[2u * pair] != 0u, valid_s[2u * pair + 1u] != 0u);
            s = mix(vec2(MLA_FLOOR), scaled, counts);
            const float top = max(s.x, s.y);
            peak = max(peak, top);
            top_s[lane] = top;
            if (top > m + MLA_STALE) atomicMax(stale_s, j0 + 1u);
            p = mla_weigh(s, m, counts);
            mla_put_weights(own_head, pair, p);
        }
        barrier();
        if (stale_s == j0 + 1u) {
            if (weighs) {
                float top = m;
                for (uint i = 0u; i < MLA_PAIRS; i++) top = max(top, top_s[own_head * MLA_PAIRS + i]);
                const float to = top > m + MLA_STALE ? top : m, rescale = exp2(max(m - to, -300.0));
                l *= rescale;
                m = to;
                p = mla_weigh(s, m, counts);
                mla_put_weights(own_head, pair, p);
                if (pair == 0u) factor_s[own_head] = rescale;
            }
            barrier();
            [[unroll]] for (uint i = 0u; i < 8u; i++) mla_acc[i] *= factor_s[first + i / 2u];
        }
        l += p.x + p.y;
        if (TILE == 4u) mla_add(0u, unit, first);
        else [[dont_unroll]] for (uint r4 = 0u; r4 < TILE; r4 += 4u) mla_add(r4, unit, first);
    }
    mla_finish(t, head0, split, lane, m, l, peak);
}

#endif
