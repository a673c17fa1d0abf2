// Package vk is a small compute layer over Vulkan: it chooses a device, owns its
// memory, compiles kernels from SPIR-V, records command buffers once and submits
// them many times. It knows nothing of tensors or attention.
//
// # Objects and owners
//
// An [Instance] owns the adapters it lists. A [Device], opened from an
// [Adapter], owns its kernels, descriptor sets and pipeline cache. The caller
// owns each [Buffer] and each [Commands] and closes them; a buffer that recorded
// commands still use is freed when the last of those is closed. Zero values of
// these types are of no use: functions here return them. What is called without a
// device or a recorder returns ErrArgument.
//
// # Barriers
//
// A [Recorder] derives barriers: it remembers which byte ranges were read and
// written since the last barrier and places one before a command that would
// otherwise race, and one where there are more ranges than it remembers, some
// hundred. Callers say what a command reads and writes, nothing else.
//
// # Compiling
//
// [Device.Kernel] does not wait for the driver's compiler: kernels are compiled behind
// the caller, several at a time, and recording waits for those that it needs. So a
// program asks for all that it is going to use, and then begins to record.
//
// # The binding
//
// Handles, enumerations and calls that pass single structures come from
// github.com/goki/vulkan. Its functions that take a slice of structures free
// their C copy from a finalizer while the driver may still be reading it, so
// those calls, everything newer than Vulkan 1.0 and the loader are in abi.c, with
// arguments in C memory.
package vk
