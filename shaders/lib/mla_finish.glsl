// The last step of sparse attention, shared by every kernel that can end a row.
// Scores live in base 2: m is the reference exponent that l and the accumulator
// are relative to, l = sum of exp2(s_j - m), and the sink joins only here:
//
//   out = acc / (l + exp2(sink - m)),  lse = ln 2 * (m + log2 l);  out = 0 and lse = +inf if l = 0
//
// Infinities are told apart on the bits and written as bits: a device need not
// preserve them in arithmetic.
#ifndef LIB_MLA_FINISH_GLSL
#define LIB_MLA_FINISH_GLSL

const float MLA_LOG2E = 1.44269504;
const float MLA_LN2 = 0.69314718;
const float MLA_FLOOR = -1e30;   // start of every running maximum: finite, so that no inf - inf arises
const float MLA_NO_SINK = -1e29; // a sink that adds nothing to any real denominator

// mla_sink: an f32 sink, given by its bits, in base 2 and within +-1e29. A sink
// of NaN counts as none.
float mla_sink(uint bits) {
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) {
        return bits == 0x7F800000u ? -MLA_NO_SINK : MLA_NO_SINK;
    }
    return clamp(clamp(uintBitsToFloat(bits), -1e28, 1e28) * MLA_LOG2E, MLA_NO_SINK, -MLA_NO_SINK);
}

// mla_factor: what the accumulator is multiplied by. Both exponents are taken
// relative to the larger of m and the sink, so neither can overflow.
float mla_factor(float m, float l, float sink2) {
    if (l == 0.0) return 0.0;
    float top = max(m, sink2);
    float own = exp2(max(m - top, -300.0));
    return own / (l * own + exp2(max(sink2 - top, -300.0)));
}

// mla_lse: bits of the natural logarithm of sum exp, the sink not included.
uint mla_lse(float m, float l) {
    return l == 0.0 ? 0x7F800000u : floatBitsToUint((m + log2(l)) * MLA_LN2);
}

// mla_max_logit: bits of the largest scaled score in natural units.
uint mla_max_logit(float m_max, float l) {
    return l == 0.0 ? 0xFF800000u : floatBitsToUint(m_max * MLA_LN2);
}

#endif
