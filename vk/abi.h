// Vulkan declarations that the Go binding does not offer, or offers in a form
// that is unsafe under Go's garbage collector (see doc.go). Names are the
// registry's with the prefix Vm; abi_test.go checks every size and value against
// the real headers where those are installed.
#ifndef VKMLA_ABI_H
#define VKMLA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t VmBool;
typedef uint64_t VmHandle; // non-dispatchable handle on a 64-bit platform

#define VM_STYPE_APPLICATION_INFO 0
#define VM_STYPE_INSTANCE_CREATE_INFO 1
#define VM_STYPE_DEVICE_QUEUE_CREATE_INFO 2
#define VM_STYPE_DEVICE_CREATE_INFO 3
#define VM_STYPE_SUBMIT_INFO 4
#define VM_STYPE_MEMORY_ALLOCATE_INFO 5
#define VM_STYPE_SEMAPHORE_CREATE_INFO 9
#define VM_STYPE_BUFFER_CREATE_INFO 12
#define VM_STYPE_PIPELINE_SHADER_STAGE_CREATE_INFO 18
#define VM_STYPE_COMPUTE_PIPELINE_CREATE_INFO 29
#define VM_STYPE_WRITE_DESCRIPTOR_SET 35
#define VM_STYPE_MEMORY_BARRIER 46
#define VM_STYPE_VULKAN_1_1_FEATURES 49
#define VM_STYPE_VULKAN_1_1_PROPERTIES 50
#define VM_STYPE_VULKAN_1_2_FEATURES 51
#define VM_STYPE_VULKAN_1_3_FEATURES 53
#define VM_STYPE_FEATURES_2 1000059000
#define VM_STYPE_PROPERTIES_2 1000059001
#define VM_STYPE_MEMORY_ALLOCATE_FLAGS_INFO 1000060000
#define VM_STYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO 1000128004
#define VM_STYPE_SHADER_BFLOAT16_FEATURES 1000141000
#define VM_STYPE_MIXED_DOT_FEATURES 1000673000
#define VM_STYPE_SHADER_FLOAT8_FEATURES 1000567000
#define VM_STYPE_SHADER_SM_BUILTINS_PROPERTIES 1000154001
#define VM_STYPE_DRIVER_PROPERTIES 1000196000
#define VM_STYPE_FLOAT_CONTROLS_PROPERTIES 1000197000
#define VM_STYPE_SUBGROUP_SIZE_CONTROL_PROPERTIES 1000225000
#define VM_STYPE_REQUIRED_SUBGROUP_SIZE 1000225001
#define VM_STYPE_SHADER_CORE_PROPERTIES_2 1000227000
#define VM_STYPE_SHADER_CORE_PROPERTIES 1000185000
#define VM_STYPE_SHADER_CORE_BUILTINS_PROPERTIES 1000497001
#define VM_STYPE_BUFFER_DEVICE_ADDRESS_INFO 1000244001
#define VM_STYPE_VALIDATION_FEATURES 1000247000
#define VM_STYPE_LAYER_SETTINGS 1000496000
#define VM_STYPE_PIPELINE_EXECUTABLE_FEATURES 1000269000
#define VM_STYPE_PIPELINE_EXECUTABLE_INFO 1000269003
#define VM_STYPE_PIPELINE_EXECUTABLE_STATISTIC 1000269004
#define VM_STYPE_PIPELINE_EXECUTABLE_REPRESENTATION 1000269005
#define VM_PIPELINE_CREATE_DISPATCH_BASE 0x10
#define VM_PIPELINE_CREATE_CAPTURE_STATISTICS 0x40
#define VM_PIPELINE_CREATE_CAPTURE_REPRESENTATIONS 0x80
#define VM_STYPE_MEMORY_PROPERTIES_2 1000059006
#define VM_STYPE_MEMORY_BUDGET_PROPERTIES 1000237000
#define VM_STYPE_FAULT_FEATURES_EXT 1000341000
#define VM_STYPE_FAULT_COUNTS_EXT 1000341001
#define VM_STYPE_FAULT_INFO_EXT 1000341002
#define VM_STYPE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES 1000280001
#define VM_STYPE_MAINTENANCE_4_PROPERTIES 1000413001
#define VM_STYPE_COOPERATIVE_MATRIX_FEATURES 1000506000
#define VM_STYPE_COOPERATIVE_MATRIX_PROPERTIES 1000506001
#define VM_STYPE_FAULT_FEATURES_KHR 1000573000
#define VM_STYPE_FAULT_INFO_KHR 1000573002
#define VM_STYPE_EXTERNAL_BUFFER_INFO 1000071002
#define VM_STYPE_EXTERNAL_BUFFER_PROPERTIES 1000071003
#define VM_STYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO 1000072000
#define VM_STYPE_EXPORT_MEMORY_ALLOCATE_INFO 1000072002
#define VM_STYPE_IMPORT_MEMORY_WIN32_HANDLE_INFO 1000073000
#define VM_STYPE_MEMORY_GET_WIN32_HANDLE_INFO 1000073003
#define VM_STYPE_IMPORT_MEMORY_FD_INFO 1000074000
#define VM_STYPE_MEMORY_GET_FD_INFO 1000074002
#define VM_STYPE_EXTERNAL_SEMAPHORE_INFO 1000076000
#define VM_STYPE_EXTERNAL_SEMAPHORE_PROPERTIES 1000076001
#define VM_STYPE_EXPORT_SEMAPHORE_CREATE_INFO 1000077000
#define VM_STYPE_IMPORT_SEMAPHORE_WIN32_HANDLE_INFO 1000078000
#define VM_STYPE_SEMAPHORE_GET_WIN32_HANDLE_INFO 1000078003
#define VM_STYPE_IMPORT_SEMAPHORE_FD_INFO 1000079000
#define VM_STYPE_SEMAPHORE_GET_FD_INFO 1000079001
#define VM_STYPE_MEMORY_DEDICATED_ALLOCATE_INFO 1000127001
#define VM_STYPE_IMPORT_MEMORY_HOST_POINTER_INFO 1000178000
#define VM_STYPE_MEMORY_HOST_POINTER_PROPERTIES 1000178001
#define VM_STYPE_EXTERNAL_MEMORY_HOST_PROPERTIES 1000178002
#define VM_STYPE_SEMAPHORE_TYPE_CREATE_INFO 1000207002
#define VM_STYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO 1000207003
#define VM_STYPE_SEMAPHORE_WAIT_INFO 1000207004
#define VM_STYPE_SEMAPHORE_SIGNAL_INFO 1000207005
// Kinds of handles: memory and semaphores have the same numbers.
#define VM_HANDLE_FD 0x1
#define VM_HANDLE_WIN32 0x2
#define VM_HANDLE_HOST 0x80
#ifdef _WIN32
#define VM_HANDLE VM_HANDLE_WIN32
#else
#define VM_HANDLE VM_HANDLE_FD
#endif
#define VM_EXTERNAL_DEDICATED_ONLY 1
#define VM_EXTERNAL_EXPORTABLE 2
#define VM_EXTERNAL_IMPORTABLE 4
#define VM_EXTERNAL_SEMAPHORE_EXPORTABLE 1
#define VM_EXTERNAL_SEMAPHORE_IMPORTABLE 2

