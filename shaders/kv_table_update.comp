// Update block tables: for i < min(count, capacity), with word, value = list[i],
//   table[word] = value        where word < words
// The words of a list differ, so that no order matters.
// Bindings:  0 list [1 + 2*capacity] u32: count, then word and value of each
//            1 table [words] i32, written in part
// Workgroup: 64 entries of the list, one per invocation.  Constants: none.
// Shared memory: 0.  Features: none.
#version 460
layout(local_size_x = 64) in;

layout(std430, set = 0, binding = 0) readonly buffer List { uint list[]; };
layout(std430, set = 0, binding = 1) writeonly buffer Table { int table[]; };

layout(push_constant) uniform Push {
    uint capacity; // entries that the list has room for
    uint words;    // of the table
} pc;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= pc.capacity) return;
    // Asked for at once: in the host's memory, where a step's list is, each answer takes long.
    uint count = list[0], word = list[1u + 2u * i], value = list[2u + 2u * i];
    if (i < count && word < pc.words) table[word] = int(value);
}
