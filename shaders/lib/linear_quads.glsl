// What an invocation of the kernels without matrices holds of ROWS rows, and its sums.
#ifndef LIB_LINEAR_QUADS_GLSL
#define LIB_LINEAR_QUADS_GLSL

float acc[ROWS][TOKENS];

// The quad at k of each row as it is stored.
struct Quads {
    uvec4 w[ROWS];
    uvec2 beside[ROWS]; // ROWWISE: w_beside
    uint scale;         // STEP_SUMS: bits of the scale, one for all rows: they begin at a multiple of ROWS, and so lie in one block
};

#endif
