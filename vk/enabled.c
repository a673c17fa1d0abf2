// What the library enables on a device, what it finds there, and what it leaves of a program's.
#include "abi.h"

#include <string.h>

typedef void *(*Gipa)(void *instance, const char *name);

#ifdef _WIN32
#define MEMORY_HANDLES "VK_KHR_external_memory_win32"
#define SEMAPHORE_HANDLES "VK_KHR_external_semaphore_win32"
#define GET_MEMORY_HANDLE "vkGetMemoryWin32HandleKHR"
#define GET_SEMAPHORE_HANDLE "vkGetSemaphoreWin32HandleKHR"
#define IMPORT_SEMAPHORE_HANDLE "vkImportSemaphoreWin32HandleKHR"
#else
#define MEMORY_HANDLES "VK_KHR_external_memory_fd"
#define SEMAPHORE_HANDLES "VK_KHR_external_semaphore_fd"
#define GET_MEMORY_HANDLE "vkGetMemoryFdKHR"
#define GET_SEMAPHORE_HANDLE "vkGetSemaphoreFdKHR"
#define IMPORT_SEMAPHORE_HANDLE "vkImportSemaphoreFdKHR"
#endif

void vm_link(VmBase **tail, void *node, uint32_t type) {
	VmBase *b = node;
	b->sType = type;
	b->pNext = NULL;
	(*tail)->pNext = b;
	*tail = b;
}

// vm_link_features chains the feature structures that the device knows, for the query and again for device creation.
void vm_link_features(VmAdapter *a) {
	a->features.sType = VM_STYPE_FEATURES_2;
	a->features.pNext = NULL;
	VmBase *tail = (VmBase *)&a->features;
	vm_link(&tail, &a->f11, VM_STYPE_VULKAN_1_1_FEATURES);
	vm_link(&tail, &a->f12, VM_STYPE_VULKAN_1_2_FEATURES);
	if (a->has13) vm_link(&tail, &a->f13, VM_STYPE_VULKAN_1_3_FEATURES);
	if (a->hasCoopmat) vm_link(&tail, &a->coopmat, VM_STYPE_COOPERATIVE_MATRIX_FEATURES);
	if (a->hasBf16) vm_link(&tail, &a->bf16, VM_STYPE_SHADER_BFLOAT16_FEATURES);
	if (a->hasDot) vm_link(&tail, &a->dot, VM_STYPE_MIXED_DOT_FEATURES);
	if (a->hasFp8) vm_link(&tail, &a->fp8, VM_STYPE_SHADER_FLOAT8_FEATURES);
	if (a->hasExec) vm_link(&tail, &a->exec, VM_STYPE_PIPELINE_EXECUTABLE_FEATURES);
	if (a->hasFaultEXT) vm_link(&tail, &a->faultEXT, VM_STYPE_FAULT_FEATURES_EXT);
	if (a->hasFaultKHR) vm_link(&tail, &a->faultKHR, VM_STYPE_FAULT_FEATURES_KHR);
}

