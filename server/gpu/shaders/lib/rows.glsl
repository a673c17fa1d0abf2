// Which rows a workgroup multiplies: some of those of one expert, or of all tokens.
//
// A plan of routed experts, as choose and group write it, is
//   [0] items; [4 + 3i] expert, first, count of item i; [order_at + p] row p
// Rows first to first+count-1 of the plan's order are an item (routed 1). For a token alone item i
// is row i, and the plan gives its expert only (routed 2). Without experts (routed 0)
// plan[rows_at] is how many rows there are, and an item is the next TOKENS of them.
#ifndef LIB_ROWS_GLSL
#define LIB_ROWS_GLSL

layout(std430, set = 0, binding = 0) readonly buffer Plan { uint v[]; } plan;

uint items() {
    if (pc.routed == 2u) return pc.stride; // which is as many
    return pc.routed == 1u ? plan.v[0] : (plan.v[pc.rows_at] + TOKENS - 1u) / TOKENS;
}

// item: its expert, the place of its first row, and the number of its rows.
void item(uint i, out uint expert, out uint first, out uint count) {
    first = i * TOKENS;
    expert = 0u;
    if (pc.routed == 1u) {
        expert = plan.v[4u + 3u * i];
        first = plan.v[5u + 3u * i];
        count = plan.v[6u + 3u * i];
    } else if (pc.routed == 2u) {
        expert = plan.v[4u + 3u * i];
        first = i;
        count = 1u;
    } else {
        count = min(TOKENS, plan.v[pc.rows_at] - first);
    }
}

// row_of: row t of an item. Those after the last repeat it.
uint row_of(uint first, uint count, uint t) {
    const uint at = first + min(t, count - 1u);
    return pc.routed == 1u ? plan.v[pc.order_at + at] : at;
}

#endif
