package sequences

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void trim(void) { malloc_trim(0); }
// #else
// static void trim(void) {}
// #endif
import "C"

// trim gives free pages of C's heap back to the system. Without it they count as resident, and a
// driver that allocates in many threads leaves more and more of them.
func trim() { C.trim() }
