// How partial rows of a split attention are joined, four dims an invocation: part i has the
// accumulator acc_i and the sum l_i, relative to 2^m_i. M = max m_i, w_i = exp2(m_i - M), l = sum
// w_i l_i, acc = sum w_i acc_i, over parts with l_i != 0. Define MLA_AHEAD, how many parts are
// taken at a time, before this file.
#ifndef LIB_MLA_JOIN_GLSL
#define LIB_MLA_JOIN_GLSL
#extension GL_EXT_control_flow_attributes : require
#include "mla_finish.glsl"
#include "rope_bf16.glsl"

struct MlaJoined {
    float m, l;
    vec4 acc;
};

MlaJoined mla_nothing() { return MlaJoined(MLA_FLOOR, 0.0, vec4(0.0)); }

// mla_take: parts, given by (m, l) and accumulators. What an empty one holds is dropped.
void mla_take(inout MlaJoined j, vec2 part[MLA_AHEAD], vec4 x[MLA_AHEAD]) {
    float least = j.m;
    [[unroll]] for (uint k = 0u; k < MLA_AHEAD; k++) {
        if (part[k].y != 0.0) least = max(least, part[k].x);
    }
    const float kept = exp2(max(j.m - least, -300.0));
    j.m = least;
    j.l *= kept;
    j.acc *= kept;
    [[unroll]] for (uint k = 0u; k < MLA_AHEAD; k++) {
        const float w = exp2(max(part[k].x - j.m, -300.0));
        if (part[k].y != 0.0) {
            j.l += w * part[k].y;
            j.acc += w * x[k];
        }
    }
}

// mla_raise: relative to 2^m, which is at least what it was relative to.
void mla_raise(inout MlaJoined j, float m) {
    const float kept = exp2(max(j.m - m, -300.0));
    j.m = m;
    j.l *= kept;
    j.acc *= kept;
}

// mla_add: what another invocation joined, relative to no more than 2^m.
void mla_add(inout MlaJoined j, vec2 state, vec4 acc) {
    const float w = exp2(max(state.x - j.m, -300.0));
    j.l += w * state.y;
    j.acc += w * acc;
}

// mla_words: the output in bf16; two pairs turned back by their cosines c and sines s, if they are
// to be.
uvec2 mla_words(MlaJoined j, float sink2, bool turns, uvec2 c, uvec2 s) {
    const vec4 o = j.l == 0.0 ? vec4(0.0) : j.acc * mla_factor(j.m, j.l, sink2);
    uvec2 w = uvec2(bf16_pack2(o.x, o.y), bf16_pack2(o.z, o.w));
    if (turns) {
        const vec4 back = uintBitsToFloat(uvec4(c.x, s.x, c.y, s.y)) * vec4(1.0, -1.0, 1.0, -1.0);
        w = rope_bf16_words(uvec4(w, w), back, back).xy;
    }
    return w;
}

#endif
