// Moves the bits of codes to where products decode them with fewest instructions, in place.
// MXFP4: a byte has two codes of a sign and three bits, a in front of b in the row:
//   sb b2 b1 b0 sa a2 a1 a0 becomes sa b2 b1 b0 a2 a1 a0 sb
// Q2_K: a byte has codes of four words: bits 2w and 2w+1 of the bytes of a quad become word w, each
// of whose bytes has one each of four groups of four. Words of two quads take turns.
// IQ2_XXS: of every second word the signs, seven for each of four rows of the grid, are transposed:
// that of value 4h+b of row j goes to bit 8b+4h+j.
// Bindings: 0 codes, [count] quads of 16 bytes.
// Workgroup: every stride-th 256 quads, or pairs of quads.
// Shared memory: none.  Features: none.
// Constants: 0 FORMAT, as lib/weights.glsl numbers it.
#version 460
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORMAT = 4u;
layout(push_constant) uniform Push {
    uint count, stride; // quads, workgroups
} pc;
layout(std430, set = 0, binding = 0) buffer Codes { uvec4 v[]; } codes;

const uint MXFP4 = 4u, Q2_K = 8u;

// word: codes w of the bytes of a quad.
uint word(uvec4 q, uint w) {
    const uvec4 t = q >> (2u * w) & 0x03030303u;
    return t.x | t.y << 2 | t.z << 4 | t.w << 6;
}

// signs: a word of IQ2_XXS whose upper four bits, a scale, stay.
uint signs(uint word) {
    uint moved = word & 0xF0000000u;
    for (uint k = 0u; k < 7u; k++) {
        for (uint j = 0u; j < 4u; j++) moved |= ((word >> (7u * j + k)) & 1u) << (k % 4u * 8u + k / 4u * 4u + j);
    }
    return moved;
}

void main() {
    const uint quads = FORMAT == Q2_K ? 2u : 1u;
    for (uint i = gl_GlobalInvocationID.x; i < pc.count / quads; i += pc.stride * 256u) {
        const uvec4 w = codes.v[i * quads];
        if (FORMAT == MXFP4) {
            codes.v[i] = (w & 0x70707070u) | ((w & 0x07070707u) << 1) | ((w & 0x08080808u) << 4) | ((w >> 7) & 0x01010101u);
        } else if (FORMAT != Q2_K) {
            codes.v[i] = uvec4(w.x, signs(w.y), w.z, signs(w.w));
        } else {
            const uvec4 next = codes.v[2u * i + 1u];
            codes.v[2u * i] = uvec4(word(w, 0u), word(next, 0u), word(w, 1u), word(next, 1u));
            codes.v[2u * i + 1u] = uvec4(word(w, 2u), word(next, 2u), word(w, 3u), word(next, 3u));
        }
    }
}
