#include "abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*Gipa)(void *instance, const char *name);
typedef int (*EnumLayers)(uint32_t *, VmLayerProperties *);
typedef int (*CreateInstance)(const VmInstanceCreateInfo *, const void *, void **);
typedef int (*CreateMessenger)(void *, const VmDebugMessengerCreateInfo *, const void *, VmHandle *);
typedef void (*DestroyMessenger)(void *, VmHandle, const void *);
typedef int (*EnumPhysical)(void *, uint32_t *, void **);
typedef void (*GetProps2)(void *, VmProperties2 *);
typedef void (*GetFeatures2)(void *, VmFeatures2 *);
typedef void (*GetMemory)(void *, VmMemoryProperties *);
typedef void (*GetQueues)(void *, uint32_t *, VmQueueFamilyProperties *);
typedef int (*EnumInstanceExts)(const char *, uint32_t *, VmExtensionProperties *);
typedef int (*EnumDeviceExts)(void *, const char *, uint32_t *, VmExtensionProperties *);
typedef int (*GetCoopMat)(void *, uint32_t *, VmCoopMatProperties *);
typedef int (*CreateDevice)(void *, const VmDeviceCreateInfo *, const void *, void **);
typedef int (*CreateBuffer)(void *, const VmBufferCreateInfo *, const void *, VmHandle *);
typedef int (*AllocateMemory)(void *, const VmMemoryAllocateInfo *, const void *, VmHandle *);
typedef uint64_t (*GetAddress)(void *, const VmBufferDeviceAddressInfo *);
typedef void (*UpdateSets)(void *, uint32_t, const VmWriteDescriptorSet *, uint32_t, const void *);
typedef int (*CreatePipelines)(void *, VmHandle, uint32_t, const VmComputePipelineCreateInfo *, const void *, VmHandle *);
typedef void (*CmdBarrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, const VmMemoryBarrier *, uint32_t, const void *, uint32_t, const void *);
typedef void (*CmdDispatchBase)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t);
typedef void (*CmdCopy)(void *, VmHandle, VmHandle, uint32_t, const VmBufferCopy *);
typedef int (*QueueSubmit)(void *, uint32_t, const VmSubmitInfo *, VmHandle);
typedef int (*GetStatistics)(void *, const VmPipelineExecutableInfo *, uint32_t *, VmPipelineExecutableStatistic *);
typedef void (*GetMemory2)(void *, VmMemoryProperties2 *);
typedef int (*GetFaultEXT)(void *, VmFaultCounts *, VmFaultInfoEXT *);
typedef int (*GetFaultKHR)(void *, uint64_t, uint32_t *, VmFaultInfoKHR *);
typedef int (*GetRepresentations)(void *, const VmPipelineExecutableInfo *, uint32_t *, VmPipelineExecutableRepresentation *);
typedef int (*WaitFences)(void *, uint32_t, const VmHandle *, VmBool, uint64_t);

#define VM_INCOMPLETE 5
#define VM_OUT_OF_HOST_MEMORY (-1)
#define VM_INITIALIZATION_FAILED (-3)

static void *entry(void *gipa, void *instance, const char *name) { return ((Gipa)gipa)(instance, name); }

// ENUMERATE is the body of a function that gets a list by `call`, which takes n and *out: first the
// number of its elements, then these, and again if there were more by then.
#define ENUMERATE(call)                                                               \
	int r;                                                                        \
	*out = NULL;                                                                  \
	*n = 0;                                                                       \
	if (!f) return VM_INITIALIZATION_FAILED;                                      \
	do {                                                                          \
		free(*out);                                                           \
		*out = NULL;                                                          \
		if ((r = call) < 0 || *n == 0) return r;                              \
		if (!(*out = calloc(*n, sizeof **out))) return VM_OUT_OF_HOST_MEMORY; \
		r = call;                                                             \
	} while (r == VM_INCOMPLETE);                                                 \
	return r

int vm_instance_layers(void *gipa, VmLayerProperties **out, uint32_t *n) {
	EnumLayers f = (EnumLayers)entry(gipa, NULL, "vkEnumerateInstanceLayerProperties");
	ENUMERATE(f(n, *out));
}

int vm_instance_extensions(void *gipa, const char *layer, VmExtensionProperties **out, uint32_t *n) {
	EnumInstanceExts f = (EnumInstanceExts)entry(gipa, NULL, "vkEnumerateInstanceExtensionProperties");
	ENUMERATE(f(layer, n, *out));
}

