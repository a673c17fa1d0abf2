// The experts S of each token and their weights:
//   s[e] = sqrt(softplus(l[e])), sigmoid(l[e]) or softmax(l)[e]
//   S = the K largest s[e] + bias[e], the largest first, of equal ones the smaller e; or table[id]
//   v[i] = s[S[i]] / sum_S s * factor
// Bindings: 0 step ([0] tokens, [4+t] ids), 1 l [T, E] f32, 2 bias [E] f32, 3 table [V, K] i32,
//   4 chosen [T, K] u32, 5 v [T, K] f32, 6 plan (lib/rows.glsl), written for a token alone.
// Workgroup: a token.
// Shared memory: 8*E + 4*K + 32 B, at most.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint E = 256u;
layout(constant_id = 1) const uint K = 6u;
layout(constant_id = 2) const uint SCORING = 0u; // 0 sqrtsoftplus, 1 sigmoid, 2 softmax

layout(push_constant) uniform Push {
    uint hash;      // 1: by the table
    uint normalise; // 1: divide by the sum
    float factor;
    uint alone; // 1: one token, whose plan is written here
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Logits { float v[]; } logits;
layout(std430, set = 0, binding = 2) readonly buffer Bias { float v[]; } bias;
layout(std430, set = 0, binding = 3) readonly buffer Table { uint v[]; } table;
layout(std430, set = 0, binding = 4) writeonly buffer Chosen { uint v[]; } chosen;
layout(std430, set = 0, binding = 5) writeonly buffer V { float v[]; } v;
layout(std430, set = 0, binding = 6) writeonly buffer Plan { uint v[]; } plan;

const uint EIGHTS = (E + 7u) / 8u;

shared float score_s[E];
shared float key_s[EIGHTS * 8u]; // after the last one there are the smallest
shared uint chosen_s[K];

// softplus: the logarithm of 1+e by a series, that of the inverse hyperbolic tangent, since e may
// be far below 1.
float softplus(float l) {
    const float e = exp(-abs(l)), z = e / (2.0 + e), q = z * z;
    const float series = 1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0))))));
    return max(l, 0.0) + 2.0 * z * series;
}

void scores(uint t) {
    float top = logits.v[t * E], sum = 0.0;
    if (SCORING == 2u) {
        for (uint e = 1u; e < E; e++) top = max(top, logits.v[t * E + e]);
        for (uint e = 0u; e < E; e++) sum += exp(logits.v[t * E + e] - top);
    }
    for (uint e = gl_LocalInvocationIndex; e < E; e += 256u) {
        const float l = logits.v[t * E + e];
        const float s = SCORING == 0u ? sqrt(softplus(l)) : SCORING == 1u ? 1.0 / (1.0 + exp(-l)) : exp(l - top) / sum;
        score_s[e] = s;
        key_s[e] = pc.hash == 1u ? s : s + bias.v[e];
    }
    for (uint e = E + gl_LocalInvocationIndex; e < EIGHTS * 8u; e += 256u) key_s[e] = uintBitsToFloat(0xFF800000u);
}

void main() {
    const uint tid = gl_LocalInvocationIndex, t = gl_WorkGroupID.x;
    if (t >= step_.v[0]) return;
    scores(t);
    for (uint i = tid; i < K; i += 256u) chosen_s[i] = pc.hash == 1u ? min(table.v[step_.v[4u + t] * K + i], E - 1u) : i;
    barrier();
    if (pc.hash == 0u) {
        for (uint e = tid; e < E; e += 256u) {
            const float key = key_s[e];
            uint rank = 0u; // how many are larger
            for (uint o = 0u; o < EIGHTS * 8u; o += 8u) { // at a time, or each load would be waited for
                float k[8];
                [[unroll]] for (uint i = 0u; i < 8u; i++) k[i] = key_s[o + i];
                [[unroll]] for (uint i = 0u; i < 8u; i++) rank += k[i] > key || (k[i] == key && o + i < e) ? 1u : 0u;
            }
            if (rank < K) chosen_s[rank] = e;
        }
        barrier();
    }
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < K; i++) sum = sum + score_s[chosen_s[i]];
    if (pc.normalise == 0u || SCORING == 2u) sum = 1.0;
    for (uint i = tid; i < K; i += 256u) {
        chosen.v[t * K + i] = chosen_s[i];
        v.v[t * K + i] = score_s[chosen_s[i]] / sum * pc.factor;
        if (pc.alone == 1u) plan.v[4u + 3u * i] = chosen_s[i];
    }
}
