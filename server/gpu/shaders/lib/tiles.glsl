// Sums as sums.glsl has them, bit for bit, of 64 rows of weights and TOKENS rows of activations by
// a workgroup. Weights are decoded once for all of these, to shared memory, 32 columns at a time or
// 64 of whole numbers.
// Declarations, bindings and constants are those of chunks.glsl, and 3 TOKENS: 8, 16 or 32.
// An invocation has four rows, two of each matrix where there are two, and every eighth token. It
// takes the turns of the 32 invocations that have a row in sums.glsl one after the other.
#ifndef LIB_TILES_GLSL
#define LIB_TILES_GLSL
#include "chunks.glsl"
#define LIB_WHOLE_PRODUCTS
#define LIB_WHOLE_FOLDED
#include "whole.glsl"

layout(constant_id = 3) const uint TOKENS = 8u;

const uint ROWS = 64u / MATRICES; // of each matrix
const uint COUNT = TOKENS / 8u;
const uint SPAN = WHOLE ? 64u : 32u;             // columns of a stage
const uint PART = COLUMNS < 32u ? COLUMNS : 32u; // that share a scale
const bool SCALED = COLUMNS > 8u && !WHOLE;      // chunks have a scale
const uint FETCHES = COLUMNS < 16u ? 2u : 1u;    // chunks of a stage that an invocation decodes
const uint X_QUADS = WHOLE ? 2u : 1u;            // quads of activations that it fetches
// Quads of a row of weights and of activations in shared memory: of f32, or of bytes, of which
// activations have two a column. A spare one spreads rows over banks.
const uint W_PITCH = (WHOLE ? SPAN / 16u : SPAN / 4u) + 1u, X_PITCH = SPAN / (WHOLE ? 8u : 4u) + 1u;

shared uvec4 w_s[64u * W_PITCH];
shared uvec4 x_s[TOKENS * X_PITCH];
shared float scale_s[SCALED ? 64u * 2u : 1u]; // of half a stage
shared vec2 unit_s[WHOLE ? 64u * 2u : 1u];
shared ivec2 by_s[WHOLE ? 64u * 4u : 1u];     // of 16 columns
shared ivec2 sums_s[WHOLE ? TOKENS * 2u : 1u];
shared float x_scale_s[WHOLE ? TOKENS * 2u : 1u];
shared uint row_s[TOKENS]; // of x

// Ahead holds an invocation's share of the next stage: of a row 16 columns, or a piece of whole
// numbers; of a token eight, or a quad of each of two pieces.
struct Ahead {
    uvec4 q[FETCHES][QUADS], x[X_QUADS];
    uint scale, block;
    ivec2 sums;
    float x_scale;
};

// A stage of turn `turn` has columns `from` to from+SPAN-1 of its chunks; chunk i of them is
// turn + 32*i of the row.
struct Stage { uint turn, from; };

uint chunk_at(Stage s, uint column) { return s.turn + 32u * ((s.from + column) / COLUMNS); }

// piece_at: of half a stage, or the last one there is.
uint piece_at(Stage s, uint half_) {
    return min(chunk_at(s, half_ * PIECE) * (COLUMNS / PIECE) + half_ % (COLUMNS / PIECE), pc.k / PIECE - 1u);
}

// row_at: row r of the workgroup's 64, as they lie in shared memory. Invocation g of 16 has g, g+16
// and on, which are neighbours of a matrix.
uint row_at(uint r) { return MATRICES == 2u ? r % 16u * 2u + r / 16u % 2u : r % 16u * 4u + r / 16u; }

