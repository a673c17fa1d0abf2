// What is shared with other devices and APIs: memory and timeline semaphores by handle, memory of
// the host by pointer. A handle is a file descriptor, on Windows a HANDLE.
#include "abi.h"

typedef void *(*Gipa)(void *instance, const char *name);
typedef void (*GetBuffers)(void *, const VmExternalBufferInfo *, VmExternalBufferProperties *);
typedef void (*GetSemaphores)(void *, const VmExternalSemaphoreInfo *, VmExternalSemaphoreProperties *);
typedef int (*GetHostPointer)(void *, uint32_t, const void *, VmHostPointerProperties *);
typedef int (*CreateSemaphore)(void *, const VmSemaphoreCreateInfo *, const void *, VmHandle *);
typedef void (*DestroySemaphore)(void *, VmHandle, const void *);
typedef int (*SemaphoreValue)(void *, VmHandle, uint64_t *);
typedef int (*SignalSemaphore)(void *, const VmSemaphoreSignalInfo *);
typedef int (*WaitSemaphores)(void *, const VmSemaphoreWaitInfo *, uint64_t);
#ifdef _WIN32
typedef int (*GetHandle)(void *, const VmGetHandle *, void **);
typedef int (*ImportSemaphore)(void *, const VmImportSemaphoreWin32 *);
#else
typedef int (*GetHandle)(void *, const VmGetHandle *, int *);
typedef int (*ImportSemaphore)(void *, const VmImportSemaphoreFd *);
#endif

enum { USAGE = 0x23, DEVICE_ADDRESS = 0x20000, TIMELINE = 1 }; // storage, and copies from and to it

// vm_query_external asks what can be shared of what the device has extensions for.
void vm_query_external(VmInstance *in, void *phys, VmAdapter *a) {
	GetBuffers buffers = (GetBuffers)((Gipa)in->gipa)(in->instance, "vkGetPhysicalDeviceExternalBufferProperties");
	GetSemaphores semaphores = (GetSemaphores)((Gipa)in->gipa)(in->instance, "vkGetPhysicalDeviceExternalSemaphoreProperties");
	VmExternalBufferInfo bi = {VM_STYPE_EXTERNAL_BUFFER_INFO, 0, 0, USAGE | (a->f12.bufferDeviceAddress ? DEVICE_ADDRESS : 0)};
	VmExternalBufferProperties bp = {VM_STYPE_EXTERNAL_BUFFER_PROPERTIES};
	if (buffers && a->hasMemory) {
		bi.handleType = VM_HANDLE;
		buffers(phys, &bi, &bp);
		a->memoryHandles = bp.features;
	}
	if (buffers && a->hasHost) {
		bi.handleType = VM_HANDLE_HOST;
		buffers(phys, &bi, &bp);
		a->hostMemory = bp.features;
	}
	if (semaphores && a->hasSemaphore) {
		VmSemaphoreTypeCreateInfo ti = {VM_STYPE_SEMAPHORE_TYPE_CREATE_INFO, 0, TIMELINE, 0};
		VmExternalSemaphoreInfo si = {VM_STYPE_EXTERNAL_SEMAPHORE_INFO, &ti, VM_HANDLE};
		VmExternalSemaphoreProperties sp = {VM_STYPE_EXTERNAL_SEMAPHORE_PROPERTIES};
		semaphores(phys, &si, &sp);
		a->semaphoreHandles = sp.features;
	}
}

static int get_handle(VmDevice *d, void *f, uint32_t type, VmHandle object, uintptr_t *out) {
	VmGetHandle gi = {type, 0, object, VM_HANDLE};
#ifdef _WIN32
	void *h = 0;
#else
	int h = -1;
#endif
	int r = ((GetHandle)f)(d->device, &gi, &h);
	*out = (uintptr_t)h;
	return r;
}

#ifdef _WIN32
#define GET_MEMORY VM_STYPE_MEMORY_GET_WIN32_HANDLE_INFO
#define GET_SEMAPHORE VM_STYPE_SEMAPHORE_GET_WIN32_HANDLE_INFO
#else
#define GET_MEMORY VM_STYPE_MEMORY_GET_FD_INFO
#define GET_SEMAPHORE VM_STYPE_SEMAPHORE_GET_FD_INFO
#endif

int vm_memory_handle(VmDevice *d, VmHandle memory, uintptr_t *out) {
	return get_handle(d, d->getMemoryHandle, GET_MEMORY, memory, out);
}

// vm_host_types says which types of memory a pointer can be imported as.
int vm_host_types(VmDevice *d, void *host, uint32_t *types) {
	VmHostPointerProperties hp = {VM_STYPE_MEMORY_HOST_POINTER_PROPERTIES};
	int r = ((GetHostPointer)d->getHostPointer)(d->device, VM_HANDLE_HOST, host, &hp);
	*types = hp.memoryTypeBits;
	return r;
}

int vm_create_semaphore(VmDevice *d, int exported, VmHandle *out) {
	VmExternalTypes ei = {VM_STYPE_EXPORT_SEMAPHORE_CREATE_INFO, 0, VM_HANDLE};
	VmSemaphoreTypeCreateInfo ti = {VM_STYPE_SEMAPHORE_TYPE_CREATE_INFO, exported ? &ei : 0, TIMELINE, 0};
	VmSemaphoreCreateInfo ci = {VM_STYPE_SEMAPHORE_CREATE_INFO, &ti, 0};
	return ((CreateSemaphore)d->createSemaphore)(d->device, &ci, 0, out);
}

void vm_destroy_semaphore(VmDevice *d, VmHandle semaphore) { ((DestroySemaphore)d->destroySemaphore)(d->device, semaphore, 0); }

int vm_semaphore_handle(VmDevice *d, VmHandle semaphore, uintptr_t *out) {
	return get_handle(d, d->getSemaphoreHandle, GET_SEMAPHORE, semaphore, out);
}

int vm_import_semaphore(VmDevice *d, VmHandle semaphore, uintptr_t handle) {
#ifdef _WIN32
	VmImportSemaphoreWin32 ii = {VM_STYPE_IMPORT_SEMAPHORE_WIN32_HANDLE_INFO, 0, semaphore, 0, VM_HANDLE, (void *)handle, 0};
#else
	VmImportSemaphoreFd ii = {VM_STYPE_IMPORT_SEMAPHORE_FD_INFO, 0, semaphore, 0, VM_HANDLE, (int)handle};
#endif
	return ((ImportSemaphore)d->importSemaphoreHandle)(d->device, &ii);
}

int vm_semaphore_value(VmDevice *d, VmHandle semaphore, uint64_t *value) {
	return ((SemaphoreValue)d->semaphoreValue)(d->device, semaphore, value);
}

int vm_signal_semaphore(VmDevice *d, VmHandle semaphore, uint64_t value) {
	VmSemaphoreSignalInfo si = {VM_STYPE_SEMAPHORE_SIGNAL_INFO, 0, semaphore, value};
	return ((SignalSemaphore)d->signalSemaphore)(d->device, &si);
}

int vm_wait_semaphore(VmDevice *d, VmHandle semaphore, uint64_t value, uint64_t timeout_ns) {
	VmSemaphoreWaitInfo wi = {VM_STYPE_SEMAPHORE_WAIT_INFO, 0, 0, 1, &semaphore, &value};
	return ((WaitSemaphores)d->waitSemaphores)(d->device, &wi, timeout_ns);
}