// What the library enables, of what a device has: extensions, and features by Vulkan's names.
static const struct { const char *name; size_t has; } extensions[] = {
	{"VK_KHR_cooperative_matrix", offsetof(VmAdapter, hasCoopmat)},
	{"VK_KHR_shader_bfloat16", offsetof(VmAdapter, hasBf16)},
	{"VK_VALVE_shader_mixed_float_dot_product", offsetof(VmAdapter, hasDot)},
	{"VK_EXT_shader_float8", offsetof(VmAdapter, hasFp8)},
	{"VK_KHR_pipeline_executable_properties", offsetof(VmAdapter, hasExec)},
	{"VK_KHR_portability_subset", offsetof(VmAdapter, hasPortability)},
	{"VK_EXT_device_fault", offsetof(VmAdapter, hasFaultEXT)},
	{"VK_KHR_device_fault", offsetof(VmAdapter, hasFaultKHR)},
	{MEMORY_HANDLES, offsetof(VmAdapter, hasMemory)},
	{SEMAPHORE_HANDLES, offsetof(VmAdapter, hasSemaphore)},
	{"VK_EXT_external_memory_host", offsetof(VmAdapter, hasHost)},
};
#define FEATURE(s, f) {#f, offsetof(VmAdapter, s.f)}
static const struct { const char *name; size_t at; } features[] = {
	{"shaderInt64", offsetof(VmAdapter, features.features.shaderInt64)},
	{"shaderInt16", offsetof(VmAdapter, features.features.shaderInt16)},
	FEATURE(f11, storageBuffer16BitAccess),
	FEATURE(f12, storageBuffer8BitAccess),
	FEATURE(f12, shaderFloat16),
	FEATURE(f12, shaderInt8),
	FEATURE(f12, timelineSemaphore),
	FEATURE(f12, bufferDeviceAddress),
	FEATURE(f12, vulkanMemoryModel),
	FEATURE(f12, vulkanMemoryModelDeviceScope),
	FEATURE(f12, shaderSubgroupExtendedTypes),
	FEATURE(f13, subgroupSizeControl),
	FEATURE(f13, computeFullSubgroups),
	FEATURE(f13, synchronization2),
	FEATURE(f13, shaderIntegerDotProduct),
	FEATURE(f13, maintenance4),
	FEATURE(coopmat, cooperativeMatrix),
	FEATURE(bf16, shaderBFloat16Type),
	FEATURE(bf16, shaderBFloat16CooperativeMatrix),
	FEATURE(dot, shaderMixedFloatDotProductFloat16AccFloat32),
	FEATURE(fp8, shaderFloat8),
	FEATURE(fp8, shaderFloat8CooperativeMatrix),
	FEATURE(exec, pipelineExecutableInfo),
	FEATURE(faultEXT, deviceFault),
	FEATURE(faultKHR, deviceFault),
};
#undef FEATURE
#define COUNT(list) (sizeof list / sizeof *list)
static VmBool *field(const VmAdapter *a, size_t at) { return (VmBool *)((char *)a + at); }

// vm_note_extension notes one that a device has.
void vm_note_extension(VmAdapter *a, const char *name) {
	for (size_t i = 0; i < COUNT(extensions); i++) if (!strcmp(name, extensions[i].name)) *field(a, extensions[i].has) = 1;
}

// vm_enabled says what is enabled on a device that has so much.
void vm_enabled(const VmAdapter *have, VmAdapter *out) {
	memset(out, 0, sizeof *out);
	out->has13 = have->has13;
	for (size_t i = 0; i < COUNT(extensions); i++) *field(out, extensions[i].has) = *field(have, extensions[i].has);
	out->hasCoopmat = have->hasCoopmat && have->coopmat.cooperativeMatrix;
	out->hasFaultEXT = have->hasFaultEXT && have->faultEXT.deviceFault;
	out->hasFaultKHR = have->hasFaultKHR && have->faultKHR.deviceFault;
	vm_link_features(out);
	for (size_t i = 0; i < COUNT(features); i++) *field(out, features[i].at) = *field(have, features[i].at);
}

// vm_extensions lists those of an adapter that the library uses.
uint32_t vm_extensions(const VmAdapter *a, const char **out) {
	uint32_t n = 0;
	for (size_t i = 0; i < COUNT(extensions); i++) if (*field(a, extensions[i].has)) out[n++] = extensions[i].name;
	return n;
}

// vm_feature names feature i of those, and says whether an adapter has it; NULL: there are no more.
const char *vm_feature(const VmAdapter *a, uint32_t i, VmBool *has) {
	if (i >= COUNT(features)) return NULL;
	*has = *field(a, features[i].at);
	return features[i].name;
}

static VmBool listed(const char *name, char **list, uint32_t n) {
	while (n > 0) if (!strcmp(name, list[--n])) return 1;
	return 0;
}

