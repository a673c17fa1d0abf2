package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// plan says where --offload would put the parts of a model, before any of it is read. The device
// tells how much memory caches and steps take: with --memory it need not be the one planned for,
// and none has to be here.
func plan(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet("server plan", flag.ContinueOnError)
	o.modelFlags(f)
	o.sizeFlags(f)
	if err := parseFlags(f, args, "Plan says which parts of a model --offload puts on the GPU.\n"); err != nil {
		return err
	}
	o.offload = true
	if err := o.checkModel(); err != nil {
		return err
	}
	say := func(dev *vk.Device) error {
		at, err := model.Plan(ctx, dev, o.dir, o.modelOptions())
		if err == nil {
			_, err = fmt.Fprintln(out, at)
		}
		return err
	}
	err := o.withDevice(say)
	if o.device != "" || !errors.Is(err, vk.ErrNoDevice) && !errors.Is(err, vk.ErrNoLoader) {
		return err
	}
	if o.memory == 0 {
		return fmt.Errorf("%w; --memory 24GiB plans for a card that is not here", err)
	}
	dev := usual.Absent(vk.DeviceOptions{})
	defer dev.Close()
	fmt.Fprintln(out, "no Vulkan device is here: for a GPU with the usual limits,")
	return say(dev)
}

// usual is a GPU as desktops have, with limits that all of them reach.
var usual = vk.Adapter{Name: "a usual GPU", Type: vk.TypeDiscrete, Caps: vk.Caps{
	MaxStorageBufferRange: 1<<32 - 1, MaxAllocation: 1 << 31, MaxBuffer: 1 << 31, StorageAlignment: 16,
	MaxStorageBuffers: 1 << 20, MaxPushConstants: 128, SharedMemory: 32 << 10,
	MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535},
	SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32,
	Features: map[string]bool{"storageBuffer16BitAccess": true, "storageBuffer8BitAccess": true, "shaderInt64": true,
		"shaderInt16": true, "shaderInt8": true, "bufferDeviceAddress": true, "vulkanMemoryModel": true,
		"vulkanMemoryModelDeviceScope": true, "subgroupShuffle": true, "subgroupArithmetic": true, "subgroupBallot": true,
		"shaderSubgroupExtendedTypes": true, "subgroupSizeControl": true, "computeFullSubgroups": true, "shaderFloat16": true,
		"synchronization2": true, "maintenance4": true, "timelineSemaphore": true},
}}
