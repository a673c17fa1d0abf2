// A library between vkmla and the Vulkan loader, which makes calls fail on demand. It exports
// vkGetInstanceProcAddr; vk.InstanceOptions.Library opens it. A file that the process maps, named
// by VKMLA_FAULTS, says what is to fail and counts what happened: faults.go has the same layout.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CALLS = 40, OBJECTS = 16, FENCES = 4096 };
enum { SUCCESS = 0, NOT_READY = 1, TIMEOUT = 2, DEVICE_LOST = -4 };

typedef uintptr_t W;
typedef int (*Call)(W, W, W, W, W, W, W, W);
typedef int (*Call4)(W, W, W, W);
typedef void (*Void)(W, W, W);
typedef void *(*Lookup)(void *, const char *);

#define REAL(name) static void *real_##name
#define PASS(name) ((Call)real_##name)(a, b, c, d, e, f, g, h)
#define ARGS W a, W b, W c, W d, W e, W f, W g, W h

#include "pretend.h"
#include "slow.h"
#include "turn.h"

struct control {
	_Atomic uint32_t call;  // the call that fails: an index of calls in faults.go, CALLS for any
	_Atomic uint32_t after; // calls that succeed before; all ones: none fails
	_Atomic int32_t code;   // VkResult of the one that fails
	_Atomic uint32_t lose;  // from then on the device is lost
	_Atomic uint32_t lost;
	_Atomic uint32_t hang; // fences do not signal
	_Atomic uint32_t drop; // work is not done, but its fences signal
	_Atomic uint32_t hits;
	_Atomic uint32_t orphans; // fences destroyed while their work was with the device
	_Atomic uint32_t last;    // the call that failed last
	_Atomic uint32_t seen[CALLS];
	_Atomic int32_t live[OBJECTS];
	struct pretend pretend;
	struct slow slow;
	_Atomic uint32_t turn; // STRAIGHT, TURNED, BLIND
};

static struct control none, *ctl = &none;
static _Atomic uint64_t busy[FENCES]; // fences of submissions that nobody has seen finish

static struct pretend *pretended(void) { return &ctl->pretend; }
static struct slow *slowness(void) { return &ctl->slow; }
static uint32_t turning(void) { return ctl->turn; }
static int is_lost(void) { return ctl->lost; }

static Lookup instance_lookup, device_lookup;
static void *real_vkDeviceWaitIdle;
static W device; // the one that made the last buffer

// fails counts a call and tells whether it fails. Once the device is lost, calls that wait for it
// or give it work do.
static int fails(int call, int waits, int *code) {
	ctl->seen[call]++;
	if (ctl->lost && waits) {
		*code = DEVICE_LOST;
		return 1;
	}
	if (ctl->after == UINT32_MAX || (ctl->call != CALLS && ctl->call != (uint32_t)call)) return 0;
	if (ctl->after-- != 0) return 0;
	ctl->hits++;
	ctl->last = call;
	if (ctl->lose) {
		// A driver whose device is lost no longer uses what is destroyed.
		if (device && real_vkDeviceWaitIdle) ((int (*)(W))real_vkDeviceWaitIdle)(device);
		ctl->lost = 1;
	}
	*code = ctl->code;
	return 1;
}

static void mark(uint64_t fence, int on) {
	for (int i = 0; i < FENCES; i++) {
		uint64_t want = on ? 0 : fence;
		if (atomic_compare_exchange_strong(&busy[i], &want, on ? fence : 0)) return;
	}
}

static int marked(uint64_t fence) {
	for (int i = 0; i < FENCES; i++)
		if (busy[i] == fence) return 1;
	return 0;
}

#define PLAIN(call, waits, name) \
	REAL(name); \
	static int our_##name(ARGS) { \
		int code; \
		return fails(call, waits, &code) ? code : PASS(name); \
	}
#define MAKES(call, object, name) \
	REAL(name); \
	static int our_##name(ARGS) { \
		int code; \
		if (fails(call, 0, &code)) return code; \
		if ((code = PASS(name)) == SUCCESS) ctl->live[object]++; \
		return code; \
	}
#define ENDS(object, name) \
	REAL(name); \
	static void our_##name(W a, W b, W c) { \
		if (b) ctl->live[object]--; \
		((Void)real_##name)(a, b, c); \
	}