extern void vkmlaDebugMessage(uintptr_t user, uint32_t severity, uint32_t types, char *id, char *text);

static VmBool on_message(uint32_t severity, uint32_t types, const void *data, void *user) {
	const VmDebugCallbackData *d = data;
	vkmlaDebugMessage((uintptr_t)user, severity, types, (char *)(d->pMessageIdName ? d->pMessageIdName : ""),
		(char *)(d->pMessage ? d->pMessage : ""));
	return 0;
}

int vm_create_instance(void *gipa, const char *app, uint32_t flags, const char **layers, uint32_t nlayers, const char **exts,
	uint32_t nexts, int sync_validation, int layer_settings, uintptr_t user, VmInstance *out) {
	CreateInstance f = (CreateInstance)entry(gipa, NULL, "vkCreateInstance");
	if (!f) return VM_INITIALIZATION_FAILED;
	VmApplicationInfo ai = {VM_STYPE_APPLICATION_INFO, NULL, app, 1, "vkmla", 1, (1u << 22) | (3u << 12)};
	VmInstanceCreateInfo ci = {VM_STYPE_INSTANCE_CREATE_INFO, NULL, flags, &ai, nlayers, layers, nexts, exts};
	// Warnings and errors (0x1100) of validation and performance kind (0x6), and general errors.
	VmDebugMessengerCreateInfo mi = {VM_STYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO, NULL, 0, 0x1100, 0x7, on_message, (void *)user};
	uint32_t enable = 4; // VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
	VmValidationFeatures vf = {VM_STYPE_VALIDATION_FEATURES, NULL, 1, &enable, 0, NULL};
	VmBool on = 1; // without this setting newer layers follow copies and fills only, not what launches access
	VmLayerSetting accesses = {"VK_LAYER_KHRONOS_validation", "syncval_shader_accesses_heuristic", 0, 1, &on};
	VmLayerSettings ls = {VM_STYPE_LAYER_SETTINGS, NULL, 1, &accesses};
	if (user) {
		ci.pNext = &mi;
		if (sync_validation) {
			mi.pNext = &vf;
			if (layer_settings) vf.pNext = &ls;
		}
	}
	int r = f(&ci, NULL, &out->instance);
	if (r != 0) return r;
	out->gipa = gipa;
	if (user) {
		CreateMessenger cm = (CreateMessenger)entry(gipa, out->instance, "vkCreateDebugUtilsMessengerEXT");
		mi.pNext = NULL;
		if (cm) return cm(out->instance, &mi, NULL, &out->messenger);
	}
	return 0;
}

void vm_destroy_messenger(VmInstance *in) {
	DestroyMessenger f = (DestroyMessenger)entry(in->gipa, in->instance, "vkDestroyDebugUtilsMessengerEXT");
	if (f && in->messenger) f(in->instance, in->messenger, NULL);
	in->messenger = 0;
}

int vm_physical_devices(VmInstance *in, void ***out, uint32_t *n) {
	EnumPhysical f = (EnumPhysical)entry(in->gipa, in->instance, "vkEnumeratePhysicalDevices");
	ENUMERATE(f(in->instance, n, *out));
}

static int device_extensions(VmInstance *in, void *phys, VmExtensionProperties **out, uint32_t *n) {
	EnumDeviceExts f = (EnumDeviceExts)entry(in->gipa, in->instance, "vkEnumerateDeviceExtensionProperties");
	ENUMERATE(f(phys, NULL, n, *out));
}

