// Package vk is a small compute layer over Vulkan: it chooses a device, owns its
// memory, compiles kernels from SPIR-V, records command buffers once and submits
// them many times. It knows nothing of tensors or attention.
//
// # Objects and owners
//
// An [Instance] owns the adapters it lists. A [Device], opened from an
// [Adapter], owns its kernels, descriptor sets and pipeline cache. The caller
// owns each [Buffer] and each [Commands] and closes them; a buffer that recorded
// commands still use is freed when the last of those is closed. Functions of this
// package make these types; their zero values do nothing. A call without a device or
// a recorder returns ErrArgument.
//
// # Barriers
//
// A [Recorder] derives barriers: it remembers which byte ranges were read and
// written since the last barrier, and places a barrier before a command that would
// otherwise race. When it has remembered some hundred ranges it places one as well.
// Callers say what a command reads and writes, nothing else.
//
// # Compiling
//
// [Device.Kernel] does not wait for the driver's compiler. Kernels are compiled in the
// background, several at a time, and recording waits for the ones it needs. So a program
// first asks for every kernel that it will use and then begins to record.
//
// # The binding
//
// Handles, enumerations and calls that pass single structures come from
// github.com/goki/vulkan. Its functions that take a slice of structures free
// their C copy from a finalizer while the driver may still be reading it, so
// those calls, everything newer than Vulkan 1.0 and the loader are in abi.c, with
// arguments in C memory.
package vk
