// Sums as sums.glsl has them, bit for bit, of 64 rows of weights and TOKENS rows of activations by
// a workgroup. Weights are decoded once for all of these, to shared memory, 32 columns at a time.
// Declarations, bindings and constants are those of chunks.glsl, and 3 TOKENS: 8, 16 or 32.
// An invocation has four rows, two of each matrix where there are two, and every eighth token. It
// takes the turns of the 32 invocations that have a row in sums.glsl one after the other.
#ifndef LIB_TILES_GLSL
#define LIB_TILES_GLSL
#include "chunks.glsl"

layout(constant_id = 3) const uint TOKENS = 8u;

const uint ROWS = 64u / MATRICES; // of each matrix
const uint COUNT = TOKENS / 8u;
const uint SPAN = 32u, PITCH = SPAN + 4u; // columns of a stage
const uint PART = COLUMNS / PARTS;        // that share a scale
const bool SCALED = PART > 8u;
const uint FETCHES = COLUMNS < 16u ? 2u : 1u; // chunks of a stage that an invocation decodes

shared vec4 w_s[64u * PITCH / 4u];
shared vec4 x_s[TOKENS * PITCH / 4u];
shared float eight_s[MINIMA ? TOKENS * 4u : 1u];                // sums of eight columns of x
shared vec2 scale_s[SCALED ? 64u * (SPAN / PART) : 1u];
shared uint row_s[TOKENS]; // of x

// Ahead holds an invocation's share of the next stage: 16 columns of a row, eight of a token.
struct Ahead {
    uvec4 q[FETCHES][QUADS], x;
    uint scale, block;
};

// A stage of turn `turn` has columns `from` to from+31 of its chunks; chunk i of them is
// turn + 32*i of the row.
struct Stage { uint turn, from; };

uint chunk_at(Stage s, uint column) { return s.turn + 32u * ((s.from + column) / COLUMNS); }

// row_at: row r of the workgroup's 64, as they lie in shared memory. Invocation g of 16 has g, g+16
// and on, which are neighbours of a matrix.
uint row_at(uint r) { return MATRICES == 2u ? r % 16u * 2u + r / 16u % 2u : r % 16u * 4u + r / 16u; }

void fetch(uint expert, uint row0, Stage s, out Ahead a) {
    const uint tid = gl_LocalInvocationIndex, chunks = pc.k / COLUMNS, column = tid / 64u * 16u;
    const uint m = MATRICES == 2u ? tid % 64u / 32u : 0u, row = min(row0 + row_at(tid % 64u), pc.n - 1u);
    a.scale = 0u;
    a.block = 0u;
    [[unroll]] for (uint f = 0u; f < FETCHES; f++) {
        const uint c = min(chunk_at(s, column + 8u * f), chunks - 1u);
        if (m == 0u) {
            FETCH(0u, expert, row, c, a.q[f], a.scale, a.block)
        } else {
            FETCH(1u, expert, row, c, a.q[f], a.scale, a.block)
        }
    }
    const uint t = min(tid / 4u, TOKENS - 1u), c = min(chunk_at(s, tid % 4u * 8u), chunks - 1u);
    a.x = x.v[row_s[t] * pc.x_quads + place((c * COLUMNS + (s.from + tid % 4u * 8u) % COLUMNS) / 8u)];
}

void put8(uint at, float v[8]) {
    w_s[at] = vec4(v[0], v[1], v[2], v[3]);
    w_s[at + 1u] = vec4(v[4], v[5], v[6], v[7]);
}

// decode brings what was fetched to shared memory.
void decode(Stage s, Ahead a) {
    const uint tid = gl_LocalInvocationIndex, column = tid / 64u * 16u, to = tid % 64u * (PITCH / 4u) + column / 4u;
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
            if (SCALED && (PART == 16u || column == 0u)) {
                scale_s[tid % 64u * (SPAN / PART) + column / PART] =
                    scale_of(a.q[0], a.scale, a.block, chunk_at(s, column), j * 8u / PART);
            }
        }
    }
    if (tid / 4u >= TOKENS) return;
    bf16_unpack8(a.x, v);
    const uint x0 = tid / 4u * (PITCH / 4u) + tid % 4u * 2u;
    x_s[x0] = vec4(v[0], v[1], v[2], v[3]);
    x_s[x0 + 1u] = vec4(v[4], v[5], v[6], v[7]);
    if (MINIMA) eight_s[tid] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

float acc[4][COUNT];

// multiply: a part of a stage.
void multiply(uint part) {
    const uint token0 = gl_LocalInvocationIndex % 8u, row0 = gl_LocalInvocationIndex / 8u;
    float sum[4][COUNT];
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        [[unroll]] for (uint t = 0u; t < COUNT; t++) sum[r][t] = 0.0;
    }
    [[unroll]] for (uint c = 0u; c < PART; c += 4u) {
        vec4 w[4];
        [[unroll]] for (uint r = 0u; r < 4u; r++) w[r] = w_s[((r * 16u + row0) * PITCH + part * PART + c) / 4u];
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const vec4 a = x_s[((t * 8u + token0) * PITCH + part * PART + c) / 4u];
            [[unroll]] for (uint r = 0u; r < 4u; r++)
                sum[r][t] = fma(w[r].w, a.w, fma(w[r].z, a.z, fma(w[r].y, a.y, fma(w[r].x, a.x, sum[r][t]))));
        }
    }
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        const vec2 scale = SCALED ? scale_s[(r * 16u + row0) * (SPAN / PART) + part] : vec2(1.0, 0.0);
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            acc[r][t] = fma(sum[r][t] * UNSCALE, scale.x, acc[r][t]);
            if (!MINIMA) continue;
            float all = 0.0;
            [[unroll]] for (uint i = 0u; i < PART / 8u; i++) all += eight_s[(t * 8u + token0) * 4u + part * (PART / 8u) + i];
            acc[r][t] = fma(-all, scale.y, acc[r][t]);
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
        decode(s, next);
        barrier();
        const Stage now = s;
        s.from += SPAN;
        if (s.from >= stages * SPAN) s = Stage(s.turn + 1u, 0u);
        fetch(expert, row0, Stage(min(s.turn, 31u), s.from), next); // on its way meanwhile
        [[unroll]] for (uint part = 0u; part < SPAN / PART; part++) {
            if (chunk_at(now, part * PART) < chunks) multiply(part);
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