void fetch(uint expert, uint row0, Stage s, out Ahead a) {
    const uint tid = gl_LocalInvocationIndex, chunks = pc.k / COLUMNS;
    const uint m = MATRICES == 2u ? tid % 64u / 32u : 0u, row = min(row0 + row_at(tid % 64u), pc.n - 1u);
    a.scale = 0u;
    a.block = 0u;
    [[unroll]] for (uint f = 0u; f < FETCHES; f++) {
        const uint c = min(chunk_at(s, tid / 64u * (SPAN / 2u) + 8u * f), chunks - 1u);
        if (m == 0u) {
            FETCH(0u, expert, row, c, a.q[f], a.scale, a.block)
        } else {
            FETCH(1u, expert, row, c, a.q[f], a.scale, a.block)
        }
    }
    const uint t = min(tid / 4u, TOKENS - 1u), x_row = row_s[t] * pc.x_quads;
    if (WHOLE) {
        [[unroll]] for (uint half_ = 0u; half_ < 2u; half_++) {
            a.x[min(half_, X_QUADS - 1u)] = x.v[x_row + place(4u * piece_at(s, half_) + tid % 4u)];
        }
        const uint piece = piece_at(s, tid % 2u), sums_row = row_s[min(tid / 2u, TOKENS - 1u)] * pc.x_quads;
        a.sums = x_sums(sums_row, piece);
        a.x_scale = x_scale(sums_row, piece);
        return;
    }
    const uint c = min(chunk_at(s, tid % 4u * 8u), chunks - 1u);
    a.x[0] = x.v[x_row + place((c * COLUMNS + (s.from + tid % 4u * 8u) % COLUMNS) / 8u)];
}

void put8(uint at, float v[8]) {
    w_s[at] = floatBitsToUint(vec4(v[0], v[1], v[2], v[3]));
    w_s[at + 1u] = floatBitsToUint(vec4(v[4], v[5], v[6], v[7]));
}

// decode brings what was fetched to shared memory.
void decode(Stage s, Ahead a) {
    const uint tid = gl_LocalInvocationIndex, column = tid / 64u * 16u, to = tid % 64u * W_PITCH + column / 4u;
    const uint within = (s.from + column) % COLUMNS / 8u; // of the chunk's eights
    float v[8];
    if (FETCHES == 2u) {
        [[unroll]] for (uint f = 0u; f < FETCHES; f++) {
            decode8(a.q[f], 0u, v);
            put8(to + 2u * f, v);
        }
    } else { // eights by number, so that no register is indexed
        [[unroll]] for (uint j = 0u; j < EIGHTS; j += 2u) {
            if (j != within) continue;
            decode8(a.q[0], j, v);
            put8(to, v);
            decode8(a.q[0], j + 1u, v);
            put8(to + 2u, v);
            if (SCALED) scale_s[tid % 64u * 2u + column / 16u] = scale_of(a.q[0], a.scale, a.block, chunk_at(s, column), 0u).x;
        }
    }
    if (tid / 4u >= TOKENS) return;
    bf16_unpack8(a.x[0], v);
    const uint x0 = tid / 4u * X_PITCH + tid % 4u * 2u;
    x_s[x0] = floatBitsToUint(vec4(v[0], v[1], v[2], v[3]));
    x_s[x0 + 1u] = floatBitsToUint(vec4(v[4], v[5], v[6], v[7]));
}

// decode_whole is decode of whole numbers: an invocation has a piece of a row.
void decode_whole(Ahead a) {
    const uint tid = gl_LocalInvocationIndex, row = tid % 64u, half_ = tid / 64u;
    [[unroll]] for (uint p = 0u; p < COLUMNS / PIECE; p++) {
        if (COLUMNS / PIECE == 2u && p != half_) continue;
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            w_s[row * W_PITCH + 2u * half_ + h] = bytes16(a.q[0], a.scale, 2u * p + h);
            by_s[row * 4u + 2u * half_ + h] = by_of(a.q[0], a.scale, 2u * p + h);
        }
    }
    unit_s[row * 2u + half_] = unit_of(a.scale, a.block);
    if (tid / 4u < TOKENS) {
        x_s[tid / 4u * X_PITCH + tid % 4u] = a.x[0];
        x_s[tid / 4u * X_PITCH + 4u + tid % 4u] = a.x[X_QUADS - 1u];
    }
    if (tid / 2u < TOKENS) {
        sums_s[tid] = a.sums;
        x_scale_s[tid] = a.x_scale;
    }
}

float acc[4][COUNT];

vec4 w_at(uint at) { return uintBitsToFloat(w_s[at]); }
vec4 x_at(uint at) { return uintBitsToFloat(x_s[at]); }

