// Scores of candidate blocks. Block b has the S entries n = S*b .. S*b+S-1. Token t sees those
// below len = min(lens[t], limit), in B = ceil(len / S) blocks:
//   scores[t][b - first/S] = +inf for b = B - 1, the newest,
//                            else max over n of logits[t][n - first]
//   counts[t]  = B
//   columns[t] = entries of the min(B, keep) best blocks that the token sees
// for the entries from first on that logits have. NaN counts as -inf, and +inf of other blocks as
// the largest finite number, so that the newest block is in. Scores of blocks from B on are not
// written.
// Bindings:  0 logits [T, width] f32, by fours   1 lens [T] i32
//            2 scores [T, width/S] f32           3 counts [T] i32   4 columns [T] i32
// Workgroup: 128 blocks (x) of a token (y).  Constants: 0 BLOCK: S, a power of two.
// Shared memory: none.  Features: none.
#version 460

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint BLOCK = 8u;

layout(std430, set = 0, binding = 0) readonly buffer Logits { vec4 logits[]; };
layout(std430, set = 0, binding = 1) readonly buffer Lens { int lens[]; };
layout(std430, set = 0, binding = 2) writeonly buffer Scores { float scores[]; };
layout(std430, set = 0, binding = 3) writeonly buffer Counts { int counts[]; };
layout(std430, set = 0, binding = 4) writeonly buffer Columns { int columns[]; };

layout(push_constant) uniform Push {
    uint width; // columns of logits, a multiple of S and of 4
    uint first; // entry of column 0, likewise
    uint limit; // entries of a token at most
    uint keep;  // blocks of the selection
} pc;

const uint PART = BLOCK < 4u ? BLOCK : 4u; // entries of a block that are loaded at a time
#define NEGATIVE uintBitsToFloat(0xFF800000u)
#define POSITIVE uintBitsToFloat(0x7F800000u)
#define LARGEST uintBitsToFloat(0x7F7FFFFFu)

// largest: of x and the entries of a part, at some place in a four, that the token sees; `from` is
// the entry of the first.
float largest(float x, vec4 four, uint place, uint from, uint len) {
    for (uint i = 0u; i < PART; i++)
        if (from + i < len && !isnan(four[place + i])) x = max(x, four[place + i]);
    return x;
}

void main() {
    const uint t = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    const uint len = min(uint(max(lens[t], 0)), pc.limit), blocks = (len + BLOCK - 1u) / BLOCK;
    if (i == 0u && pc.first == 0u) {
        counts[t] = int(blocks);
        columns[t] = int(blocks <= pc.keep ? len : BLOCK * (pc.keep - 1u) + (len - 1u) % BLOCK + 1u);
    }
    const uint b = pc.first / BLOCK + i, per = pc.width / BLOCK;
    if (i >= per || b >= blocks) return;
    const uint at = (t * per + i) * BLOCK, place = BLOCK < 4u ? at % 4u : 0u;
    float x = NEGATIVE;
    for (uint j = 0u; j < BLOCK; j += PART) x = largest(x, logits[(at + j) / 4u], place, BLOCK * b + j, len);
    // TIE RULE: +inf is the newest block's alone. Equal blocks are selected by their numbers.
    scores[t * per + i] = b + 1u == blocks ? POSITIVE : min(x, LARGEST);
}