typedef struct { uint32_t sType; void *pNext; } VmBase;

typedef struct {
	uint32_t sType; const void *pNext; const char *pApplicationName; uint32_t applicationVersion;
	const char *pEngineName; uint32_t engineVersion; uint32_t apiVersion;
} VmApplicationInfo;

typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; const VmApplicationInfo *pApplicationInfo;
	uint32_t enabledLayerCount; const char *const *ppEnabledLayerNames;
	uint32_t enabledExtensionCount; const char *const *ppEnabledExtensionNames;
} VmInstanceCreateInfo;

typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; uint32_t queueFamilyIndex; uint32_t queueCount;
	const float *pQueuePriorities;
} VmDeviceQueueCreateInfo;

typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags;
	uint32_t queueCreateInfoCount; const VmDeviceQueueCreateInfo *pQueueCreateInfos;
	uint32_t enabledLayerCount; const char *const *ppEnabledLayerNames;
	uint32_t enabledExtensionCount; const char *const *ppEnabledExtensionNames;
	const void *pEnabledFeatures;
} VmDeviceCreateInfo;

typedef struct {
	uint32_t sType; const void *pNext;
	uint32_t waitSemaphoreCount; const VmHandle *pWaitSemaphores; const uint32_t *pWaitDstStageMask;
	uint32_t commandBufferCount; void *const *pCommandBuffers;
	uint32_t signalSemaphoreCount; const VmHandle *pSignalSemaphores;
} VmSubmitInfo;

