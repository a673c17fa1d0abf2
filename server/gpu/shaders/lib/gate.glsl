// SwiGLU with a limit. Declare before the include a push block pc with limit (0: none).
#ifndef LIB_GATE_GLSL
#define LIB_GATE_GLSL

// gated: h of a row of w1 and w3 for a pair of this weight.
float gated(float a, float b, float weight) {
    if (pc.limit > 0.0) {
        a = min(a, pc.limit);
        b = clamp(b, -pc.limit, pc.limit);
    }
    return a / (1.0 + exp(-a)) * b * weight;
}

#endif