// multiply: columns of a stage that share a scale.
void multiply(uint part) {
    const uint token0 = gl_LocalInvocationIndex % 8u, row0 = gl_LocalInvocationIndex / 8u;
    float sum[4][COUNT];
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        [[unroll]] for (uint t = 0u; t < COUNT; t++) sum[r][t] = 0.0;
    }
    [[unroll]] for (uint c = 0u; c < PART / 4u; c++) {
        vec4 w[4];
        [[unroll]] for (uint r = 0u; r < 4u; r++) w[r] = w_at((r * 16u + row0) * W_PITCH + part * (PART / 4u) + c);
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const vec4 a = x_at((t * 8u + token0) * X_PITCH + part * (PART / 4u) + c);
            [[unroll]] for (uint r = 0u; r < 4u; r++)
                sum[r][t] = fma(w[r].w, a.w, fma(w[r].z, a.z, fma(w[r].y, a.y, fma(w[r].x, a.x, sum[r][t]))));
        }
    }
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        const float scale = SCALED ? scale_s[(r * 16u + row0) * 2u + part * PART / 16u] : 1.0;
        [[unroll]] for (uint t = 0u; t < COUNT; t++) acc[r][t] = fma(sum[r][t] * UNSCALE, scale, acc[r][t]);
    }
}

// multiply_whole: half a stage, a piece.
void multiply_whole(uint half_) {
    const uint token0 = gl_LocalInvocationIndex % 8u, row0 = gl_LocalInvocationIndex / 8u;
    ivec2 dots[4][COUNT];
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        uvec4 w[4];
        [[unroll]] for (uint r = 0u; r < 4u; r++) w[r] = w_s[(r * 16u + row0) * W_PITCH + 2u * half_ + h];
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const uint at = (t * 8u + token0) * X_PITCH + 4u * half_ + h;
            const uvec4 high = x_s[at], low = x_s[at + 2u];
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                const int sum = dot16(w[r], high, low);
                dots[r][t] = h == 0u ? ivec2(sum, 0) : HALVED ? ivec2(dots[r][t].x, sum) : ivec2(dots[r][t].x + sum, 0);
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        const uint row = r * 16u + row0;
        const ivec2 by[2] = ivec2[2](by_s[row * 4u + 2u * half_], by_s[row * 4u + 2u * half_ + 1u]);
        const vec2 unit = unit_s[row * 2u + half_];
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const uint at = (t * 8u + token0) * 2u + half_;
            acc[r][t] = add_piece(acc[r][t], dots[r][t], by, sums_s[at], unit, x_scale_s[at]);
        }
    }
}

// make_tile leaves sums [4][COUNT] of rows row_at(r*16 + tid/8) and tokens t*8 + tid%8. Every
// invocation of the workgroup has to call it, after row_s was written.
void make_tile(uint expert, uint row0, out float sums[4][COUNT]) {
    const uint chunks = pc.k / COLUMNS, stages = ((chunks + 31u) / 32u * COLUMNS + SPAN - 1u) / SPAN; // of a turn
    float four[4][COUNT];
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            acc[r][t] = 0.0;
            four[r][t] = 0.0;
            sums[r][t] = 0.0;
        }
    }
    Ahead next;
    Stage s = Stage(0u, 0u);
    barrier();
    fetch(expert, row0, s, next);
    [[dont_unroll]] while (s.turn < 32u) {
        barrier();
        if (WHOLE) {
            decode_whole(next);
        } else {
            decode(s, next);
        }
        barrier();
        const Stage now = s;
        s.from += SPAN;
        if (s.from >= stages * SPAN) s = Stage(s.turn + 1u, 0u);
        fetch(expert, row0, Stage(min(s.turn, 31u), s.from), next); // on its way meanwhile
        [[unroll]] for (uint part = 0u; part < SPAN / PART; part++) {
            if (chunk_at(now, part * PART) >= chunks) continue;
            if (WHOLE) {
                multiply_whole(part);
            } else {
                multiply(part);
            }
        }
        if (s.turn == now.turn) continue;
        [[unroll]] for (uint r = 0u; r < 4u; r++) {
            [[unroll]] for (uint t = 0u; t < COUNT; t++) {
                precise float sum = now.turn % 4u == 0u ? acc[r][t] : four[r][t] + acc[r][t];
                four[r][t] = sum;
                acc[r][t] = 0.0;
                if (now.turn % 4u != 3u) continue;
                precise float all = now.turn == 3u ? sum : sums[r][t] + sum;
                sums[r][t] = all;
            }
        }
    }
}

#endif
