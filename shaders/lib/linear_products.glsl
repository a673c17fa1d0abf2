// The products of quads q with the numbers x of each token that belong to them, times x_factor and
// the weights' scales, added to acc: the end of a function that has declared block[ROWS][BLOCKS].
// These are statements, since as a function for both kernels they made bf16 products of two tokens
// take 70 us in proj_linear_tokens1to8 instead of 51.
[[unroll]] for (uint r = 0u; r < ROWS; r++) {
    [[unroll]] for (uint b = 0u; b < BLOCKS; b++)
        block[r][b] = ROWWISE ? weight_factor(q.beside[r], b) : STEP_SUMS ? uintBitsToFloat(q.scale) : 1.0;
}
[[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
    float part[ROWS][TOKENS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) part[r][t] = UNSCALED ? acc[r][t] : 0.0;
    }
    [[unroll]] for (uint i = 0u; i < BLOCK_UNITS; i++) {
        const uint u = b * BLOCK_UNITS + i;
        vec4 wa[ROWS], wb[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) weight8(q.w[r], u, q.beside[r], wa[r], wb[r]);
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            vec4 xa, xb;
            act8(x[t][ACT == ACT_BF16 ? u : 0u], u, xa, xb);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                [[unroll]] for (uint e = 0u; e < 4u; e++) part[r][t] += wa[r][e] * xa[e];
                [[unroll]] for (uint e = 0u; e < 4u; e++) part[r][t] += wb[r][e] * xb[e];
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            if (UNSCALED) acc[r][t] = part[r][t];
            else acc[r][t] += part[r][t] * x_factor[t] * block[r][b];
        }
    }
}
