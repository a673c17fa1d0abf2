// CODES_SUM(m0, n0): the products of a step of proj_linear_codes.comp, which includes this for each
// type of elements, CODES_ELEMENT, of which tile_s has QUAD in 16 bytes.
void CODES_SUM(uint m0, uint n0) {
    const uint count = SUMMED / CM_K, lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint s = 0u; s < SUMS; s++) {
        coopmat<CODES_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> w[N_TILES][count];
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CODES_LOAD(w[j][k], tile_s, BM + n0 + j * CM_N, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane,
                           gl_CooperativeMatrixLayoutRowMajor)
            }
        }
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            coopmat<CODES_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> x[count];
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CODES_LOAD(x[k], tile_s, m0 + i * CM_M, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane,
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