static int our_vkAllocateMemory(ARGS) {
	int code;
	if (fails(0, 0, &code)) return code;
	if ((code = allocate(a, (void *)b, c, (void *)d)) == SUCCESS) ctl->live[0]++;
	return code;
}
REAL(vkCreateBuffer);
static int our_vkCreateBuffer(ARGS) {
	int code;
	device = a;
	if (fails(1, 0, &code)) return code;
	if ((code = PASS(vkCreateBuffer)) == SUCCESS) ctl->live[1]++;
	return code;
}
PLAIN(2, 0, vkBindBufferMemory)
REAL(vkMapMemory);
static int our_vkMapMemory(ARGS) {
	int code;
	if (!may_map(b)) abort(); // a driver may do anything then
	return fails(3, 0, &code) ? code : PASS(vkMapMemory);
}
MAKES(4, 2, vkCreateCommandPool)
PLAIN(5, 0, vkAllocateCommandBuffers)
REAL(vkBeginCommandBuffer);
static int our_vkBeginCommandBuffer(ARGS) {
	int code;
	if (fails(6, 0, &code)) return code;
	begins(a);
	turn_begins(a);
	return PASS(vkBeginCommandBuffer);
}
REAL(vkEndCommandBuffer);
static int our_vkEndCommandBuffer(ARGS) {
	int code;
	if (fails(7, 0, &code)) return code;
	turn_ends(a);
	return PASS(vkEndCommandBuffer);
}
MAKES(8, 3, vkCreateFence)
PLAIN(9, 0, vkResetFences)
MAKES(13, 4, vkCreateDescriptorPool)
PLAIN(14, 0, vkAllocateDescriptorSets)
MAKES(15, 5, vkCreateDescriptorSetLayout)
MAKES(16, 6, vkCreatePipelineLayout)
REAL(vkCreateShaderModule);
static int our_vkCreateShaderModule(ARGS) {
	int code;
	if (fails(17, 0, &code)) return code;
	if ((code = PASS(vkCreateShaderModule)) == SUCCESS) {
		ctl->live[7]++;
		made_module(((uint64_t *)b)[3], *(uint64_t *)d);
	}
	return code;
}
REAL(vkCreateComputePipelines);
static int our_vkCreateComputePipelines(ARGS) {
	int code;
	if (fails(18, 0, &code)) return code;
	struct pipeline changed = *(struct pipeline *)d;
	struct special special;
	uint32_t data[64];
	change_constants(&changed, &special, data);
	if (c == 1) d = (W)&changed;
	if ((code = PASS(vkCreateComputePipelines)) == SUCCESS) {
		ctl->live[8]++;
		made_pipeline(*(uint64_t *)f, changed.flags);
	}
	return code;
}
MAKES(19, 9, vkCreateQueryPool)
REAL(vkGetQueryPoolResults);
static int our_vkGetQueryPoolResults(ARGS) {
	int code;
	if (fails(20, 1, &code)) return code;
	if ((code = PASS(vkGetQueryPoolResults)) == SUCCESS && h & 1) tells(b, c, d, f, g);
	return code;
}
MAKES(21, 10, vkCreatePipelineCache)
PLAIN(22, 0, vkGetPipelineCacheData)
REAL(vkCreateDevice);
static int our_vkCreateDevice(ARGS) {
	int code;
	if (fails(23, 0, &code)) return code;
	if ((code = create_device((int (*)(W, W, W, W))real_vkCreateDevice, a, b, c, d)) == SUCCESS) ctl->live[11]++;
	return code;
}
MAKES(24, 12, vkCreateInstance)
PLAIN(25, 0, vkEnumeratePhysicalDevices)
static int our_vkEnumerateDeviceExtensionProperties(ARGS) {
	int code;
	return fails(28, 0, &code) ? code : list_extensions(a, b, c, d, e, f, g, h);
}
PLAIN(29, 0, vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)
PLAIN(30, 0, vkGetPipelineExecutableStatisticsKHR)
MAKES(31, 13, vkCreateSemaphore)
PLAIN(32, 1, vkGetSemaphoreCounterValue)
PLAIN(33, 1, vkWaitSemaphores)
PLAIN(34, 0, vkSignalSemaphore)
PLAIN(35, 0, vkGetMemoryFdKHR)
PLAIN(36, 0, vkGetMemoryHostPointerPropertiesEXT)
REAL(vkFreeMemory);
static void our_vkFreeMemory(W a, W b, W c) {
	if (b) ctl->live[0]--;
	give_back(b);
	((Void)real_vkFreeMemory)(a, b, c);
}
ENDS(1, vkDestroyBuffer)
ENDS(2, vkDestroyCommandPool)
ENDS(4, vkDestroyDescriptorPool)
ENDS(5, vkDestroyDescriptorSetLayout)
ENDS(6, vkDestroyPipelineLayout)
ENDS(7, vkDestroyShaderModule)
REAL(vkDestroyPipeline);
static void our_vkDestroyPipeline(W a, W b, W c) {
	if (b) ctl->live[8]--;
	ended_pipeline(b);
	((Void)real_vkDestroyPipeline)(a, b, c);
}
ENDS(9, vkDestroyQueryPool)
ENDS(10, vkDestroyPipelineCache)
ENDS(13, vkDestroySemaphore)