typedef struct { uint32_t sType; const void *pNext; uint64_t allocationSize; uint32_t memoryTypeIndex; } VmMemoryAllocateInfo;
typedef struct { uint32_t sType; const void *pNext; uint32_t flags; uint32_t deviceMask; } VmMemoryAllocateFlagsInfo;
typedef struct { uint32_t sType; const void *pNext; VmHandle buffer; } VmBufferDeviceAddressInfo;
typedef struct { uint32_t sType; const void *pNext; uint32_t srcAccessMask; uint32_t dstAccessMask; } VmMemoryBarrier;
typedef struct { uint64_t srcOffset, dstOffset, size; } VmBufferCopy;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; uint64_t size; uint32_t usage; uint32_t sharingMode;
	uint32_t queueFamilyIndexCount; const uint32_t *pQueueFamilyIndices;
} VmBufferCreateInfo;

// What is shared with other devices and APIs.
typedef struct { uint32_t sType; const void *pNext; uint32_t flags, usage, handleType; } VmExternalBufferInfo;
typedef struct { uint32_t sType; void *pNext; uint32_t features, exportFromImportedHandleTypes, compatibleHandleTypes; } VmExternalBufferProperties;
typedef struct { uint32_t sType; const void *pNext; uint32_t handleType; } VmExternalSemaphoreInfo;
typedef struct { uint32_t sType; void *pNext; uint32_t exportFromImportedHandleTypes, compatibleHandleTypes, features; } VmExternalSemaphoreProperties;
typedef struct { uint32_t sType; void *pNext; uint64_t minImportedHostPointerAlignment; } VmExternalHostProperties;
typedef struct { uint32_t sType; const void *pNext; uint32_t handleTypes; } VmExternalTypes; // of a buffer, memory or semaphore to be made
typedef struct { uint32_t sType; const void *pNext; VmHandle image, buffer; } VmDedicatedAllocateInfo;
typedef struct { uint32_t sType; const void *pNext; uint32_t handleType; int fd; } VmImportMemoryFd;
typedef struct { uint32_t sType; const void *pNext; uint32_t handleType; void *handle; const void *name; } VmImportMemoryWin32;
typedef struct { uint32_t sType; const void *pNext; uint32_t handleType; void *pHostPointer; } VmImportMemoryHost;
typedef struct { uint32_t sType; void *pNext; uint32_t memoryTypeBits; } VmHostPointerProperties;
typedef struct { uint32_t sType; const void *pNext; VmHandle object; uint32_t handleType; } VmGetHandle; // of memory or of a semaphore
typedef struct { uint32_t sType; const void *pNext; VmHandle semaphore; uint32_t flags, handleType; int fd; } VmImportSemaphoreFd;
typedef struct {
	uint32_t sType; const void *pNext; VmHandle semaphore; uint32_t flags, handleType; void *handle; const void *name;
} VmImportSemaphoreWin32;
typedef struct { uint32_t sType; const void *pNext; uint32_t flags; } VmSemaphoreCreateInfo;
typedef struct { uint32_t sType; const void *pNext; uint32_t semaphoreType; uint64_t initialValue; } VmSemaphoreTypeCreateInfo;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t waitCount; const uint64_t *pWaitValues; uint32_t signalSemaphoreValueCount; const uint64_t *pSignalValues;
} VmTimelineSubmitInfo;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags, semaphoreCount; const VmHandle *pSemaphores; const uint64_t *pValues;
} VmSemaphoreWaitInfo;
typedef struct { uint32_t sType; const void *pNext; VmHandle semaphore; uint64_t value; } VmSemaphoreSignalInfo;
typedef struct { VmHandle buffer; uint64_t offset; uint64_t range; } VmDescriptorBufferInfo;
typedef struct {
	uint32_t sType; const void *pNext; VmHandle dstSet; uint32_t dstBinding; uint32_t dstArrayElement;
	uint32_t descriptorCount; uint32_t descriptorType; const void *pImageInfo;
	const VmDescriptorBufferInfo *pBufferInfo; const void *pTexelBufferView;
} VmWriteDescriptorSet;

