// How the 128 invocations of proj_linear_tokens1to8.comp and proj_linear_chain.comp share rows:
// TEAMS teams of LANES have ROWS rows each, and read VEC numbers of a row at a time for TOKENS
// tokens. Their sums meet in sum_s and pair_s.
#ifndef LIB_LINEAR_ROWS_GLSL
#define LIB_LINEAR_ROWS_GLSL

const uint VEC = WEIGHT_QUAD;
const uint UNITS = VEC / 8u;
const uint X_QUADS = ACT == ACT_BF16 ? UNITS : 1u;
const uint X_VEC = ACT_QUAD;
const uint BLOCK_UNITS = EIGHTS_PER_SCALE; // units of 8 that share a scale
const uint BLOCKS = UNITS / BLOCK_UNITS;
const uint SUMS = ROWS * TOKENS;
const uint TEAMS = 128u / LANES;
const uint PITCH = 129u;
const uint PAIRS = TEAMS * SUMS / 2u; // of outputs
const uint PARTS = 128u / PAIRS;      // invocations that sum a pair

shared float sum_s[SUMS * PITCH];
shared vec2 pair_s[128];

#endif
