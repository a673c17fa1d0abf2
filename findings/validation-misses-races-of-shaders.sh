#!/usr/bin/env bash
# Synchronisation validation of the Khronos layer 1.4.309, enabled as its documents say, says nothing
# of two dispatches of which the second reads what the first wrote, without a barrier between them.
# It looks at accesses of shaders only with a setting besides, syncval_shader_accesses_heuristic, which
# is off; then it reports SYNC-HAZARD-READ-AFTER-WRITE. Copies are looked at without it.
#
# One would expect that the one thing which synchronisation validation is for in a compute program,
# a missing barrier between dispatches, is seen: the layer 1.3.239 of Debian 12 does see it. A program
# whose tests are silent after an update of the layer may have lost its barriers.
#
# Executes on Mesa's software driver. Needs a C compiler and a Debian mirror among apt's sources.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/radv"
version=1.4.309.0-1
mesa trixie 25.0.7-2+deb13u1 glslc spirv-tools libvulkan-dev "vulkan-validationlayers=$version"

cat >add.comp <<'EOS'
#version 460
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(std430, set = 0, binding = 1) buffer Y { uint y[]; };
void main() { y[gl_GlobalInvocationID.x] = x[gl_GlobalInvocationID.x ^ 63u] + 1u; }
EOS
module add