typedef struct { uint32_t constantID; uint32_t offset; size_t size; } VmSpecializationMapEntry;
typedef struct { uint32_t mapEntryCount; const VmSpecializationMapEntry *pMapEntries; size_t dataSize; const void *pData; } VmSpecializationInfo;
typedef struct { uint32_t sType; void *pNext; uint32_t requiredSubgroupSize; } VmRequiredSubgroupSize;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; uint32_t stage; VmHandle module; const char *pName;
	const VmSpecializationInfo *pSpecializationInfo;
} VmPipelineShaderStageCreateInfo;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; VmPipelineShaderStageCreateInfo stage; VmHandle layout;
	VmHandle basePipelineHandle; int32_t basePipelineIndex;
} VmComputePipelineCreateInfo;

typedef struct { char extensionName[256]; uint32_t specVersion; } VmExtensionProperties;
typedef struct { char layerName[256]; uint32_t specVersion; uint32_t implementationVersion; char description[256]; } VmLayerProperties;
typedef struct { uint32_t queueFlags; uint32_t queueCount; uint32_t timestampValidBits; uint32_t granularity[3]; } VmQueueFamilyProperties;
typedef struct { uint32_t propertyFlags; uint32_t heapIndex; } VmMemoryType;
typedef struct { uint64_t size; uint32_t flags; } VmMemoryHeap;
typedef struct { uint32_t memoryTypeCount; VmMemoryType memoryTypes[32]; uint32_t memoryHeapCount; VmMemoryHeap memoryHeaps[16]; } VmMemoryProperties;

typedef struct { uint32_t sType; void *pNext; VmMemoryProperties memory; } VmMemoryProperties2;
typedef struct { uint32_t sType; void *pNext; uint64_t heapBudget[16], heapUsage[16]; } VmMemoryBudget;

// VK_EXT_device_fault, and VK_KHR_device_fault, which has the structures of addresses and vendors
// in common with it.
typedef struct { uint32_t sType; void *pNext; VmBool deviceFault, deviceFaultVendorBinary; } VmFaultFeaturesEXT;
typedef struct {
	uint32_t sType; void *pNext; VmBool deviceFault, deviceFaultVendorBinary, deviceFaultReportMasked, deviceFaultDeviceLostOnMasked;
} VmFaultFeaturesKHR;
typedef struct { uint32_t sType; void *pNext; uint32_t addressInfoCount, vendorInfoCount; uint64_t vendorBinarySize; } VmFaultCounts;
typedef struct { uint32_t addressType; uint64_t reportedAddress, addressPrecision; } VmFaultAddress;
typedef struct { char description[256]; uint64_t vendorFaultCode, vendorFaultData; } VmFaultVendor;
typedef struct {
	uint32_t sType; void *pNext; char description[256]; VmFaultAddress *pAddressInfos; VmFaultVendor *pVendorInfos; void *pVendorBinaryData;
} VmFaultInfoEXT;
typedef struct {
	uint32_t sType; void *pNext; uint32_t flags; uint64_t groupId; char description[256];
	VmFaultAddress faultAddressInfo, instructionAddressInfo; VmFaultVendor vendorInfo;
} VmFaultInfoKHR;

#define VM_FAULTS 8 // of each kind that are asked for

// What a device tells of faults.
typedef struct {
	char descriptions[VM_FAULTS][256];
	VmFaultAddress addresses[2 * VM_FAULTS];
	VmFaultVendor vendors[VM_FAULTS];
	uint32_t ndescriptions, naddresses, nvendors, more; // more: some were left out
} VmFaults;

