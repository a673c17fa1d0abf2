//go:build linux

// Package cuda is as much of CUDA's driver as a test needs that shares memory and semaphores with
// it: libcuda.so.1 is opened when it is asked for, so that nothing of CUDA is needed to build.
// Names and layouts are those of cuda.h.
package cuda

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef union { int fd; struct { void *handle; const void *name; } win32; } Handle;
typedef struct { int type; Handle handle; unsigned long long size; unsigned flags, reserved[16]; } MemoryDesc;
typedef struct { unsigned long long offset, size; unsigned flags, reserved[16]; } BufferDesc;
typedef struct { int type; Handle handle; unsigned flags, reserved[16]; } SemaphoreDesc;
typedef struct {
	struct { unsigned long long fence; void *sci; unsigned long long key; unsigned reserved[12]; } params;
	unsigned flags, reserved[16];
} SemaphoreParams; // of a signal; those of a wait have timeoutMs at the place of reserved[0]

// CUDA_EXTERNAL_MEMORY_HANDLE_DESC and the like have these sizes.
_Static_assert(sizeof(MemoryDesc) == 104, "memory");
_Static_assert(sizeof(BufferDesc) == 88, "buffer");
_Static_assert(sizeof(SemaphoreDesc) == 96, "semaphore");
_Static_assert(sizeof(SemaphoreParams) == 144, "parameters");
enum { OPAQUE_FD = 1, TIMELINE_SEMAPHORE_FD = 9, DEDICATED = 1 };

static void *lib;
static char failed[128];

// call finds a function and calls it; what does not return 0 is noted by its name.
#define CALL(name, type, ...) do { \
	int (*f)type = (int (*)type)dlsym(lib, name); \
	int r = f ? f(__VA_ARGS__) : -1; \
	if (r) { snprintf(failed, sizeof failed, "%s: CUresult %d", name, r); return r; } \
} while (0)

static const char *cu_failed(void) { return failed; }

static int cu_load(void) { return lib || (lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) ? 0 : -1; }

static int cu_count(int *n) {
	CALL("cuInit", (unsigned), 0);
	CALL("cuDeviceGetCount", (int *), n);
	return 0;
}

static int cu_uuid(int i, int *device, uint8_t *uuid) {
	CALL("cuDeviceGet", (int *, int), device, i);
	CALL("cuDeviceGetUuid_v2", (uint8_t *, int), uuid, *device);
	return 0;
}

static int cu_open(int device, void **context, void **stream) {
	CALL("cuDevicePrimaryCtxRetain", (void **, int), context, device);
	CALL("cuCtxSetCurrent", (void *), *context);
	CALL("cuStreamCreate", (void **, unsigned), stream, 1); // not ordered with the default stream
	return 0;
}

static int cu_close(int device, void *stream) {
	CALL("cuStreamDestroy_v2", (void *), stream);
	CALL("cuDevicePrimaryCtxRelease_v2", (int), device);
	return 0;
}

static int cu_import_memory(int fd, unsigned long long allocated, int dedicated, unsigned long long size, void **memory, uint64_t *at) {
	MemoryDesc d = {OPAQUE_FD, {.fd = fd}, allocated, dedicated ? DEDICATED : 0};
	CALL("cuImportExternalMemory", (void **, const MemoryDesc *), memory, &d);
	BufferDesc b = {0, size};
	CALL("cuExternalMemoryGetMappedBuffer", (uint64_t *, void *, const BufferDesc *), at, *memory, &b);
	return 0;
}

static int cu_free_memory(void *memory, uint64_t at) {
	CALL("cuMemFree_v2", (uint64_t), at);
	CALL("cuDestroyExternalMemory", (void *), memory);
	return 0;
}

static int cu_import_semaphore(int fd, void **semaphore) {
	SemaphoreDesc d = {TIMELINE_SEMAPHORE_FD, {.fd = fd}};
	CALL("cuImportExternalSemaphore", (void **, const SemaphoreDesc *), semaphore, &d);
	return 0;
}

static int cu_free_semaphore(void *semaphore) {
	CALL("cuDestroyExternalSemaphore", (void *), semaphore);
	return 0;
}

static int cu_signal(void *stream, void *semaphore, unsigned long long value) {
	SemaphoreParams p = {{value}};
	CALL("cuSignalExternalSemaphoresAsync", (void *const *, const SemaphoreParams *, unsigned, void *), &semaphore, &p, 1, stream);
	return 0;
}

static int cu_wait(void *stream, void *semaphore, unsigned long long value) {
	SemaphoreParams p = {{value}};
	CALL("cuWaitExternalSemaphoresAsync", (void *const *, const SemaphoreParams *, unsigned, void *), &semaphore, &p, 1, stream);
	return 0;
}

