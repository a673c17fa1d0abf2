// How LANES lanes that share a row put chunks of it into fragments. See lib/linear_lanes.glsl.
#ifndef LIB_LINEAR_FRAGMENTS_GLSL
#define LIB_LINEAR_FRAGMENTS_GLSL

const uint VEC = WEIGHT_QUAD;
const uint PAIRS = VEC / 2u;                    // words of two elements that a quad becomes
const uint CHUNK = LANES * VEC;
const uint FRAGS = CHUNK / CM_K;
const uint FRAG_EACH = CM_K / LANES;            // elements of a lane in a fragment's row
const uint FRAG_PAIRS = FRAG_EACH / 2u;         // words
const uint LINES = SUBGROUP / LANES;            // rows that a subgroup reads at a time
const uint W_EACH = CM_M / LINES;               // rows of a lane
const uint B_EACH = CM_N / LINES;               // columns of a lane in a fragment

#endif
