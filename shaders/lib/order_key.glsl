// The order of the selection of logits: larger first, -0 as +0, NaN as -Inf.
#ifndef LIB_ORDER_KEY_GLSL
#define LIB_ORDER_KEY_GLSL

// order_key: the bits of a float to an unsigned number in that order, at least 0x007FFFFF.
uint order_key(uint bits) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x007FFFFFu;
    if (bits == 0x80000000u) bits = 0u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// order_key_of_top: that of the float whose top idx_logits_lanes.comp wrote, 0 of none.
uint order_key_of_top(uint top) { return top == 0xFFFFFFFFu ? 0x80000000u : top ^ 0x80000000u; }

#endif
