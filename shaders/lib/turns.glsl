// Workgroups of one launch that wait for each other, in place of a barrier between launches: what does not depend on the others, such as the first
// weights, is on its way meanwhile. Include lib/kv_page.glsl first; needs KV_DA.
//
// The work of a launch is numbered so that what is waited for has smaller numbers than what waits. A workgroup takes the next number when it
// begins, not that of gl_WorkGroupID, in which order nothing says workgroups begin. So whoever waits, waits for workgroups that have begun, and
// of those every device that is known here lets each go on; how many fit the device does not matter. Who does which work changes nothing in it.
// A launch may be divided into pieces that run one after the other: numbers go on from piece to piece.
//
//   turn_take()         the workgroup's number
//   turn_done(s)        what the workgroup has written is there for whoever waits for stage s
//   turn_wait(s, n)     until n workgroups are done with stage s
//   turn_end(s, n, m)   of the n workgroups of the last stage s, which all have waited, any time after that: the last one sets the m counters to 0 again
//
// All invocations call each of them, once for a stage. Memory that one stage writes and another reads is in blocks that both declare `coherent`; with
// vulkanMemoryModel no device scope is needed, as all are of one queue. Before: the push constant KV_ADDR turns_addr, of 1 + stages u32 that are 0
// before and after a launch.
//
// Looks are apart by barriers: they spare memory the looks of hundreds of workgroups, and Mesa's CPU driver up to 23.0 ends any loop after 65535 rounds.
#ifndef LIB_TURNS_GLSL
#define LIB_TURNS_GLSL

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Turns { uint taken; uint done[]; };

shared uint turn_s, turn_there_s;

uint turn_take() {
    if (gl_LocalInvocationIndex == 0u) turn_s = atomicAdd(Turns(pc.turns_addr).taken, 1u);
    barrier();
    return turn_s;
}

void turn_done(uint stage) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0u) atomicAdd(Turns(pc.turns_addr).done[stage], 1u);
}

void turn_wait(uint stage, uint count) {
    bool there = false;
    while (!there) {
        if (gl_LocalInvocationIndex == 0u) turn_there_s = atomicAdd(Turns(pc.turns_addr).done[stage], 0u);
        barrier();
        there = turn_there_s >= count;
        barrier();
        barrier();
        barrier();
    }
    memoryBarrierBuffer();
}

void turn_end(uint stage, uint count, uint stages) {
    if (gl_LocalInvocationIndex != 0u || atomicAdd(Turns(pc.turns_addr).done[stage], 1u) != count - 1u) return;
    Turns(pc.turns_addr).taken = 0u;
    for (uint s = 0u; s < stages; s++) Turns(pc.turns_addr).done[s] = 0u;
}

#endif
