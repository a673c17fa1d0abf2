package vk_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// The structures and constants of abi.h agree with the real headers. The test needs
// them installed: the system's libvulkan-dev, or the folder of scripts/newer-mesa.
func TestABIMatchesHeaders(t *testing.T) {
	tools := os.Getenv("VKMLA_TOOLS")
	if tools == "" {
		cache, _ := os.UserCacheDir()
		tools = filepath.Join(cache, "vkmla")
	}
	var include string
	for _, dir := range []string{filepath.Join(tools, "mesa", "root", "usr", "include"), "/usr/include"} {
		if _, err := os.Stat(filepath.Join(dir, "vulkan/vulkan_core.h")); err == nil {
			include = dir
			break
		}
	}
	if include == "" {
		t.Skip("no Vulkan headers installed")
	}
	abi, err := filepath.Abs("abi.h")
	require.NoError(t, err)
	var c strings.Builder
	c.WriteString("#include <stddef.h>\n#include <vulkan/vulkan_core.h>\n#include \"" + abi + "\"\n" + `
typedef void *HANDLE; typedef const void *LPCWSTR; typedef unsigned long DWORD; typedef struct SECURITY_ATTRIBUTES SECURITY_ATTRIBUTES;
typedef void *HINSTANCE, *HWND, *HMONITOR; // vulkan_win32.h without windows.h
#include <vulkan/vulkan_win32.h>
#define SIZE(a, b) _Static_assert(sizeof(a) == sizeof(b), #a)
#define AT(a, b, f) _Static_assert(offsetof(a, f) == offsetof(b, f), #a "." #f)
#define SAME(a, b) _Static_assert((long)(a) == (long)(b), #a)
`)
	for _, line := range strings.Fields(`
SIZE(VmApplicationInfo,VkApplicationInfo) SIZE(VmInstanceCreateInfo,VkInstanceCreateInfo) SIZE(VmDeviceQueueCreateInfo,VkDeviceQueueCreateInfo)
SIZE(VmDeviceCreateInfo,VkDeviceCreateInfo) SIZE(VmSubmitInfo,VkSubmitInfo) AT(VmSubmitInfo,VkSubmitInfo,pCommandBuffers)
SIZE(VmMemoryAllocateInfo,VkMemoryAllocateInfo) SIZE(VmMemoryAllocateFlagsInfo,VkMemoryAllocateFlagsInfo) SIZE(VmBufferDeviceAddressInfo,VkBufferDeviceAddressInfo)
SIZE(VmMemoryBarrier,VkMemoryBarrier) SIZE(VmBufferCopy,VkBufferCopy) SIZE(VmDescriptorBufferInfo,VkDescriptorBufferInfo) SIZE(VmWriteDescriptorSet,VkWriteDescriptorSet)
SIZE(VmSpecializationMapEntry,VkSpecializationMapEntry) SIZE(VmSpecializationInfo,VkSpecializationInfo) SIZE(VmRequiredSubgroupSize,VkPipelineShaderStageRequiredSubgroupSizeCreateInfo)
SIZE(VmPipelineShaderStageCreateInfo,VkPipelineShaderStageCreateInfo) SIZE(VmComputePipelineCreateInfo,VkComputePipelineCreateInfo)
SIZE(VmExtensionProperties,VkExtensionProperties) SIZE(VmLayerProperties,VkLayerProperties) SIZE(VmQueueFamilyProperties,VkQueueFamilyProperties)
SIZE(VmMemoryProperties,VkPhysicalDeviceMemoryProperties) SIZE(VmProperties,VkPhysicalDeviceProperties) SIZE(VmProperties2,VkPhysicalDeviceProperties2)
SIZE(VmLimits,VkPhysicalDeviceLimits) AT(VmLimits,VkPhysicalDeviceLimits,maxStorageBufferRange) AT(VmLimits,VkPhysicalDeviceLimits,maxPushConstantsSize)
AT(VmLimits,VkPhysicalDeviceLimits,maxPerStageDescriptorStorageBuffers) AT(VmLimits,VkPhysicalDeviceLimits,maxDescriptorSetStorageBuffers)
AT(VmLimits,VkPhysicalDeviceLimits,maxComputeSharedMemorySize) AT(VmLimits,VkPhysicalDeviceLimits,maxComputeWorkGroupCount)
AT(VmLimits,VkPhysicalDeviceLimits,maxComputeWorkGroupInvocations) AT(VmLimits,VkPhysicalDeviceLimits,minStorageBufferOffsetAlignment)
AT(VmLimits,VkPhysicalDeviceLimits,timestampPeriod) AT(VmLimits,VkPhysicalDeviceLimits,nonCoherentAtomSize)
SIZE(VmVulkan11Properties,VkPhysicalDeviceVulkan11Properties) AT(VmVulkan11Properties,VkPhysicalDeviceVulkan11Properties,subgroupSize)
AT(VmVulkan11Properties,VkPhysicalDeviceVulkan11Properties,maxMemoryAllocationSize) SIZE(VmDriverProperties,VkPhysicalDeviceDriverProperties)
SIZE(VmSubgroupSizeProperties,VkPhysicalDeviceSubgroupSizeControlProperties) SIZE(VmFeatures,VkPhysicalDeviceFeatures) AT(VmFeatures,VkPhysicalDeviceFeatures,shaderInt64)
SIZE(VmVulkan11Features,VkPhysicalDeviceVulkan11Features) SIZE(VmVulkan12Features,VkPhysicalDeviceVulkan12Features) SIZE(VmVulkan13Features,VkPhysicalDeviceVulkan13Features)
AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,storageBuffer8BitAccess) AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,shaderFloat16)
AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,shaderSubgroupExtendedTypes) AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,timelineSemaphore)
AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,bufferDeviceAddress) AT(VmVulkan12Features,VkPhysicalDeviceVulkan12Features,vulkanMemoryModelDeviceScope)
AT(VmVulkan13Features,VkPhysicalDeviceVulkan13Features,subgroupSizeControl) AT(VmVulkan13Features,VkPhysicalDeviceVulkan13Features,maintenance4) AT(VmVulkan13Features,VkPhysicalDeviceVulkan13Features,shaderIntegerDotProduct)
SIZE(VmPipelineExecutableFeatures,VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR)
SIZE(VmPipelineExecutableInfo,VkPipelineExecutableInfoKHR) SIZE(VmPipelineExecutableStatistic,VkPipelineExecutableStatisticKHR)
AT(VmPipelineExecutableStatistic,VkPipelineExecutableStatisticKHR,format) AT(VmPipelineExecutableStatistic,VkPipelineExecutableStatisticKHR,value)
SAME(VM_STYPE_PIPELINE_EXECUTABLE_INFO,VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR)
SAME(VM_STYPE_PIPELINE_EXECUTABLE_STATISTIC,VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR)
SAME(VM_PIPELINE_CREATE_CAPTURE_STATISTICS,VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR)
SIZE(VmPipelineExecutableRepresentation,VkPipelineExecutableInternalRepresentationKHR)
AT(VmPipelineExecutableRepresentation,VkPipelineExecutableInternalRepresentationKHR,isText)
AT(VmPipelineExecutableRepresentation,VkPipelineExecutableInternalRepresentationKHR,pData)
SAME(VM_STYPE_PIPELINE_EXECUTABLE_REPRESENTATION,VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR)
SAME(VM_PIPELINE_CREATE_CAPTURE_REPRESENTATIONS,VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR)
SIZE(VmDebugMessengerCreateInfo,VkDebugUtilsMessengerCreateInfoEXT) SIZE(VmValidationFeatures,VkValidationFeaturesEXT)
SIZE(VmLayerSetting,VkLayerSettingEXT) AT(VmLayerSetting,VkLayerSettingEXT,pValues) SIZE(VmLayerSettings,VkLayerSettingsCreateInfoEXT) AT(VmLayerSettings,VkLayerSettingsCreateInfoEXT,pSettings)
AT(VmDebugCallbackData,VkDebugUtilsMessengerCallbackDataEXT,pMessageIdName) AT(VmDebugCallbackData,VkDebugUtilsMessengerCallbackDataEXT,pMessage)
SAME(VM_STYPE_APPLICATION_INFO,VK_STRUCTURE_TYPE_APPLICATION_INFO) SAME(VM_STYPE_INSTANCE_CREATE_INFO,VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO)
SAME(VM_STYPE_DEVICE_QUEUE_CREATE_INFO,VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO) SAME(VM_STYPE_DEVICE_CREATE_INFO,VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO)
SAME(VM_STYPE_SUBMIT_INFO,VK_STRUCTURE_TYPE_SUBMIT_INFO) SAME(VM_STYPE_MEMORY_ALLOCATE_INFO,VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO)
SAME(VM_STYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO)
SAME(VM_STYPE_COMPUTE_PIPELINE_CREATE_INFO,VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO) SAME(VM_STYPE_WRITE_DESCRIPTOR_SET,VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET)
SAME(VM_STYPE_MEMORY_BARRIER,VK_STRUCTURE_TYPE_MEMORY_BARRIER) SAME(VM_STYPE_VULKAN_1_1_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
SAME(VM_STYPE_VULKAN_1_1_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES) SAME(VM_STYPE_VULKAN_1_2_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)
SAME(VM_STYPE_VULKAN_1_3_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES) SAME(VM_STYPE_FEATURES_2,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
SAME(VM_STYPE_PROPERTIES_2,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2) SAME(VM_STYPE_MEMORY_ALLOCATE_FLAGS_INFO,VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO)
SAME(VM_STYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO,VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT) SAME(VM_STYPE_DRIVER_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES)
SAME(VM_STYPE_SUBGROUP_SIZE_CONTROL_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES)
SIZE(VmMaintenance4Properties,VkPhysicalDeviceMaintenance4Properties)
SIZE(VmFloatControlsProperties,VkPhysicalDeviceFloatControlsProperties)
AT(VmFloatControlsProperties,VkPhysicalDeviceFloatControlsProperties,shaderDenormPreserveFloat16)
AT(VmFloatControlsProperties,VkPhysicalDeviceFloatControlsProperties,shaderRoundingModeRTEFloat16)
SAME(VM_STYPE_FLOAT_CONTROLS_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES)
SAME(VM_STYPE_MAINTENANCE_4_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES)
AT(VmLimits,VkPhysicalDeviceLimits,maxComputeWorkGroupSize)
SAME(VM_STYPE_REQUIRED_SUBGROUP_SIZE,VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO)
SAME(VM_STYPE_BUFFER_DEVICE_ADDRESS_INFO,VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO) SAME(VM_STYPE_VALIDATION_FEATURES,VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT) SAME(VM_STYPE_LAYER_SETTINGS,VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT)
SAME(VM_STYPE_PIPELINE_EXECUTABLE_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR)
` + abiExternal) {
		c.WriteString(line + ";\n")
	}
	c.WriteString("#ifdef VK_KHR_cooperative_matrix\n")
	c.WriteString("SIZE(VmCoopMatFeatures,VkPhysicalDeviceCooperativeMatrixFeaturesKHR);SIZE(VmCoopMatProperties,VkCooperativeMatrixPropertiesKHR);\n")
	c.WriteString("SAME(VM_STYPE_COOPERATIVE_MATRIX_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);SAME(VM_STYPE_COOPERATIVE_MATRIX_PROPERTIES,VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR);\n#endif\n")
	c.WriteString("SIZE(VmShaderSMProperties,VkPhysicalDeviceShaderSMBuiltinsPropertiesNV);AT(VmShaderSMProperties,VkPhysicalDeviceShaderSMBuiltinsPropertiesNV,shaderSMCount);\n")
	c.WriteString("SAME(VM_STYPE_SHADER_SM_BUILTINS_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);\n")
	c.WriteString("SIZE(VmShaderCoreProperties,VkPhysicalDeviceShaderCoreProperties2AMD);AT(VmShaderCoreProperties,VkPhysicalDeviceShaderCoreProperties2AMD,activeComputeUnitCount);\n")
	c.WriteString("SAME(VM_STYPE_SHADER_CORE_PROPERTIES_2,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD);\n")
	for _, f := range []string{"shaderEngineCount", "shaderArraysPerEngineCount", "computeUnitsPerShaderArray"} {
		c.WriteString("AT(VmShaderArrayProperties,VkPhysicalDeviceShaderCorePropertiesAMD," + f + ");\n")
	}
	c.WriteString("SIZE(VmShaderArrayProperties,VkPhysicalDeviceShaderCorePropertiesAMD);\n")
	c.WriteString("SAME(VM_STYPE_SHADER_CORE_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);\n")
	c.WriteString("SIZE(VmShaderBuiltinsProperties,VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM);" +
		"AT(VmShaderBuiltinsProperties,VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM,shaderCoreCount);\n")
	c.WriteString("SAME(VM_STYPE_SHADER_CORE_BUILTINS_PROPERTIES," +
		"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM);\n")
	c.WriteString("#ifdef VK_KHR_shader_integer_dot_product\n")
	c.WriteString("SIZE(VmIntegerDotProperties,VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR);" +
		"AT(VmIntegerDotProperties,VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR,integerDotProduct4x8BitPackedMixedSignednessAccelerated);\n")
	c.WriteString("SAME(VM_STYPE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES," +
		"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR);\n#endif\n")
	c.WriteString("#ifdef VK_KHR_shader_bfloat16\n")
	c.WriteString("SIZE(VmBFloat16Features,VkPhysicalDeviceShaderBfloat16FeaturesKHR);SAME(VM_STYPE_SHADER_BFLOAT16_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR);\n#endif\n")
	c.WriteString("#ifdef VK_EXT_shader_float8\n")
	c.WriteString("SIZE(VmFloat8Features,VkPhysicalDeviceShaderFloat8FeaturesEXT);" +
		"SAME(VM_STYPE_SHADER_FLOAT8_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT8_FEATURES_EXT);\n#endif\n")
	c.WriteString("#ifdef VK_VALVE_shader_mixed_float_dot_product\n")
	c.WriteString("SIZE(VmMixedDotFeatures,VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE);" +
		"SAME(VM_STYPE_MIXED_DOT_FEATURES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_MIXED_FLOAT_DOT_PRODUCT_FEATURES_VALVE);\n#endif\n")
	c.WriteString(`
SIZE(VmMemoryProperties2,VkPhysicalDeviceMemoryProperties2); SIZE(VmMemoryBudget,VkPhysicalDeviceMemoryBudgetPropertiesEXT);
SAME(VM_STYPE_MEMORY_PROPERTIES_2,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
SAME(VM_STYPE_MEMORY_BUDGET_PROPERTIES,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
#ifdef VK_EXT_device_fault
SIZE(VmFaultFeaturesEXT,VkPhysicalDeviceFaultFeaturesEXT); SIZE(VmFaultCounts,VkDeviceFaultCountsEXT);
SIZE(VmFaultInfoEXT,VkDeviceFaultInfoEXT); SIZE(VmFaultAddress,VkDeviceFaultAddressInfoEXT); SIZE(VmFaultVendor,VkDeviceFaultVendorInfoEXT);
AT(VmFaultInfoEXT,VkDeviceFaultInfoEXT,pVendorInfos); AT(VmFaultCounts,VkDeviceFaultCountsEXT,vendorBinarySize);
AT(VmFaultVendor,VkDeviceFaultVendorInfoEXT,vendorFaultCode); AT(VmFaultAddress,VkDeviceFaultAddressInfoEXT,addressPrecision);
SAME(VM_STYPE_FAULT_FEATURES_EXT,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FAULT_FEATURES_EXT);
SAME(VM_STYPE_FAULT_COUNTS_EXT,VK_STRUCTURE_TYPE_DEVICE_FAULT_COUNTS_EXT);
SAME(VM_STYPE_FAULT_INFO_EXT,VK_STRUCTURE_TYPE_DEVICE_FAULT_INFO_EXT);
#endif
#ifdef VK_KHR_device_fault
SIZE(VmFaultFeaturesKHR,VkPhysicalDeviceFaultFeaturesKHR); SIZE(VmFaultInfoKHR,VkDeviceFaultInfoKHR);
AT(VmFaultInfoKHR,VkDeviceFaultInfoKHR,vendorInfo); AT(VmFaultInfoKHR,VkDeviceFaultInfoKHR,description);
SAME(VM_STYPE_FAULT_FEATURES_KHR,VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FAULT_FEATURES_KHR);
SAME(VM_STYPE_FAULT_INFO_KHR,VK_STRUCTURE_TYPE_DEVICE_FAULT_INFO_KHR);
#endif
`)
	for name, id := range map[string]vk.DriverID{
		"AMD_PROPRIETARY": tuning.DriverAMD, "AMD_OPEN_SOURCE": tuning.DriverAMDVLK, "MESA_RADV": tuning.DriverRADV,
		"NVIDIA_PROPRIETARY": tuning.DriverNVIDIA, "INTEL_PROPRIETARY_WINDOWS": tuning.DriverIntelWindows, "INTEL_OPEN_SOURCE_MESA": tuning.DriverANV} {
		fmt.Fprintf(&c, "SAME(%d,VK_DRIVER_ID_%s);\n", id, name)
	}
	file := filepath.Join(t.TempDir(), "abi_check.c")
	require.NoError(t, os.WriteFile(file, []byte(c.String()), 0o644))
	out, err := exec.Command("gcc", "-I", include, "-fsyntax-only", file).CombinedOutput()
	assert.NoError(t, err, "abi.h differs from %s: %s", include, out)
}

// The validation layer reports a real mistake: the other tests rely on it.
func TestValidationSpeaks(t *testing.T) {
	if !door.HasValidation() || os.Getenv("VKMLA_TEST_VALIDATION") == "off" {
		t.Skip("no validation layer")
	}
	heard := 0
	in, err := vk.NewInstance(vk.InstanceOptions{Validation: vk.ValidationCore, OnMessage: func(vk.Message) { heard++ }})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	defer d.Close()
	s, err := kernels.Get("bench_copy")
	require.NoError(t, err)
	const version = 5 // the byte of the minor one; there is no 1.9
	code := slices.Clone(s.SPIRV)
	code[version] = 9
	k, err := d.Kernel(vk.KernelSpec{Name: s.Name, SPIRV: code, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 8})
	if err == nil {
		err = k.Ready()
	}
	if err != nil {
		t.Logf("kernel: %v", err)
	}
	assert.NotEqual(t, 0, heard, "a module of no version raised no validation message")
}
