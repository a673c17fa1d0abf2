//go:build linux

// Package faults makes Vulkan calls fail on demand: a small library between vkmla and the loader
// fails the n-th call of a kind, loses the device, lets it hang, drops its work, or makes it slow.
// Tests build the library from the source in this package and open it in place of the loader.
package faults

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unsafe"
)

//go:embed testdata/interposer.c
var source []byte

//go:embed testdata/pretend.h
var pretended []byte

//go:embed testdata/slow.h
var slowed []byte

//go:embed testdata/turn.h
var turned []byte

// Calls are those that can fail, in the order of the interposer's numbers.
var Calls = []string{
	"vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory", "vkCreateCommandPool", "vkAllocateCommandBuffers",
	"vkBeginCommandBuffer", "vkEndCommandBuffer", "vkCreateFence", "vkResetFences", "vkGetFenceStatus", "vkWaitForFences",
	"vkQueueSubmit", "vkCreateDescriptorPool", "vkAllocateDescriptorSets", "vkCreateDescriptorSetLayout", "vkCreatePipelineLayout",
	"vkCreateShaderModule", "vkCreateComputePipelines", "vkCreateQueryPool", "vkGetQueryPoolResults", "vkCreatePipelineCache",
	"vkGetPipelineCacheData", "vkCreateDevice", "vkCreateInstance", "vkEnumeratePhysicalDevices", "vkDeviceWaitIdle",
	"vkQueueWaitIdle", "vkEnumerateDeviceExtensionProperties", "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
	"vkGetPipelineExecutableStatisticsKHR", "vkCreateSemaphore", "vkGetSemaphoreCounterValue", "vkWaitSemaphores",
	"vkSignalSemaphore", "vkGetMemoryFdKHR", "vkGetMemoryHostPointerPropertiesEXT",
}

// Objects are the kinds whose live number is counted, in the order of the interposer's numbers.
var Objects = []string{
	"memory", "buffer", "command pool", "fence", "descriptor pool", "descriptor set layout", "pipeline layout", "shader module",
	"pipeline", "query pool", "pipeline cache", "device", "instance", "semaphore",
}

// Results that calls fail with.
const (
	OutOfHostMemory   = -1
	OutOfDeviceMemory = -2
	DeviceLost        = -4
)

const (
	maxCalls   = 40
	maxObjects = 16
	never      = 1<<32 - 1
)

// control is the interposer's struct control.
type control struct {
	call, after atomic.Uint32
	code        atomic.Int32
	lose, lost  atomic.Uint32
	hang, drop  atomic.Uint32
	hits        atomic.Uint32
	orphans     atomic.Uint32
	last        atomic.Uint32
	seen        [maxCalls]atomic.Uint32
	live        [maxObjects]atomic.Int32
	pretend     pretend
	slow        slow
	turn        atomic.Uint32
}

// Interposer is the library, built and ready to be opened.
type Interposer struct {
	Library string // for vk.InstanceOptions
	ctl     *control
	data    []byte
}

// Build builds the library in a folder that is empty, with the C compiler.
func Build(dir string) (library string, err error) {
	file, library := filepath.Join(dir, "interposer.c"), filepath.Join(dir, "libfaults.so")
	if err := errors.Join(os.WriteFile(file, source, 0o600), os.WriteFile(filepath.Join(dir, "pretend.h"), pretended, 0o600),
		os.WriteFile(filepath.Join(dir, "slow.h"), slowed, 0o600), os.WriteFile(filepath.Join(dir, "turn.h"), turned, 0o600)); err != nil {
		return "", err
	}
	build := exec.Command("cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, file, "-ldl")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("faults: build the interposer: %w: %s", err, out)
	}
	return library, nil
}

// New makes the interposer of a library, or of one that it builds if there is none. Its files are
// in a folder that is empty. A process opens one, and no other Vulkan loader before.
func New(library, dir string) (*Interposer, error) {
	if library == "" {
		var err error
		if library, err = Build(dir); err != nil {
			return nil, err
		}
	}
	state := filepath.Join(dir, "state")
	size := int(unsafe.Sizeof(control{}))
	if err := os.WriteFile(state, make([]byte, size), 0o600); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(state, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err := errors.Join(err, f.Close(), os.Setenv("VKMLA_FAULTS", state)); err != nil {
		return nil, err
	}
	x := &Interposer{Library: library, data: data, ctl: (*control)(unsafe.Pointer(unsafe.SliceData(data)))}
	x.Mend()
	return x, nil
}

// Fail lets the call after the next n of a kind fail with a code, once. The kind is an index of
// Calls, or len(Calls) for any of them. If the device is lost with it, all that wait for it or
// give it work fail from then on.
func (x *Interposer) Fail(call, n int, code int32, lose bool) {
	c := x.ctl
	c.after.Store(never)
	if call == len(Calls) {
		call = maxCalls
	}
	c.call.Store(uint32(call))
	c.code.Store(code)
	c.lose.Store(0)
	if lose {
		c.lose.Store(1)
	}
	c.hits.Store(0)
	c.after.Store(uint32(n))
}

// Hang keeps fences from being signalled, until Mend.
func (x *Interposer) Hang() { x.ctl.hang.Store(1) }

// Drop lets submissions do nothing, with their fences signalled, until Mend.
func (x *Interposer) Drop() { x.ctl.drop.Store(1) }

// Orders in which commands are given to the driver: as they are recorded; those between two
// barriers from the last to the first; all of a command buffer so, without its barriers, as a
// recorder would have it that found no conflict.
const (
	Straight = iota
	Turned
	Blind
)

// Turn has commands that are recorded from now on in one of these orders.
func (x *Interposer) Turn(order uint32) { x.ctl.turn.Store(order) }

// Mend ends all faults.
func (x *Interposer) Mend() {
	c := x.ctl
	c.after.Store(never)
	c.lost.Store(0)
	c.hang.Store(0)
	c.drop.Store(0)
}

// Hit reports whether a call failed since Fail, and which.
func (x *Interposer) Hit() (string, bool) {
	if x.ctl.hits.Load() == 0 {
		return "", false
	}
	return Calls[x.ctl.last.Load()], true
}

// Seen returns how many calls of a kind there were so far.
func (x *Interposer) Seen(call int) int { return int(x.ctl.seen[call].Load()) }

// Orphans returns how many fences were destroyed while their work was with the device.
func (x *Interposer) Orphans() int { return int(x.ctl.orphans.Load()) }

// Live counts the objects that were made and not destroyed.
func (x *Interposer) Live() map[string]int {
	m := map[string]int{}
	for i, name := range Objects {
		if n := int(x.ctl.live[i].Load()); n != 0 {
			m[name] = n
		}
	}
	return m
}
