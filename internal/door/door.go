// Package door leads to what package vk does for other packages of this module and does not offer
// to everybody: sharing, for vk/share; what compilers say of kernels; and what packages above keep
// of a device. vk fills it in. Devices, buffers, kernels and semaphores are vk's types, which this
// package cannot name.
package door

import (
	"sync"
	"unsafe"
)

// Exported is share.Exported.
type Exported struct {
	Handle uintptr
	Device string
	Driver string

	Size       uint64
	Allocated  uint64
	MemoryType uint32
	Dedicated  bool
}

// Handles is share.Handles.
type Handles struct {
	Instance, PhysicalDevice, Device, Queue unsafe.Pointer
	QueueFamily                             uint32
	GetInstanceProcAddr                     unsafe.Pointer
	APIVersion                              uint32
	Extensions, Features                    []string
	Lock                                    sync.Locker
}

// What package vk does for vk/share.
var (
	ExportBuffer    func(buffer any) (Exported, error)
	ImportBuffer    func(dev any, label string, memory int, x Exported) (buffer any, err error)
	ImportHost      func(dev any, label string, memory []byte, size uint64) (buffer any, err error)
	HostAlignment   func(dev any) uint64
	ExportSemaphore func(semaphore any) (Exported, error)
	ImportSemaphore func(dev any, x Exported) (semaphore any, err error)
	CloseHandle     func(handle uintptr) error
	Adopt           func(h Handles, options any) (dev any, err error)
	HandlesOf       func(dev any) Handles
)

// Statistic is a number that a driver's compiler gives for a kernel. Names and their
// meanings are the driver's own: "VGPRs", "Register Count", "Spilled VGPRs" and so on.
type Statistic struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Value       float64 `json:"value"`
}

// Listing is a text that a driver's compiler gives for a kernel, such as its instructions.
type Listing struct {
	Name, Text string // the name is the driver's own
}

var (
	// Statistics returns what the driver's compiler says about a kernel of a device.
	//
	// Errors: *vk.MissingError without the feature pipelineExecutableInfo; vk.ErrArgument unless
	// the device was opened with vk.DeviceOptions.Statistics; vk.ErrClosed, vk.ErrDeviceLost,
	// vk.ErrOutOfHostMemory, vk.ErrOutOfDeviceMemory; those of vk.Kernel.Ready.
	Statistics func(dev, kernel any) ([]Statistic, error)

	// Listings returns what the driver's compiler made of a kernel of a device, as text.
	//
	// Errors: those of Statistics, with vk.DeviceOptions.Listings in the place of Statistics.
	Listings func(dev, kernel any) ([]Listing, error)

	// Separate makes everything that a *vk.Recorder records later wait for everything recorded
	// before, even where no bytes are shared: for measurements.
	//
	// Errors: vk.ErrClosed, vk.ErrDeviceLost.
	Separate func(recorder any) error

	// Profile returns vk.DeviceOptions.Profile.
	Profile func(dev any) string

	// Notes returns what packages above vk keep of a device, by keys of their own types. It lasts
	// as long as the device.
	Notes func(dev any) *sync.Map

	// Track begins to note which bytes of a *vk.Buffer are overwritten, or begins again with none.
	// Only commands count that are recorded after the first Track.
	Track func(buffer any)

	// Overwritten reports whether every byte of a vk.View of a tracked buffer was overwritten since
	// the last Track by what was submitted: copies, fills, vk.Device.Upload, and launches of
	// kernels, which count as writing all that they bind or reach as vk.Write. What they have as
	// vk.ReadWrite, or as vk.Read too, does not count: they may read it first. Nor does what the
	// host writes to mapped memory.
	Overwritten func(view any) bool

	// Overwrites reports whether what a *vk.Recorder has recorded so far overwrites every byte of a
	// vk.View of a tracked buffer.
	Overwrites func(recorder, view any) bool

	// Prove makes the commands of a *vk.Recorder prove, each time, that the device executed them. A
	// driver that resets a hung GPU may signal the fence of work that it gave up; vk.Pending.Wait
	// then returns vk.ErrDeviceLost, where it would otherwise report success over memory that was
	// not written. The recorder must be empty.
	//
	// Errors: vk.ErrArgument when something was recorded; those of vk.Device.NewBuffer.
	Prove func(recorder any) error

	// StarvedWord returns a vk.View of a word of host memory, at first 0, for kernels whose
	// workgroups wait for others of their launch. One that gives up writes its number and 1 there,
	// by the view's address. The device owns the word. Errors: those of vk.Device.NewBuffer.
	StarvedWord func(dev any) (view any, err error)

	// MayStarve notes that a *vk.Recorder records a launch whose workgroups wait for each other and
	// write to StarvedWord when they give up. Errors: vk.ErrClosed, vk.ErrDeviceLost.
	MayStarve func(recorder any) error

	// HasValidation reports whether the Khronos validation layer is installed.
	HasValidation func() bool

	// Operations returns the number of launches, fills and copies of *vk.Commands.
	Operations func(commands any) int
)