REAL(vkDestroyDevice);
static void our_vkDestroyDevice(W a, W b) {
	ctl->live[11]--;
	device = 0;
	((void (*)(W, W))real_vkDestroyDevice)(a, b);
}

REAL(vkDestroyInstance);
static void our_vkDestroyInstance(W a, W b) {
	ctl->live[12]--;
	((void (*)(W, W))real_vkDestroyInstance)(a, b);
}

REAL(vkGetFenceStatus);
static int our_vkGetFenceStatus(ARGS) {
	int code;
	if (fails(10, 1, &code)) return code;
	if (ctl->hang || remains(b)) return NOT_READY;
	if ((code = PASS(vkGetFenceStatus)) == SUCCESS) mark(b, 0);
	return code;
}

REAL(vkWaitForFences);
static int our_vkWaitForFences(ARGS) {
	int code;
	if (fails(11, 1, &code)) return code;
	if (ctl->hang) {
		usleep(e / 1000);
		return TIMEOUT;
	}
	for (W i = 0; i < b; i++) {
		uint64_t left = remains(((uint64_t *)c)[i]);
		if (left > e) {
			usleep(e / 1000);
			return TIMEOUT;
		}
		usleep(left / 1000 + (left > 0));
	}
	if ((code = PASS(vkWaitForFences)) == SUCCESS)
		for (W i = 0; i < b; i++) mark(((uint64_t *)c)[i], 0);
	return code;
}

REAL(vkDestroyFence);
static void our_vkDestroyFence(W a, W b, W c) {
	if (b) {
		ctl->live[3]--;
		if (!ctl->lost && marked(b)) ctl->orphans++;
		mark(b, 0);
	}
	((Void)real_vkDestroyFence)(a, b, c);
}

// The layout of VkSubmitInfo on machines of 64 bits.
struct submit {
	uint64_t type, next, wait_count, waits, stages, count, commands, signal_count, signals;
};

REAL(vkQueueSubmit);
static int our_vkQueueSubmit(ARGS) {
	int code;
	if (fails(12, 1, &code)) return code;
	struct submit empty;
	if (ctl->drop && b == 1) {
		empty = *(struct submit *)c;
		empty.count = 0;
		c = (W)&empty;
	}
	if ((code = PASS(vkQueueSubmit)) == SUCCESS) {
		if (d) mark(d, 1);
		for (W i = 0; i < b; i++) {
			struct submit *s = (struct submit *)c + i;
			takes((uint64_t *)s->commands, (uint32_t)s->count, i + 1 == b ? d : 0);
		}
	}
	return code;
}

// A driver whose work does not end does not become idle.
#define IDLE(call, name) \
	static int our_##name(ARGS) { \
		int code; \
		while (ctl->hang) usleep(1000); \
		return fails(call, 1, &code) ? code : PASS(name); \
	}
IDLE(26, vkDeviceWaitIdle)
REAL(vkQueueWaitIdle);
IDLE(27, vkQueueWaitIdle)

static void *our_vkGetDeviceProcAddr(void *device, const char *name);