int vm_query(VmInstance *in, void *phys, VmAdapter *a) {
	memset(a, 0, sizeof *a);
	GetProps2 props = (GetProps2)entry(in->gipa, in->instance, "vkGetPhysicalDeviceProperties2");
	GetFeatures2 feats = (GetFeatures2)entry(in->gipa, in->instance, "vkGetPhysicalDeviceFeatures2");
	GetMemory mem = (GetMemory)entry(in->gipa, in->instance, "vkGetPhysicalDeviceMemoryProperties");
	GetQueues queues = (GetQueues)entry(in->gipa, in->instance, "vkGetPhysicalDeviceQueueFamilyProperties");
	if (!props || !feats || !mem || !queues) return VM_INITIALIZATION_FAILED;

	a->props.sType = VM_STYPE_PROPERTIES_2;
	props(phys, &a->props);
	if (a->props.properties.apiVersion < ((1u << 22) | (2u << 12))) return 0; // listed, but too old to open
	a->has13 = a->props.properties.apiVersion >= ((1u << 22) | (3u << 12));

	VmBase *tail = (VmBase *)&a->props;
	vm_link(&tail, &a->props11, VM_STYPE_VULKAN_1_1_PROPERTIES);
	vm_link(&tail, &a->driver, VM_STYPE_DRIVER_PROPERTIES);
	vm_link(&tail, &a->floats, VM_STYPE_FLOAT_CONTROLS_PROPERTIES);
	if (a->has13) {
		vm_link(&tail, &a->subgroup, VM_STYPE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
		vm_link(&tail, &a->maintenance4, VM_STYPE_MAINTENANCE_4_PROPERTIES);
		vm_link(&tail, &a->dots, VM_STYPE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
	}
	mem(phys, &a->memory);

	VmExtensionProperties *exts;
	uint32_t n;
	int r = device_extensions(in, phys, &exts, &n);
	if (r < 0) return r;
	for (uint32_t i = 0; i < n; i++) {
		const char *e = exts[i].extensionName;
		vm_note_extension(a, e);
		if (!strcmp(e, "VK_NV_shader_sm_builtins")) a->hasSM = 1;
		if (!strcmp(e, "VK_AMD_shader_core_properties2")) a->hasCores = 1;
		if (!strcmp(e, "VK_AMD_shader_core_properties")) a->hasArrays = 1;
		if (!strcmp(e, "VK_ARM_shader_core_builtins")) a->hasBuiltins = 1;
		if (!strcmp(e, "VK_EXT_memory_budget")) a->hasBudget = 1;
	}
	free(exts);
	if (a->hasFaultEXT) a->hasFaultKHR = 0; // one of them says all
	// Only read: none of these extensions is enabled.
	if (a->hasSM) vm_link(&tail, &a->sm, VM_STYPE_SHADER_SM_BUILTINS_PROPERTIES);
	if (a->hasCores) vm_link(&tail, &a->cores, VM_STYPE_SHADER_CORE_PROPERTIES_2);
	if (a->hasArrays) vm_link(&tail, &a->arrays, VM_STYPE_SHADER_CORE_PROPERTIES);
	if (a->hasBuiltins) vm_link(&tail, &a->builtins, VM_STYPE_SHADER_CORE_BUILTINS_PROPERTIES);
	if (a->hasHost) vm_link(&tail, &a->host, VM_STYPE_EXTERNAL_MEMORY_HOST_PROPERTIES);
	props(phys, &a->props);
	vm_link_features(a);
	feats(phys, &a->features);

	a->families = sizeof a->family / sizeof *a->family;
	queues(phys, &a->families, a->family);
	vm_query_external(in, phys, a);
	return 0;
}

int vm_coopmat(VmInstance *in, void *phys, VmCoopMatProperties **out, uint32_t *n) {
	GetCoopMat f = (GetCoopMat)entry(in->gipa, in->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
	*out = NULL;
	*n = 0;
	if (!f) return 0;
	int r = f(phys, n, NULL);
	if (r < 0 || *n == 0) return r;
	if (!(*out = calloc(*n, sizeof **out))) return VM_OUT_OF_HOST_MEMORY;
	for (uint32_t i = 0; i < *n; i++) (*out)[i].sType = VM_STYPE_COOPERATIVE_MATRIX_PROPERTIES;
	return f(phys, n, *out);
}

// vm_memory_budget is for devices with VK_EXT_memory_budget, which need not be enabled to be asked.
int vm_memory_budget(VmInstance *in, void *phys, VmMemoryBudget *out) {
	GetMemory2 f = (GetMemory2)entry(in->gipa, in->instance, "vkGetPhysicalDeviceMemoryProperties2");
	if (!f) return VM_INITIALIZATION_FAILED;
	VmMemoryProperties2 p = {VM_STYPE_MEMORY_PROPERTIES_2, out};
	memset(out, 0, sizeof *out);
	out->sType = VM_STYPE_MEMORY_BUDGET_PROPERTIES;
	f(phys, &p);
	return 0;
}

int vm_create_device(VmInstance *in, void *phys, const VmAdapter *have, VmDevice *out) {
	VmAdapter *a = calloc(1, sizeof *a);
	if (!a) return VM_OUT_OF_HOST_MEMORY;
	vm_enabled(have, a);
	const char *exts[VM_MOST_EXTENSIONS];
	uint32_t nexts = vm_extensions(a, exts);
	float priority = 1;
	VmDeviceQueueCreateInfo q = {VM_STYPE_DEVICE_QUEUE_CREATE_INFO, NULL, 0, have->queueFamily, 1, &priority};
	VmDeviceCreateInfo ci = {VM_STYPE_DEVICE_CREATE_INFO, &a->features, 0, 1, &q, 0, NULL, nexts, exts, NULL};
	CreateDevice f = (CreateDevice)entry(in->gipa, in->instance, "vkCreateDevice");
	int r = f(phys, &ci, NULL, &out->device);
	if (r == 0) vm_entries(in, a, out);
	free(a);
	return r;
}

static void fault_text(VmFaults *out, const char *text) {
	if (text[0]) memcpy(out->descriptions[out->ndescriptions++], text, sizeof *out->descriptions);
}

static int fault_ext(VmDevice *d, VmFaults *out) {
	GetFaultEXT f = (GetFaultEXT)d->getFaultEXT;
	VmFaultCounts n = {VM_STYPE_FAULT_COUNTS_EXT};
	int r = f(d->device, &n, NULL);
	if (r < 0) return r;
	out->more = n.addressInfoCount > 2 * VM_FAULTS || n.vendorInfoCount > VM_FAULTS;
	if (n.addressInfoCount > 2 * VM_FAULTS) n.addressInfoCount = 2 * VM_FAULTS;
	if (n.vendorInfoCount > VM_FAULTS) n.vendorInfoCount = VM_FAULTS;
	n.vendorBinarySize = 0;
	const uint32_t addresses = n.addressInfoCount, vendors = n.vendorInfoCount;
	VmFaultInfoEXT info = {VM_STYPE_FAULT_INFO_EXT, NULL, "", out->addresses, out->vendors, NULL};
	if ((r = f(d->device, &n, &info)) < 0) return r; // without room for the dump it is incomplete
	out->naddresses = n.addressInfoCount < addresses ? n.addressInfoCount : addresses;
	out->nvendors = n.vendorInfoCount < vendors ? n.vendorInfoCount : vendors;
	fault_text(out, info.description);
	return 0;
}

static int fault_khr(VmDevice *d, VmFaults *out) {
	GetFaultKHR f = (GetFaultKHR)d->getFaultKHR;
	enum { MEMORY = 2, INSTRUCTION = 4, VENDOR = 8, WATCHDOG = 16 };
	const uint64_t wait = 100000000; // ns: reports may come after the loss
	uint32_t n = 0;
	int r = f(d->device, wait, &n, NULL);
	if (r != 0 || n == 0) return r;
	out->more = n > VM_FAULTS;
	if (n > VM_FAULTS) n = VM_FAULTS;
	VmFaultInfoKHR info[VM_FAULTS];
	memset(info, 0, sizeof info);
	for (uint32_t i = 0; i < n; i++) info[i].sType = VM_STYPE_FAULT_INFO_KHR;
	const uint32_t asked = n;
	if ((r = f(d->device, 0, &n, info)) < 0) return r;
	for (uint32_t i = 0; i < n && i < asked; i++) {
		if (!info[i].description[0] && info[i].flags & WATCHDOG) strcpy(info[i].description, "watchdog");
		fault_text(out, info[i].description);
		if (info[i].flags & MEMORY) out->addresses[out->naddresses++] = info[i].faultAddressInfo;
		if (info[i].flags & INSTRUCTION) out->addresses[out->naddresses++] = info[i].instructionAddressInfo;
		if (info[i].flags & VENDOR) out->vendors[out->nvendors++] = info[i].vendorInfo;
	}
	return 0;
}

// vm_faults asks what the device tells of its faults. lost: a call returned VK_ERROR_DEVICE_LOST,
// before which VK_EXT_device_fault must not be asked.
int vm_faults(VmDevice *d, int lost, VmFaults *out) {
	memset(out, 0, sizeof *out);
	if (d->getFaultEXT && lost) return fault_ext(d, out);
	if (d->getFaultKHR) return fault_khr(d, out);
	return 0;
}

int vm_create_buffer(VmDevice *d, uint64_t size, uint32_t usage, uint32_t handles, VmHandle *out) {
	VmExternalTypes ei = {VM_STYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, NULL, handles};
	VmBufferCreateInfo ci = {VM_STYPE_BUFFER_CREATE_INFO, handles ? &ei : NULL, 0, size, usage, 0, 0, NULL};
	return ((CreateBuffer)d->createBuffer)(d->device, &ci, NULL, out);
}

// vm_allocate takes memory from a device, from another API, or from the host if host is not NULL.
int vm_allocate(VmDevice *d, uint64_t size, uint32_t type, int address, const VmOrigin *from, void *host, VmHandle *out) {
	const void *next = NULL;
	VmMemoryAllocateFlagsInfo fi = {VM_STYPE_MEMORY_ALLOCATE_FLAGS_INFO, next, 2 /* DEVICE_ADDRESS */, 0};
	if (address) next = &fi;
	VmDedicatedAllocateInfo di = {VM_STYPE_MEMORY_DEDICATED_ALLOCATE_INFO, next, 0, from->dedicated};
	if (from->dedicated) next = &di;
	VmExternalTypes ei = {VM_STYPE_EXPORT_MEMORY_ALLOCATE_INFO, next, VM_HANDLE};
	if (from->exported) next = &ei;
#ifdef _WIN32
	VmImportMemoryWin32 ii = {VM_STYPE_IMPORT_MEMORY_WIN32_HANDLE_INFO, next, VM_HANDLE, (void *)from->handle, NULL};
#else
	VmImportMemoryFd ii = {VM_STYPE_IMPORT_MEMORY_FD_INFO, next, VM_HANDLE, (int)from->handle};
#endif
	if (from->imported) next = &ii;
	VmImportMemoryHost hi = {VM_STYPE_IMPORT_MEMORY_HOST_POINTER_INFO, next, VM_HANDLE_HOST, host};
	if (host) next = &hi;
	VmMemoryAllocateInfo ai = {VM_STYPE_MEMORY_ALLOCATE_INFO, next, size, type};
	return ((AllocateMemory)d->allocateMemory)(d->device, &ai, NULL, out);
}

uint64_t vm_buffer_address(VmDevice *d, VmHandle buffer) {
	VmBufferDeviceAddressInfo ai = {VM_STYPE_BUFFER_DEVICE_ADDRESS_INFO, NULL, buffer};
	return ((GetAddress)d->getBufferAddress)(d->device, &ai);
}

void vm_update_set(VmDevice *d, VmHandle set, const VmDescriptorBufferInfo *infos, uint32_t n) {
	VmWriteDescriptorSet w = {VM_STYPE_WRITE_DESCRIPTOR_SET, NULL, set, 0, 0, n, 7 /* STORAGE_BUFFER */, NULL, infos, NULL};
	VmWriteDescriptorSet each[64];
	for (uint32_t i = 0; i < n; i++) {
		each[i] = w;
		each[i].dstBinding = i;
		each[i].descriptorCount = 1;
		each[i].pBufferInfo = infos + i;
	}
	((UpdateSets)d->updateDescriptorSets)(d->device, n, each, 0, NULL);
}

int vm_create_pipeline(VmDevice *d, VmHandle cache, VmHandle layout, VmHandle module, const uint32_t *constants, uint32_t n,
	uint32_t subgroup, int full_subgroups, uint32_t flags, VmHandle *out) {
	VmSpecializationMapEntry map[64];
	if (n > 64) return VM_INITIALIZATION_FAILED;
	for (uint32_t i = 0; i < n; i++) map[i] = (VmSpecializationMapEntry){i, 4 * i, 4};
	VmSpecializationInfo si = {n, map, 4 * (size_t)n, constants};
	VmRequiredSubgroupSize rs = {VM_STYPE_REQUIRED_SUBGROUP_SIZE, NULL, subgroup};
	VmComputePipelineCreateInfo ci;
	memset(&ci, 0, sizeof ci);
	ci.sType = VM_STYPE_COMPUTE_PIPELINE_CREATE_INFO;
	ci.flags = flags;
	ci.stage.sType = VM_STYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
	ci.stage.pNext = subgroup ? &rs : NULL;
	ci.stage.flags = full_subgroups ? 2 : 0; // REQUIRE_FULL_SUBGROUPS
	ci.stage.stage = 0x20;                   // COMPUTE
	ci.stage.module = module;
	ci.stage.pName = "main";
	ci.stage.pSpecializationInfo = n ? &si : NULL;
	ci.layout = layout;
	return ((CreatePipelines)d->createComputePipelines)(d->device, cache, 1, &ci, NULL, out);
}

int vm_pipeline_statistics(VmDevice *d, VmHandle pipeline, VmPipelineExecutableStatistic **out, uint32_t *n) {
	GetStatistics f = (GetStatistics)d->getStatistics;
	VmPipelineExecutableInfo info = {VM_STYPE_PIPELINE_EXECUTABLE_INFO, NULL, pipeline, 0}; // a compute pipeline has one
	*out = NULL;
	*n = 0;
	if (!f) return 0;
	int r = f(d->device, &info, n, NULL);
	if (r < 0 || *n == 0) return r;
	if (!(*out = calloc(*n, sizeof **out))) return VM_OUT_OF_HOST_MEMORY;
	for (uint32_t i = 0; i < *n; i++) (*out)[i].sType = VM_STYPE_PIPELINE_EXECUTABLE_STATISTIC;
	return f(d->device, &info, n, *out);
}

// The texts after pData are one allocation with the list.
int vm_pipeline_representations(VmDevice *d, VmHandle pipeline, VmPipelineExecutableRepresentation **out, uint32_t *n) {
	GetRepresentations f = (GetRepresentations)d->getRepresentations;
	VmPipelineExecutableInfo info = {VM_STYPE_PIPELINE_EXECUTABLE_INFO, NULL, pipeline, 0}; // a compute pipeline has one
	*out = NULL;
	*n = 0;
	if (!f) return 0;
	int r = f(d->device, &info, n, NULL);
	if (r < 0 || *n == 0) return r;
	size_t head = *n * sizeof **out, size = head;
	VmPipelineExecutableRepresentation *list = calloc(1, head);
	if (!list) return VM_OUT_OF_HOST_MEMORY;
	for (uint32_t i = 0; i < *n; i++) list[i].sType = VM_STYPE_PIPELINE_EXECUTABLE_REPRESENTATION;
	if ((r = f(d->device, &info, n, list)) < 0) {
		free(list);
		return r;
	}
	for (uint32_t i = 0; i < *n; i++) size += list[i].dataSize;
	*out = realloc(list, size);
	if (!*out) {
		free(list);
		return VM_OUT_OF_HOST_MEMORY;
	}
	char *at = (char *)*out + head;
	for (uint32_t i = 0; i < *n; at += (*out)[i++].dataSize) (*out)[i].pData = at;
	return f(d->device, &info, n, *out);
}

void vm_barrier(VmDevice *d, void *cmd, uint32_t src_stage, uint32_t dst_stage, uint32_t src_access, uint32_t dst_access) {
	VmMemoryBarrier b = {VM_STYPE_MEMORY_BARRIER, NULL, src_access, dst_access};
	((CmdBarrier)d->cmdPipelineBarrier)(cmd, src_stage, dst_stage, 0, 1, &b, 0, NULL, 0, NULL);
}

void vm_dispatch_base(VmDevice *d, void *cmd, const uint32_t *base, const uint32_t *count) {
	((CmdDispatchBase)d->cmdDispatchBase)(cmd, base[0], base[1], base[2], count[0], count[1], count[2]);
}

void vm_copy(VmDevice *d, void *cmd, VmHandle src, VmHandle dst, uint64_t src_off, uint64_t dst_off, uint64_t size) {
	VmBufferCopy c = {src_off, dst_off, size};
	((CmdCopy)d->cmdCopyBuffer)(cmd, src, dst, 1, &c);
}

// vm_submit has the device wait for the first nwait semaphores to have their values, and give the
// next nsignal theirs after the commands.
int vm_submit(VmDevice *d, void *queue, void *cmd, VmHandle fence, const VmHandle *semaphores, const uint64_t *values,
	uint32_t nwait, uint32_t nsignal) {
	enum { MOST = 16, ALL_COMMANDS = 0x10000 };
	if (nwait > MOST) return VM_INITIALIZATION_FAILED;
	uint32_t stages[MOST];
	for (uint32_t i = 0; i < nwait; i++) stages[i] = ALL_COMMANDS;
	void *cmds[1] = {cmd};
	VmTimelineSubmitInfo ti = {VM_STYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, NULL, nwait, values, nsignal, values + nwait};
	VmSubmitInfo si = {VM_STYPE_SUBMIT_INFO, nwait + nsignal ? &ti : NULL, nwait, semaphores, stages, 1, cmds, nsignal, semaphores + nwait};
	return ((QueueSubmit)d->queueSubmit)(queue, 1, &si, fence);
}

int vm_wait_fence(VmDevice *d, VmHandle fence, uint64_t timeout_ns) {
	return ((WaitFences)d->waitForFences)(d->device, 1, &fence, 1, timeout_ns);
}
