#!/usr/bin/env bash
# lavapipe of Mesa 25.0 and 26.2 takes subgroupBarrier() for the workgroup's barrier(). Where one subgroup
# alone executes it, that subgroup waits for the others to come to their next barrier(), and they go on
# from there before it has: they read 1, which the subgroup was to replace by 7. Mesa 22.3 is right.
#
# One would expect that control flow must be uniform in a subgroup only, as SPIR-V says of a barrier with
# the scope Subgroup, and on a driver whose subgroups are vectors of one thread that it does nothing. A
# kernel that gives subgroups loops of different lengths is right on GPUs and loses results here, without
# a message.
#
# Needs a C compiler and a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
trixie=25.0.7-2+deb13u1 sid=26.2.6-1
get trixie libvulkan1 "mesa-vulkan-drivers=$trixie"
get sid libvulkan1 "mesa-vulkan-drivers=$sid" libvulkan-dev glslc

cat >last.comp <<'END'
#version 460
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 32) in;
layout(std430, set = 0, binding = 0) buffer Y { uint y[32]; };
shared uint s;
void main() {
    if (gl_LocalInvocationIndex == 0u) s = 1u;
    barrier();
    if (gl_SubgroupID == gl_NumSubgroups - 1u) {
        subgroupBarrier();
        if (gl_SubgroupInvocationID == 0u) s = 7u;
    }
    barrier();
    y[gl_LocalInvocationIndex] = s;
}
END
cat >dispatch.c <<'END'
#include <stdio.h>
#include <vulkan/vulkan.h>
#define S(type) .sType = VK_STRUCTURE_TYPE_##type
#define DO(call) do { VkResult r = call; if (r != VK_SUCCESS) { printf("%s: %d\n", #call, r); return 1; } } while (0)
int main(void) {
    static uint32_t words[4096];
    FILE *f = fopen("last.spv", "rb");
    size_t size = f ? fread(words, 1, sizeof words, f) : 0;
    uint32_t one = 1, *y;
    float priority = 1;
    VkInstance instance;
    VkPhysicalDevice gpu;
    VkDevice device;
    VkQueue queue;
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkShaderModule module;
    VkPipeline pipeline;
    VkDescriptorPool sets;
    VkDescriptorSet set;
    VkCommandPool pool;
    VkCommandBuffer commands;
    DO(vkCreateInstance(&(VkInstanceCreateInfo){S(INSTANCE_CREATE_INFO),
        .pApplicationInfo = &(VkApplicationInfo){S(APPLICATION_INFO), .apiVersion = VK_API_VERSION_1_2}}, NULL, &instance));
    DO(vkEnumeratePhysicalDevices(instance, &one, &gpu));
    VkPhysicalDeviceSubgroupProperties subgroups = {S(PHYSICAL_DEVICE_SUBGROUP_PROPERTIES)};
    VkPhysicalDeviceProperties2 properties = {S(PHYSICAL_DEVICE_PROPERTIES_2), .pNext = &subgroups};
    vkGetPhysicalDeviceProperties2(gpu, &properties);
    DO(vkCreateDevice(gpu, &(VkDeviceCreateInfo){S(DEVICE_CREATE_INFO), .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &(VkDeviceQueueCreateInfo){S(DEVICE_QUEUE_CREATE_INFO), .queueCount = 1, .pQueuePriorities = &priority}},
        NULL, &device));
    vkGetDeviceQueue(device, 0, 0, &queue);
    DO(vkCreateBuffer(device, &(VkBufferCreateInfo){S(BUFFER_CREATE_INFO), .size = 128,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT}, NULL, &buffer));
    DO(vkAllocateMemory(device, &(VkMemoryAllocateInfo){S(MEMORY_ALLOCATE_INFO), .allocationSize = 4096}, NULL, &memory));
    DO(vkBindBufferMemory(device, buffer, memory, 0));
    DO(vkMapMemory(device, memory, 0, 128, 0, (void **)&y));
    DO(vkCreateDescriptorSetLayout(device, &(VkDescriptorSetLayoutCreateInfo){S(DESCRIPTOR_SET_LAYOUT_CREATE_INFO), .bindingCount = 1,
        .pBindings = &(VkDescriptorSetLayoutBinding){0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL}},
        NULL, &set_layout));
    DO(vkCreatePipelineLayout(device, &(VkPipelineLayoutCreateInfo){S(PIPELINE_LAYOUT_CREATE_INFO), .setLayoutCount = 1,
        .pSetLayouts = &set_layout}, NULL, &layout));
    DO(vkCreateShaderModule(device, &(VkShaderModuleCreateInfo){S(SHADER_MODULE_CREATE_INFO), .codeSize = size, .pCode = words},
        NULL, &module));
    DO(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &(VkComputePipelineCreateInfo){S(COMPUTE_PIPELINE_CREATE_INFO),
        .layout = layout, .stage = {S(PIPELINE_SHADER_STAGE_CREATE_INFO), .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module,
        .pName = "main"}}, NULL, &pipeline));
    DO(vkCreateDescriptorPool(device, &(VkDescriptorPoolCreateInfo){S(DESCRIPTOR_POOL_CREATE_INFO), .maxSets = 1, .poolSizeCount = 1,
        .pPoolSizes = &(VkDescriptorPoolSize){VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1}}, NULL, &sets));
    DO(vkAllocateDescriptorSets(device, &(VkDescriptorSetAllocateInfo){S(DESCRIPTOR_SET_ALLOCATE_INFO), .descriptorPool = sets,
        .descriptorSetCount = 1, .pSetLayouts = &set_layout}, &set));
    vkUpdateDescriptorSets(device, 1, &(VkWriteDescriptorSet){S(WRITE_DESCRIPTOR_SET), .dstSet = set, .descriptorCount = 1,
        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &(VkDescriptorBufferInfo){buffer, 0, 128}}, 0, NULL);
    DO(vkCreateCommandPool(device, &(VkCommandPoolCreateInfo){S(COMMAND_POOL_CREATE_INFO)}, NULL, &pool));
    DO(vkAllocateCommandBuffers(device, &(VkCommandBufferAllocateInfo){S(COMMAND_BUFFER_ALLOCATE_INFO), .commandPool = pool,
        .commandBufferCount = 1}, &commands));
    DO(vkBeginCommandBuffer(commands, &(VkCommandBufferBeginInfo){S(COMMAND_BUFFER_BEGIN_INFO)}));
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
    vkCmdDispatch(commands, 1, 1, 1);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
        &(VkMemoryBarrier){S(MEMORY_BARRIER), .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT, .dstAccessMask = VK_ACCESS_HOST_READ_BIT},
        0, NULL, 0, NULL);
    DO(vkEndCommandBuffer(commands));
    DO(vkQueueSubmit(queue, 1, &(VkSubmitInfo){S(SUBMIT_INFO), .commandBufferCount = 1, .pCommandBuffers = &commands}, VK_NULL_HANDLE));
    DO(vkQueueWaitIdle(queue));
    printf("%s, %u subgroups:", properties.properties.deviceName, 32 / subgroups.subgroupSize);
    for (int i = 0; i < 32; i += subgroups.subgroupSize) printf(" %u", y[i]);
    printf("\n");
    return 0;
}
END
with sid sid/usr/bin/glslc --target-env=vulkan1.2 -O -o last.spv last.comp
cc -o dispatch -Isid/usr/include dispatch.c -L"sid/$lib" -l:libvulkan.so.1 -Wl,--allow-shlib-undefined

# run SUITE: what lavapipe of that suite writes.
run() {
  printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.2.0"}}\n' "$tmp/$1/$lib/libvulkan_lvp.so" >icd.json
  VK_DRIVER_FILES=icd.json VK_ICD_FILENAMES=icd.json VK_LOADER_LAYERS_DISABLE='*' NODEVICE_SELECT=1 with "$1" ./dispatch
}
echo "expected of each subgroup: 7"
for suite in trixie sid; do
  echo "lavapipe ${!suite}: $(run "$suite")" | tee -a seen
done
[ "$(grep -c ', 4 subgroups: 1 1 1 7$' seen)" -eq 2 ] || { echo "this has changed"; exit 1; }
