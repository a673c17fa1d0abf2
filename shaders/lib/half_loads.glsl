// Loads of 16 bytes of shared memory that neighbouring invocations have side by side, for kernels
// that only RADV gets. It loads 8 bytes a lane, of 16 lanes at a time: all first halves would leave
// half of the 32 banks idle. So every second eight invocations begin with the second half, and have
// the halves exchanged.
#ifndef LIB_HALF_LOADS_GLSL
#define LIB_HALF_LOADS_GLSL

#define HALF_FIRST(lane) ((lane) / 8u % 2u)

// HALF_LOAD: array[at], with its halves exchanged in every second eight of `lane`.
#define HALF_LOAD(array, at, lane) \
    uvec4(array[at][HALF_FIRST(lane) * 2u], array[at][HALF_FIRST(lane) * 2u + 1u], \
          array[at][(HALF_FIRST(lane) ^ 1u) * 2u], array[at][(HALF_FIRST(lane) ^ 1u) * 2u + 1u])

// HALF_BACK: what came of it, exchanged back.
#define HALF_BACK(v, lane) (HALF_FIRST(lane) == 0u ? (v) : (v).zwxy)

#endif
