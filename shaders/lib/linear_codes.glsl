// Steps of proj_linear_cm.comp whose codes are multiplied as they are stored, with CODES: the
// products of SUMMED numbers, which have one scale of x and one of w, are summed up before both
// multiply the sum, in f32. Elements are E4M3 (CM_CODES), or f16 that are 2^-8 of a code's number,
// which is exact; a NaN among the codes counts as 480 there.
//
// K is a multiple of 128, so steps are whole. Products are square. Behind the tile lie scales,
// [BK / SUMMED, BM] f32: of x, times w's where all rows of a workgroup have one.
#ifndef LIB_LINEAR_CODES_GLSL
#define LIB_LINEAR_CODES_GLSL

const uint SUMS = BK / SUMMED;                  // of a step
const uint CODE_UNITS = BK / 16u;               // quads of codes of a row
const uint CODE_LINES = THREADS / CODE_UNITS;   // rows that all invocations bring in at a time
const uint CODES_X = BM / CODE_LINES;
const uint CODES_W = BN / CODE_LINES;
const uint SCALES = BM * SUMS;
const uint SCALES_EACH = (SCALES + THREADS - 1u) / THREADS;
const uint SCALES_AT = (BM + BN) * PITCH;
const uint ROW_BLOCKS = SMALL_BLOCKS ? (WN + SCALE_BLOCK - 1u) / SCALE_BLOCK : 1u; // of a subgroup
const uint W_SCALES = SMALL_BLOCKS ? ROW_BLOCKS * SUMS : 1u;

uint code_line_, code_unit_;
uint code_x_[CODES_X], code_w_[CODES_W]; // quads before rows code_line_, code_line_ + CODE_LINES, ..
float w_scale_[W_SCALES];                // of SMALL_BLOCKS and this step: [SUMS, ROW_BLOCKS]

// What comes for a step.
struct Codes {
    uvec4 x[CODES_X];
    uvec4 w[CODES_W];
    uint x_scale[SCALES_EACH];
    uint w_scale[W_SCALES]; // of this subgroup's rows; or of all rows of the workgroup
};

void fetch_codes(uint step, uint n0, out Codes f) {
    const uint u = step * CODE_UNITS + code_unit_;
    [[unroll]] for (uint i = 0u; i < CODES_X; i++) f.x[i] = LinearRead4(pc.x_addr + uint64_t(code_x_[i] + u) * 16u).v;
    [[unroll]] for (uint i = 0u; i < CODES_W; i++) f.w[i] = LinearRead4(pc.w_addr + uint64_t(code_w_[i] + u) * 16u).v;
    [[unroll]] for (uint i = 0u; i < SCALES_EACH; i++) {
        const uint at = gl_LocalInvocationIndex + i * THREADS;
        f.x_scale[i] = x_block_bits(min(t0_ + at % BM, pc.tokens - 1u), group_, step * BK + at / BM % SUMS * SUMMED);
    }
    [[unroll]] for (uint i = 0u; i < W_SCALES; i++) {
        const uint row = SMALL_BLOCKS ? min(row0_ + n0 + i % ROW_BLOCKS * SCALE_BLOCK, pc.groups * pc.n - 1u) : row0_;
        f.w_scale[i] = w_block_bits(row, step * BK + i / ROW_BLOCKS * SUMMED);
    }
}

#ifndef CM_CODES
// linear_placed: eight codes times 2^-8, in an order that is that of x and w alike.
uvec4 linear_placed(uvec2 w) { return uvec4(linear_e4m3(w.x << 8), linear_e4m3(w.x), linear_e4m3(w.y << 8), linear_e4m3(w.y)); }
#endif

void keep_codes(Codes f) {
    [[unroll]] for (uint i = 0u; i < CODES_X + CODES_W; i++) {
        const uvec4 q = i < CODES_X ? f.x[i] : f.w[i - CODES_X];
        const uint row = i < CODES_X ? code_line_ + i * CODE_LINES : BM + code_line_ + (i - CODES_X) * CODE_LINES;
#ifdef CM_CODES
        tile_s[row * PITCH + code_unit_] = q;
#else
        CM_KEEP_ROW(tile_s, row * PITCH + code_unit_ * 2u, row, linear_placed(q.xy))
        CM_KEEP_ROW(tile_s, row * PITCH + code_unit_ * 2u + 1u, row, linear_placed(q.zw))
#endif
    }
    [[unroll]] for (uint i = 0u; i < SCALES_EACH; i++) {
        const uint at = gl_LocalInvocationIndex + i * THREADS;
        const float scale = uintBitsToFloat(f.x_scale[i]) * (SMALL_BLOCKS ? 1.0 : uintBitsToFloat(f.w_scale[0]));
        if (SCALES % THREADS == 0u || at < SCALES) tile_s[SCALES_AT + at / 4u][at % 4u] = floatBitsToUint(scale);
    }
    [[unroll]] for (uint i = 0u; i < W_SCALES; i++) w_scale_[i] = uintBitsToFloat(f.w_scale[i]);
}

// sum_codes: the products of a step. Rows of w are a matrix's rows, tokens its columns: where a
// lane holds numbers of one column, they have one scale.
void sum_codes(uint m0, uint n0) {
    const uint count = SUMMED / CM_K;
    [[unroll]] for (uint s = 0u; s < SUMS; s++) {
        CM_A w[N_TILES][count];
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CM_LOAD_ROWS(w[j][k], tile_s, BM + n0 + j * CM_N, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane_(),
                             gl_CooperativeMatrixLayoutRowMajor)
            }
        }
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            CM_B x[count];
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CM_LOAD_ROWS(x[k], tile_s, m0 + i * CM_M, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane_(),
                             gl_CooperativeMatrixLayoutColumnMajor)
            }
            CM_C scale; // stride 0: every row the same
            coopMatLoad(scale, tile_s, SCALES_AT + (s * BM + m0 + i * CM_M) / 4u, 0u, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
                CM_C sum = CM_C(0.0);
                [[unroll]] for (uint k = 0u; k < count; k++) sum = coopMatMulAdd(w[j][k], x[k], sum);
                const float more = SMALL_BLOCKS ? w_scale_[s * ROW_BLOCKS + j * CM_N / SCALE_BLOCK] : 1.0;
                [[unroll]] for (uint e = 0u; e < sum.length(); e++) acc[i][j][e] += sum[e] * (scale[e] * more);
            }
        }
    }
}

// multiply_codes: steps `step` to `last`.
void multiply_codes(uint step, uint last, uint m0, uint n0) {
    code_line_ = gl_LocalInvocationIndex / CODE_UNITS;
    code_unit_ = gl_LocalInvocationIndex % CODE_UNITS;
    [[unroll]] for (uint i = 0u; i < CODES_X; i++) {
        code_x_[i] = x_row(min(t0_ + code_line_ + i * CODE_LINES, pc.tokens - 1u), group_) * (pc.k / 16u);
    }
    [[unroll]] for (uint i = 0u; i < CODES_W; i++) {
        code_w_[i] = clamp(row0_ + code_line_ + i * CODE_LINES, group_ * pc.n, (group_ + 1u) * pc.n - 1u) * (pc.k / 16u);
    }
    Codes f;
    fetch_codes(step, n0, f);
    keep_codes(f);
    [[dont_unroll]] for (; step < last; step++) {
        fetch_codes(step + 1u, n0, f);
        barrier();
        sum_codes(m0, n0);
        barrier();
        keep_codes(f);
    }
    barrier();
    sum_codes(m0, n0);
}

#endif