#define ENTRY(name) {#name, (void *)our_##name, &real_##name}
static struct {
	const char *name;
	void *ours, **real;
} entries[] = {
	ENTRY(vkAllocateMemory), ENTRY(vkCreateBuffer), ENTRY(vkBindBufferMemory), ENTRY(vkMapMemory),
	ENTRY(vkCreateCommandPool), ENTRY(vkAllocateCommandBuffers), ENTRY(vkBeginCommandBuffer), ENTRY(vkEndCommandBuffer),
	ENTRY(vkCreateFence), ENTRY(vkResetFences), ENTRY(vkGetFenceStatus), ENTRY(vkWaitForFences), ENTRY(vkQueueSubmit),
	ENTRY(vkCreateDescriptorPool), ENTRY(vkAllocateDescriptorSets), ENTRY(vkCreateDescriptorSetLayout),
	ENTRY(vkCreatePipelineLayout), ENTRY(vkCreateShaderModule), ENTRY(vkCreateComputePipelines), ENTRY(vkCreateQueryPool),
	ENTRY(vkGetQueryPoolResults), ENTRY(vkCreatePipelineCache), ENTRY(vkGetPipelineCacheData), ENTRY(vkCreateDevice),
	ENTRY(vkCreateInstance), ENTRY(vkEnumeratePhysicalDevices), ENTRY(vkFreeMemory), ENTRY(vkDestroyBuffer),
	ENTRY(vkDestroyCommandPool), ENTRY(vkDestroyDescriptorPool), ENTRY(vkDestroyDescriptorSetLayout),
	ENTRY(vkDestroyPipelineLayout), ENTRY(vkDestroyShaderModule), ENTRY(vkDestroyPipeline), ENTRY(vkDestroyQueryPool),
	ENTRY(vkDestroyPipelineCache), ENTRY(vkDestroyFence), ENTRY(vkDestroyDevice), ENTRY(vkDestroyInstance),
	ENTRY(vkDeviceWaitIdle), ENTRY(vkQueueWaitIdle), ENTRY(vkGetPhysicalDeviceProperties2), ENTRY(vkGetPhysicalDeviceFeatures2),
	ENTRY(vkGetPhysicalDeviceMemoryProperties2), ENTRY(vkGetPhysicalDeviceMemoryProperties), ENTRY(vkGetBufferMemoryRequirements),
	ENTRY(vkEnumerateDeviceExtensionProperties), ENTRY(vkCmdBindPipeline), ENTRY(vkCmdDispatch),
	ENTRY(vkCmdDispatchBase), ENTRY(vkCmdWriteTimestamp), ENTRY(vkCmdBindDescriptorSets), ENTRY(vkCmdPushConstants),
	ENTRY(vkCmdFillBuffer), ENTRY(vkCmdCopyBuffer), ENTRY(vkCmdPipelineBarrier),
	ENTRY(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR), ENTRY(vkGetPipelineExecutableStatisticsKHR),
	ENTRY(vkCreateSemaphore), ENTRY(vkDestroySemaphore), ENTRY(vkGetSemaphoreCounterValue), ENTRY(vkWaitSemaphores),
	ENTRY(vkSignalSemaphore), ENTRY(vkGetMemoryFdKHR), ENTRY(vkGetMemoryHostPointerPropertiesEXT),
};

static void *ours(const char *name, void *real) {
	if (!real) return real;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
		if (!strcmp(name, entries[i].name)) {
			*entries[i].real = real;
			return entries[i].ours;
		}
	return real;
}

static void *our_vkGetDeviceProcAddr(void *device, const char *name) {
	void *call = made_up_call(name);
	return call ? call : ours(name, device_lookup(device, name));
}

void *vkGetInstanceProcAddr(void *instance, const char *name) {
	if (!instance_lookup) {
		const char *path = getenv("VKMLA_FAULTS");
		int fd = path ? open(path, O_RDWR) : -1;
		if (fd >= 0) {
			void *p = mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (p != MAP_FAILED) ctl = p;
			close(fd);
		}
		void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
		if (!library) return NULL;
		instance_lookup = (Lookup)dlsym(library, "vkGetInstanceProcAddr");
	}
	if (!strcmp(name, "vkGetInstanceProcAddr")) return (void *)vkGetInstanceProcAddr;
	void *real = instance_lookup(instance, name);
	if (real && !strcmp(name, "vkGetDeviceProcAddr")) {
		device_lookup = (Lookup)real;
		return (void *)our_vkGetDeviceProcAddr;
	}
	return ours(name, real);
}