// VkPhysicalDeviceLimits: only what this package reads has a name.
typedef struct {
	uint32_t image_to_uniform[7]; // maxImageDimension1D .. maxUniformBufferRange
	uint32_t maxStorageBufferRange;
	uint32_t maxPushConstantsSize;
	uint32_t maxMemoryAllocationCount;
	uint32_t maxSamplerAllocationCount;
	uint64_t bufferImageGranularity;
	uint64_t sparseAddressSpaceSize;
	uint32_t maxBoundDescriptorSets;
	uint32_t perStage_a[2];
	uint32_t maxPerStageDescriptorStorageBuffers;
	uint32_t perStage_b[4];
	uint32_t perSet_a[3];
	uint32_t maxDescriptorSetStorageBuffers;
	uint32_t perSet_b[4];
	uint32_t vertex_to_fragment[22];
	uint32_t maxComputeSharedMemorySize;
	uint32_t maxComputeWorkGroupCount[3];
	uint32_t maxComputeWorkGroupInvocations;
	uint32_t maxComputeWorkGroupSize[3];
	uint32_t precision[5];
	float sampler[2];
	uint32_t viewports[3];
	float viewportBoundsRange[2];
	uint32_t viewportSubPixelBits;
	size_t minMemoryMapAlignment;
	uint64_t minTexelBufferOffsetAlignment;
	uint64_t minUniformBufferOffsetAlignment;
	uint64_t minStorageBufferOffsetAlignment;
	uint32_t offsets_to_masks[21];
	VmBool timestampComputeAndGraphics;
	float timestampPeriod;
	uint32_t clip_to_priorities[4];
	float points[6];
	VmBool lines[2];
	uint64_t optimalBufferCopyOffsetAlignment;
	uint64_t optimalBufferCopyRowPitchAlignment;
	uint64_t nonCoherentAtomSize;
} VmLimits;
typedef struct {
	uint32_t apiVersion, driverVersion, vendorID, deviceID, deviceType;
	char deviceName[256];
	uint8_t pipelineCacheUUID[16];
	VmLimits limits;
	VmBool sparse[5];
} VmProperties;
typedef struct { uint32_t sType; void *pNext; VmProperties properties; } VmProperties2;
typedef struct {
	uint32_t sType; void *pNext; uint8_t deviceUUID[16]; uint8_t driverUUID[16]; uint8_t deviceLUID[8];
	uint32_t deviceNodeMask; VmBool deviceLUIDValid; uint32_t subgroupSize; uint32_t subgroupSupportedStages;
	uint32_t subgroupSupportedOperations; VmBool subgroupQuadOperationsInAllStages; uint32_t pointClippingBehavior;
	uint32_t maxMultiviewViewCount; uint32_t maxMultiviewInstanceIndex; VmBool protectedNoFault;
	uint32_t maxPerSetDescriptors; uint64_t maxMemoryAllocationSize;
} VmVulkan11Properties;
typedef struct { uint32_t sType; void *pNext; uint32_t driverID; char driverName[256]; char driverInfo[256]; uint8_t conformance[4]; } VmDriverProperties;
typedef struct { uint32_t sType; void *pNext; uint32_t minSubgroupSize, maxSubgroupSize, maxComputeWorkgroupSubgroups, requiredSubgroupSizeStages; } VmSubgroupSizeProperties;
typedef struct { uint32_t sType; void *pNext; uint64_t maxBufferSize; } VmMaintenance4Properties;
typedef struct {
	uint32_t sType; void *pNext; uint32_t denormBehaviorIndependence, roundingModeIndependence; VmBool to_preserve[3];
	VmBool shaderDenormPreserveFloat16; VmBool to_nearest[5]; VmBool shaderRoundingModeRTEFloat16; VmBool rest[5];
} VmFloatControlsProperties;
typedef struct {
	uint32_t sType; void *pNext; VmBool to_packed[5]; VmBool integerDotProduct4x8BitPackedMixedSignednessAccelerated; VmBool rest[24];
} VmIntegerDotProperties;
typedef struct { uint32_t sType; void *pNext; uint32_t shaderSMCount, shaderWarpsPerSM; } VmShaderSMProperties;             // of NVIDIA
typedef struct { uint32_t sType; void *pNext; uint32_t shaderCoreFeatures, activeComputeUnitCount; } VmShaderCoreProperties; // of AMD
typedef struct {
	uint32_t sType; void *pNext; uint32_t shaderEngineCount, shaderArraysPerEngineCount, computeUnitsPerShaderArray; uint32_t rest[11];
} VmShaderArrayProperties; // of AMD, by older drivers
typedef struct { uint32_t sType; void *pNext; uint64_t shaderCoreMask; uint32_t shaderCoreCount, shaderWarpsPerCore; } VmShaderBuiltinsProperties; // of ARM

