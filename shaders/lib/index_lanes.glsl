// How the lanes of a subgroup hold the matrices of idx_logits_lanes.comp and
// idx_logits_prompt.comp: P lanes have a row of a tile of CM_M keys or of CM_N heads, each a part
// of it, and BASES lanes the same part of different rows. Constants: 7 HG, heads rounded up to N; 8
// P.
#ifndef LIB_INDEX_LANES_GLSL
#define LIB_INDEX_LANES_GLSL
#include "cm_shape.glsl"

layout(constant_id = 7) const uint HG = 64u;
layout(constant_id = 8) const uint P = 4u;

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint HEAD_TILES = HG / CM_N;
const uint STEPS = INDEX_DIM / CM_K;
const uint BASES = SUBGROUP / P;       // lanes that hold the same part of different rows
const uint KEYS = CM_M / BASES;        // of a tile that a lane holds; at most P
const uint HEADS = CM_N / BASES;       // of a head tile that a lane holds
const uint EACH = CM_K / P;            // K positions of a row in a lane
const uint COLUMNS = CM_N / P;         // of C, in a lane

// Loads that are volatile, or a compiler moves them down to where their results are used, where
// they wait for memory.
layout(buffer_reference, std430, buffer_reference_align = 4) volatile readonly buffer Held1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) volatile readonly buffer Held2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer Held4 { uvec4 v; };

uint part_, base_;

uint row_of(uint j) { return base_ + j * BASES; }

// The block of an MXFP4 row that a lane's part lies in.
uint block_of() { return part_ * 4u / P; }

#endif