// vm_restrict takes from an adapter what a program's device was made without.
void vm_restrict(VmAdapter *a, uint32_t api, char **exts, uint32_t nexts, char **feats, uint32_t nfeats) {
	if (api && api < a->props.properties.apiVersion) a->props.properties.apiVersion = api;
	a->has13 = a->props.properties.apiVersion >= ((1u << 22) | (3u << 12));
	for (size_t i = 0; i < COUNT(extensions); i++) *field(a, extensions[i].has) &= listed(extensions[i].name, exts, nexts);
	for (size_t i = 0; i < COUNT(features); i++) *field(a, features[i].at) &= listed(features[i].name, feats, nfeats);
	if (!a->hasMemory) a->memoryHandles = 0;
	if (!a->hasSemaphore) a->semaphoreHandles = 0;
	if (!a->hasHost) a->hostMemory = 0;
	if (!a->hasCoopmat) a->coopmat.cooperativeMatrix = 0;
	if (!a->hasBf16) a->bf16.shaderBFloat16Type = a->bf16.shaderBFloat16CooperativeMatrix = 0;
	if (!a->hasDot) a->dot.shaderMixedFloatDotProductFloat16AccFloat32 = 0;
	if (!a->hasFp8) a->fp8.shaderFloat8 = a->fp8.shaderFloat8CooperativeMatrix = 0;
	if (!a->hasExec) a->exec.pipelineExecutableInfo = 0;
	if (!a->hasFaultEXT) a->faultEXT.deviceFault = 0;
	if (!a->hasFaultKHR) a->faultKHR.deviceFault = 0;
}

// vm_entries finds the entry points of a device on which so much is enabled.
void vm_entries(VmInstance *in, const VmAdapter *enabled, VmDevice *out) {
	Gipa gdpa = (Gipa)((Gipa)in->gipa)(in->instance, "vkGetDeviceProcAddr");
	out->allocateMemory = gdpa(out->device, "vkAllocateMemory");
	out->getBufferAddress = gdpa(out->device, "vkGetBufferDeviceAddress");
	out->updateDescriptorSets = gdpa(out->device, "vkUpdateDescriptorSets");
	out->createComputePipelines = gdpa(out->device, "vkCreateComputePipelines");
	out->cmdPipelineBarrier = gdpa(out->device, "vkCmdPipelineBarrier");
	out->cmdCopyBuffer = gdpa(out->device, "vkCmdCopyBuffer");
	out->cmdDispatchBase = gdpa(out->device, "vkCmdDispatchBase");
	out->queueSubmit = gdpa(out->device, "vkQueueSubmit");
	out->waitForFences = gdpa(out->device, "vkWaitForFences");
	out->createBuffer = gdpa(out->device, "vkCreateBuffer");
	out->createSemaphore = gdpa(out->device, "vkCreateSemaphore");
	out->destroySemaphore = gdpa(out->device, "vkDestroySemaphore");
	out->semaphoreValue = gdpa(out->device, "vkGetSemaphoreCounterValue");
	out->signalSemaphore = gdpa(out->device, "vkSignalSemaphore");
	out->waitSemaphores = gdpa(out->device, "vkWaitSemaphores");
	if (enabled->hasExec) {
		out->getStatistics = gdpa(out->device, "vkGetPipelineExecutableStatisticsKHR");
		out->getRepresentations = gdpa(out->device, "vkGetPipelineExecutableInternalRepresentationsKHR");
	}
	if (enabled->hasFaultEXT) out->getFaultEXT = gdpa(out->device, "vkGetDeviceFaultInfoEXT");
	if (enabled->hasFaultKHR) out->getFaultKHR = gdpa(out->device, "vkGetDeviceFaultReportsKHR");
	if (enabled->hasMemory) out->getMemoryHandle = gdpa(out->device, GET_MEMORY_HANDLE);
	if (enabled->hasHost) out->getHostPointer = gdpa(out->device, "vkGetMemoryHostPointerPropertiesEXT");
	if (enabled->hasSemaphore) {
		out->getSemaphoreHandle = gdpa(out->device, GET_SEMAPHORE_HANDLE);
		out->importSemaphoreHandle = gdpa(out->device, IMPORT_SEMAPHORE_HANDLE);
	}
}