// Feature structures: arrays where this package needs no name.
typedef struct { VmBool to_float64[39]; VmBool shaderFloat64; VmBool shaderInt64; VmBool shaderInt16; VmBool rest[13]; } VmFeatures;
typedef struct { uint32_t sType; void *pNext; VmFeatures features; } VmFeatures2;
typedef struct {
	uint32_t sType; void *pNext; VmBool storageBuffer16BitAccess, uniformAndStorageBuffer16BitAccess; VmBool rest[10];
} VmVulkan11Features;
typedef struct {
	uint32_t sType; void *pNext; VmBool samplerMirrorClampToEdge, drawIndirectCount, storageBuffer8BitAccess,
	uniformAndStorageBuffer8BitAccess, storagePushConstant8, shaderBufferInt64Atomics, shaderSharedInt64Atomics,
	shaderFloat16, shaderInt8; VmBool indexing[23]; VmBool imagelessFramebuffer, uniformBufferStandardLayout,
	shaderSubgroupExtendedTypes, separateDepthStencilLayouts, hostQueryReset, timelineSemaphore, bufferDeviceAddress,
	bufferDeviceAddressCaptureReplay, bufferDeviceAddressMultiDevice, vulkanMemoryModel, vulkanMemoryModelDeviceScope,
	vulkanMemoryModelAvailabilityVisibilityChains; VmBool output[3];
} VmVulkan12Features;
typedef struct {
	uint32_t sType; void *pNext; VmBool to_terminate[7]; VmBool subgroupSizeControl, computeFullSubgroups,
	synchronization2; VmBool rest[3]; VmBool shaderIntegerDotProduct; VmBool maintenance4;
} VmVulkan13Features;
typedef struct { uint32_t sType; void *pNext; VmBool cooperativeMatrix, cooperativeMatrixRobustBufferAccess; } VmCoopMatFeatures;
typedef struct { uint32_t sType; void *pNext; VmBool shaderBFloat16Type, shaderBFloat16DotProduct, shaderBFloat16CooperativeMatrix; } VmBFloat16Features;
typedef struct {
	uint32_t sType; void *pNext; VmBool shaderMixedFloatDotProductFloat16AccFloat32; VmBool rest[3];
} VmMixedDotFeatures;
typedef struct { uint32_t sType; void *pNext; VmBool shaderFloat8, shaderFloat8CooperativeMatrix; } VmFloat8Features;
typedef struct { uint32_t sType; void *pNext; VmBool pipelineExecutableInfo; } VmPipelineExecutableFeatures;
typedef struct { uint32_t sType; const void *pNext; VmHandle pipeline; uint32_t executableIndex; } VmPipelineExecutableInfo;
typedef struct {
	uint32_t sType; void *pNext; char name[256]; char description[256]; uint32_t format; // 0 VkBool32, 1 int64, 2 uint64, 3 double
	union { VmBool b32; int64_t i64; uint64_t u64; double f64; } value;
} VmPipelineExecutableStatistic;
typedef struct {
	uint32_t sType; void *pNext; char name[256]; char description[256]; VmBool isText; size_t dataSize; void *pData;
} VmPipelineExecutableRepresentation;
typedef struct {
	uint32_t sType; void *pNext; uint32_t MSize, NSize, KSize, AType, BType, CType, ResultType; VmBool saturatingAccumulation; uint32_t scope;
} VmCoopMatProperties;

typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; uint32_t messageIdNameUnused;
	const char *pMessageIdName; int32_t messageIdNumber; const char *pMessage;
} VmDebugCallbackData; // VkDebugUtilsMessengerCallbackDataEXT up to pMessage; the callee only reads these
typedef VmBool (*VmDebugCallback)(uint32_t severity, uint32_t types, const void *data, void *user);
typedef struct {
	uint32_t sType; const void *pNext; uint32_t flags; uint32_t messageSeverity; uint32_t messageType;
	VmDebugCallback pfnUserCallback; void *pUserData;
} VmDebugMessengerCreateInfo;
typedef struct {
	uint32_t sType; const void *pNext; uint32_t enabledCount; const uint32_t *pEnabled; uint32_t disabledCount; const uint32_t *pDisabled;
} VmValidationFeatures;

typedef struct {
	const char *pLayerName, *pSettingName;
	int32_t type; // 0: VkBool32
	uint32_t valueCount;
	const void *pValues;
} VmLayerSetting;

typedef struct {
	uint32_t sType;
	const void *pNext;
	uint32_t settingCount;
	const VmLayerSetting *pSettings;
} VmLayerSettings;

// What vm_query reads of one physical device. hasX: the structure was filled.
typedef struct {
	VmProperties2 props;
	VmVulkan11Properties props11;
	VmDriverProperties driver;
	VmSubgroupSizeProperties subgroup;
	VmMaintenance4Properties maintenance4;
	VmFloatControlsProperties floats;
	VmIntegerDotProperties dots;
	VmShaderSMProperties sm;
	VmShaderCoreProperties cores;
	VmShaderArrayProperties arrays;
	VmShaderBuiltinsProperties builtins;
	VmMemoryProperties memory;
	VmFeatures2 features;
	VmVulkan11Features f11;
	VmVulkan12Features f12;
	VmVulkan13Features f13;
	VmCoopMatFeatures coopmat;
	VmBFloat16Features bf16;
	VmMixedDotFeatures dot;
	VmFloat8Features fp8;
	VmPipelineExecutableFeatures exec;
	VmFaultFeaturesEXT faultEXT;
	VmFaultFeaturesKHR faultKHR;
	VmExternalHostProperties host;
	uint32_t has13, hasCoopmat, hasBf16, hasDot, hasFp8, hasExec, hasPortability, hasSM, hasCores, hasArrays, hasBuiltins, hasFaultEXT, hasFaultKHR, hasBudget;
	uint32_t hasMemory, hasSemaphore, hasHost;               // extensions by which handles and host memory are shared
	uint32_t memoryHandles, semaphoreHandles, hostMemory; // what can be done with these: VM_EXTERNAL_..., 0 without the extension
	VmQueueFamilyProperties family[64];
	uint32_t families;
	uint32_t queueFamily, queueFamilyFound, timestampBits; // set by newAdapter
} VmAdapter;

// Entry points that only exist once an instance or a device does.
typedef struct { void *gipa; void *instance; VmHandle messenger; } VmInstance;
typedef struct {
	void *device;
	void *allocateMemory, *getBufferAddress, *updateDescriptorSets, *createComputePipelines;
	void *cmdPipelineBarrier, *cmdCopyBuffer, *cmdDispatchBase, *queueSubmit, *waitForFences, *getStatistics, *getRepresentations;
	void *createBuffer, *createSemaphore, *destroySemaphore, *semaphoreValue, *signalSemaphore, *waitSemaphores;
	void *getFaultEXT, *getFaultKHR; // these and all below: NULL unless the extension is enabled
	void *getMemoryHandle, *getHostPointer, *getSemaphoreHandle, *importSemaphoreHandle;
} VmDevice;

// Where memory comes from and who else may have it.
typedef struct {
	uint32_t exported;  // it can be exported
	uint32_t imported;  // it is another's, by handle
	uintptr_t handle;   // then: a file descriptor or a HANDLE
	VmHandle dedicated; // the one buffer that it is for, or 0
} VmOrigin;

#define VM_MOST_EXTENSIONS 16

// vm_load opens a Vulkan loader and returns its vkGetInstanceProcAddr, or NULL and why not.
void *vm_load(const char *path, char *err, size_t n);
int vm_instance_layers(void *gipa, VmLayerProperties **out, uint32_t *n);
int vm_instance_extensions(void *gipa, const char *layer, VmExtensionProperties **out, uint32_t *n);
int vm_create_instance(void *gipa, const char *app, uint32_t flags, const char **layers, uint32_t nlayers, const char **exts,
	uint32_t nexts, int sync_validation, int layer_settings, uintptr_t user, VmInstance *out);