static int cu_write(void *stream, uint64_t to, const void *from, size_t n) {
	CALL("cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *), to, from, n, stream);
	return 0;
}

static int cu_read(void *stream, void *to, uint64_t from, size_t n) {
	CALL("cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *), to, from, n, stream);
	return 0;
}

static int cu_copy(void *stream, uint64_t to, uint64_t from, size_t n) {
	CALL("cuMemcpyDtoDAsync_v2", (uint64_t, uint64_t, size_t, void *), to, from, n, stream);
	return 0;
}

static int cu_fill(void *stream, uint64_t to, unsigned word, size_t n) {
	CALL("cuMemsetD32Async", (uint64_t, unsigned, size_t, void *), to, word, n, stream);
	return 0;
}

static int cu_synchronize(void *stream) {
	CALL("cuStreamSynchronize", (void *), stream);
	return 0;
}
*/
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/vk/share"
)

// ErrNoCUDA: there is no libcuda.so.1, or no device with the UUID.
var ErrNoCUDA = errors.New("no CUDA")

// Device is one of CUDA's devices, with a stream. Its methods are called from one thread
// (runtime.LockOSThread), after Open from the same.
type Device struct {
	device          C.int
	context, stream unsafe.Pointer
}

func result(r C.int) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("cuda: %s", C.GoString(C.cu_failed()))
}

// Open opens the device that Vulkan calls by this UUID (vk.Adapter.UUID).
func Open(uuid string) (*Device, error) {
	if C.cu_load() != 0 {
		return nil, fmt.Errorf("%w: libcuda.so.1 cannot be opened", ErrNoCUDA)
	}
	var n C.int
	if err := result(C.cu_count(&n)); err != nil {
		return nil, err
	}
	for i := range n {
		d := &Device{}
		var id [16]byte
		if err := result(C.cu_uuid(i, &d.device, (*C.uint8_t)(&id[0]))); err != nil {
			return nil, err
		}
		if hex.EncodeToString(id[:]) != uuid {
			continue
		}
		var context, stream unsafe.Pointer
		err := result(C.cu_open(d.device, &context, &stream))
		d.context, d.stream = context, stream
		return d, err
	}
	return nil, fmt.Errorf("%w: none of %d devices has the UUID %s", ErrNoCUDA, n, uuid)
}

// Close ends the stream and the context.
func (d *Device) Close() error { return result(C.cu_close(d.device, d.stream)) }

// Memory is memory of Vulkan's as CUDA has it.
type Memory struct {
	of unsafe.Pointer
	at C.uint64_t
}

// Import imports a buffer's memory. Without an error it takes the handle.
func (d *Device) Import(x share.Exported) (m Memory, err error) {
	dedicated := C.int(0)
	if x.Dedicated {
		dedicated = 1
	}
	var of unsafe.Pointer
	var at C.uint64_t
	err = result(C.cu_import_memory(C.int(x.Handle), C.ulonglong(x.Allocated), dedicated, C.ulonglong(x.Size), &of, &at))
	return Memory{of, at}, err
}

// Free gives the memory back.
func (m Memory) Free() error { return result(C.cu_free_memory(m.of, m.at)) }

// Semaphore is a semaphore of Vulkan's as CUDA has it.
type Semaphore struct{ of unsafe.Pointer }

// ImportSemaphore imports a timeline semaphore. Without an error it takes the handle.
func (d *Device) ImportSemaphore(x share.Exported) (Semaphore, error) {
	var of unsafe.Pointer
	err := result(C.cu_import_semaphore(C.int(x.Handle), &of))
	return Semaphore{of}, err
}

// Free gives the semaphore back.
func (s Semaphore) Free() error { return result(C.cu_free_semaphore(s.of)) }

// Signal has the stream give the semaphore a value, after what it does before.
func (d *Device) Signal(s Semaphore, value uint64) error {
	return result(C.cu_signal(d.stream, s.of, C.ulonglong(value)))
}

// Wait has the stream wait for the semaphore to have a value.
func (d *Device) Wait(s Semaphore, value uint64) error {
	return result(C.cu_wait(d.stream, s.of, C.ulonglong(value)))
}

// Write copies from the host in the stream: the bytes must stay until Synchronize.
func (d *Device) Write(to Memory, from []byte) error {
	return result(C.cu_write(d.stream, to.at, unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from))))
}

// Read copies to the host in the stream: the bytes are there after Synchronize.
func (d *Device) Read(to []byte, from Memory) error {
	return result(C.cu_read(d.stream, unsafe.Pointer(unsafe.SliceData(to)), from.at, C.size_t(len(to))))
}

// Copy copies n bytes in the stream.
func (d *Device) Copy(to, from Memory, n int) error {
	return result(C.cu_copy(d.stream, to.at, from.at, C.size_t(n)))
}

// Fill writes n times a word in the stream.
func (d *Device) Fill(to Memory, word uint32, n int) error {
	return result(C.cu_fill(d.stream, to.at, C.uint(word), C.size_t(n)))
}

// Synchronize waits for the stream.
func (d *Device) Synchronize() error { return result(C.cu_synchronize(d.stream)) }