# A dispatch from buffer 0 to 1 and one from 1 to 2; or, with "copies", the same by vkCmdCopyBuffer.
cat >race.c <<'EOS'
#include <stdio.h>
#include <string.h>
#include <vulkan/vulkan.h>
#define S(type) .sType = VK_STRUCTURE_TYPE_##type
#define DO(call) do { VkResult r = call; if (r != VK_SUCCESS) { printf("%s: %d\n", #call, r); return 1; } } while (0)
int main(int count, char **args) {
    int copies = !strcmp(args[count - 1], "copies");
    static uint32_t words[4096];
    FILE *f = fopen("add.spv", "rb");
    size_t size = f ? fread(words, 1, sizeof words, f) : 0;
    VkValidationFeatureEnableEXT enable = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    VkValidationFeaturesEXT features = {S(VALIDATION_FEATURES_EXT), .enabledValidationFeatureCount = 1,
        .pEnabledValidationFeatures = &enable};
    const char *layer = "VK_LAYER_KHRONOS_validation";
    VkApplicationInfo app = {S(APPLICATION_INFO), .apiVersion = VK_API_VERSION_1_2};
    VkInstance instance;
    DO(vkCreateInstance(&(VkInstanceCreateInfo){S(INSTANCE_CREATE_INFO), .pNext = &features, .pApplicationInfo = &app,
        .enabledLayerCount = 1, .ppEnabledLayerNames = &layer}, 0, &instance));
    uint32_t one = 1;
    VkPhysicalDevice gpu;
    vkEnumeratePhysicalDevices(instance, &one, &gpu);
    VkPhysicalDeviceProperties about;
    vkGetPhysicalDeviceProperties(gpu, &about);
    printf("%s\n", about.deviceName);
    float priority = 1;
    VkDeviceQueueCreateInfo queues = {S(DEVICE_QUEUE_CREATE_INFO), .queueCount = 1, .pQueuePriorities = &priority};
    VkDevice d;
    DO(vkCreateDevice(gpu, &(VkDeviceCreateInfo){S(DEVICE_CREATE_INFO), .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues}, 0, &d));
    VkQueue queue;
    vkGetDeviceQueue(d, 0, 0, &queue);
    VkBuffer b[3];
    VkDeviceMemory memory;
    for (int i = 0; i < 3; i++)
        DO(vkCreateBuffer(d, &(VkBufferCreateInfo){S(BUFFER_CREATE_INFO), .size = 256, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
            VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT}, 0, &b[i]));
    VkMemoryRequirements need;
    vkGetBufferMemoryRequirements(d, b[0], &need);
    DO(vkAllocateMemory(d, &(VkMemoryAllocateInfo){S(MEMORY_ALLOCATE_INFO), .allocationSize = 4096,
        .memoryTypeIndex = __builtin_ctz(need.memoryTypeBits)}, 0, &memory));
    for (int i = 0; i < 3; i++) {
        vkGetBufferMemoryRequirements(d, b[i], &need);
        DO(vkBindBufferMemory(d, b[i], memory, 1024 * i));
    }
    VkDescriptorSetLayoutBinding slots[2];
    for (int i = 0; i < 2; i++)
        slots[i] = (VkDescriptorSetLayoutBinding){i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, 0};
    VkDescriptorSetLayout set;
    DO(vkCreateDescriptorSetLayout(d, &(VkDescriptorSetLayoutCreateInfo){S(DESCRIPTOR_SET_LAYOUT_CREATE_INFO), .bindingCount = 2,
        .pBindings = slots}, 0, &set));
    VkPipelineLayout layout;
    DO(vkCreatePipelineLayout(d, &(VkPipelineLayoutCreateInfo){S(PIPELINE_LAYOUT_CREATE_INFO), .setLayoutCount = 1,
        .pSetLayouts = &set}, 0, &layout));
    VkShaderModule module;
    DO(vkCreateShaderModule(d, &(VkShaderModuleCreateInfo){S(SHADER_MODULE_CREATE_INFO), .codeSize = size, .pCode = words}, 0, &module));
    VkPipeline pipeline;
    DO(vkCreateComputePipelines(d, 0, 1, &(VkComputePipelineCreateInfo){S(COMPUTE_PIPELINE_CREATE_INFO), .layout = layout, .stage = {
        S(PIPELINE_SHADER_STAGE_CREATE_INFO), .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main"}}, 0, &pipeline));
    VkDescriptorPoolSize sizes = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 4};
    VkDescriptorPool pool;
    DO(vkCreateDescriptorPool(d, &(VkDescriptorPoolCreateInfo){S(DESCRIPTOR_POOL_CREATE_INFO), .maxSets = 2, .poolSizeCount = 1,
        .pPoolSizes = &sizes}, 0, &pool));
    VkDescriptorSet sets[2];
    DO(vkAllocateDescriptorSets(d, &(VkDescriptorSetAllocateInfo){S(DESCRIPTOR_SET_ALLOCATE_INFO), .descriptorPool = pool,
        .descriptorSetCount = 2, .pSetLayouts = (VkDescriptorSetLayout[]){set, set}}, sets));
    for (int i = 0; i < 4; i++)
        vkUpdateDescriptorSets(d, 1, &(VkWriteDescriptorSet){S(WRITE_DESCRIPTOR_SET), .dstSet = sets[i / 2], .dstBinding = i % 2,
            .descriptorCount = 1, .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            .pBufferInfo = &(VkDescriptorBufferInfo){b[i / 2 + i % 2], 0, 256}}, 0, 0);
    VkCommandPool commands;
    DO(vkCreateCommandPool(d, &(VkCommandPoolCreateInfo){S(COMMAND_POOL_CREATE_INFO)}, 0, &commands));
    VkCommandBuffer c;
    DO(vkAllocateCommandBuffers(d, &(VkCommandBufferAllocateInfo){S(COMMAND_BUFFER_ALLOCATE_INFO), .commandPool = commands,
        .commandBufferCount = 1}, &c));
    DO(vkBeginCommandBuffer(c, &(VkCommandBufferBeginInfo){S(COMMAND_BUFFER_BEGIN_INFO)}));
    vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    for (int i = 0; i < 2; i++)
        if (copies) {
            vkCmdCopyBuffer(c, b[i], b[i + 1], 1, &(VkBufferCopy){0, 0, 256});
        } else {
            vkCmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &sets[i], 0, 0);
            vkCmdDispatch(c, 1, 1, 1);
        }
    DO(vkEndCommandBuffer(c));
    DO(vkQueueSubmit(queue, 1, &(VkSubmitInfo){S(SUBMIT_INFO), .commandBufferCount = 1, .pCommandBuffers = &c}, 0));
    DO(vkQueueWaitIdle(queue));
    puts("done");
    fflush(stdout);
    _Exit(0);
}
EOS
sed -i '1i #include <stdlib.h>' race.c
cc -o race -Itrixie/usr/include race.c -L"trixie/$lib" -l:libvulkan.so.1 -Wl,--allow-shlib-undefined
sed "s|\"library_path\": *\"[^\"]*/|\"library_path\": \"$tmp/trixie/$lib/|" trixie/usr/share/vulkan/icd.d/lvp_icd*.json >icd.json
mkdir layers
sed "s|\"library_path\": *\"[^\"]*libVk|\"library_path\": \"$tmp/trixie/$lib/libVk|" \
  trixie/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json >layers/layer.json

# hazards WHAT [SETTING]: how many the layer reports.
hazards() {
  env VK_DRIVER_FILES="$tmp/icd.json" VK_LAYER_PATH="$tmp/layers" VK_LOADER_LAYERS_DISABLE='~implicit~' "${@:2}" \
    "$tmp/trixie/$lib/"ld-linux-*.so.* --library-path "$tmp/trixie/$lib" ./race "$1" >said 2>&1 || { cat said; exit 1; }
  grep -q '^done' said || { cat said; exit 1; }
  grep -oE 'SYNC-HAZARD-[A-Z-]+' said | sort -u >&2 || true
  grep -cE '^(Validation Error|VUID|.*SYNC-HAZARD)' said || true
}
echo "vulkan-validationlayers $version"
copies=$(hazards copies) plain=$(hazards dispatches) heuristic=$(hazards dispatches VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC=1)
sed -n 1p said
echo "messages for copies, dispatches, dispatches with the setting: expected some each; seen $copies, $plain and $heuristic"
[ "$copies" -gt 0 ] && [ "$plain" -eq 0 ] && [ "$heuristic" -gt 0 ] || { echo "this has changed"; exit 1; }