void vm_destroy_messenger(VmInstance *in);
int vm_physical_devices(VmInstance *in, void ***out, uint32_t *n);
int vm_query(VmInstance *in, void *phys, VmAdapter *out);
int vm_coopmat(VmInstance *in, void *phys, VmCoopMatProperties **out, uint32_t *n);
int vm_memory_budget(VmInstance *in, void *phys, VmMemoryBudget *out);
int vm_create_device(VmInstance *in, void *phys, const VmAdapter *ad, VmDevice *out);
int vm_faults(VmDevice *d, int lost, VmFaults *out);
int vm_create_buffer(VmDevice *d, uint64_t size, uint32_t usage, uint32_t handles, VmHandle *out);
int vm_allocate(VmDevice *d, uint64_t size, uint32_t type, int address, const VmOrigin *from, void *host, VmHandle *out);
uint64_t vm_buffer_address(VmDevice *d, VmHandle buffer);
void vm_update_set(VmDevice *d, VmHandle set, const VmDescriptorBufferInfo *infos, uint32_t n);
int vm_create_pipeline(VmDevice *d, VmHandle cache, VmHandle layout, VmHandle module, const uint32_t *constants, uint32_t n,
	uint32_t subgroup, int full_subgroups, uint32_t flags, VmHandle *out);
int vm_pipeline_statistics(VmDevice *d, VmHandle pipeline, VmPipelineExecutableStatistic **out, uint32_t *n);
int vm_pipeline_representations(VmDevice *d, VmHandle pipeline, VmPipelineExecutableRepresentation **out, uint32_t *n);
void vm_barrier(VmDevice *d, void *cmd, uint32_t src_stage, uint32_t dst_stage, uint32_t src_access, uint32_t dst_access);
void vm_dispatch_base(VmDevice *d, void *cmd, const uint32_t *base, const uint32_t *count);
void vm_copy(VmDevice *d, void *cmd, VmHandle src, VmHandle dst, uint64_t src_off, uint64_t dst_off, uint64_t size);
int vm_submit(VmDevice *d, void *queue, void *cmd, VmHandle fence, const VmHandle *semaphores, const uint64_t *values,
	uint32_t nwait, uint32_t nsignal);
int vm_wait_fence(VmDevice *d, VmHandle fence, uint64_t timeout_ns);

// enabled.c
void vm_link(VmBase **tail, void *node, uint32_t type);
void vm_link_features(VmAdapter *a);
void vm_note_extension(VmAdapter *a, const char *name);
void vm_enabled(const VmAdapter *have, VmAdapter *out);
void vm_entries(VmInstance *in, const VmAdapter *enabled, VmDevice *out);
uint32_t vm_extensions(const VmAdapter *a, const char **out);
const char *vm_feature(const VmAdapter *a, uint32_t i, VmBool *has);
void vm_restrict(VmAdapter *a, uint32_t api, char **exts, uint32_t nexts, char **features, uint32_t nfeatures);

// external.c
void vm_query_external(VmInstance *in, void *phys, VmAdapter *a);
int vm_memory_handle(VmDevice *d, VmHandle memory, uintptr_t *out);
int vm_host_types(VmDevice *d, void *host, uint32_t *types);
int vm_create_semaphore(VmDevice *d, int exported, VmHandle *out);
void vm_destroy_semaphore(VmDevice *d, VmHandle semaphore);
int vm_semaphore_handle(VmDevice *d, VmHandle semaphore, uintptr_t *out);
int vm_import_semaphore(VmDevice *d, VmHandle semaphore, uintptr_t handle);
int vm_semaphore_value(VmDevice *d, VmHandle semaphore, uint64_t *value);
int vm_signal_semaphore(VmDevice *d, VmHandle semaphore, uint64_t value);
int vm_wait_semaphore(VmDevice *d, VmHandle semaphore, uint64_t value, uint64_t timeout_ns);

#endif
