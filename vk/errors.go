package vk

import (
	"errors"
	"fmt"
	"strings"

	vulkan "github.com/goki/vulkan"
)

// Sentinel errors. Every error of this package matches one of them, but for those
// of a context that ended a wait, those of DeviceOptions.MemoryHook, and that of
// Device.Close about what was left open.
var (
	// ErrArgument: a value passed by the caller is wrong; nothing was done. The
	// error is an *ArgumentError.
	ErrArgument = errors.New("invalid argument")
	// ErrMissingFeature: the device lacks something that was asked for. The error
	// is a *MissingError, unless the driver itself refused.
	ErrMissingFeature = errors.New("missing feature")
	// ErrLimit: a kernel is larger than the device allows. The error is a *MissingError, which
	// matches ErrMissingFeature, too.
	ErrLimit = errors.New("limit exceeded")
	// ErrNoLoader: no Vulkan loader (libvulkan.so.1, vulkan-1.dll) could be opened.
	ErrNoLoader = errors.New("no Vulkan loader")
	// ErrNoDevice: no device matches, or none is installed.
	ErrNoDevice = errors.New("no Vulkan device")
	// ErrDeviceLost: the driver gave up on the device. Every later call on the
	// device fails the same way; close it and open a new one.
	ErrDeviceLost = errors.New("device lost")
	// ErrDeviceHung: the device has not got on with its work for DeviceOptions.HangAfter. It
	// matches ErrDeviceLost, and the same has to be done. What the driver may still use is
	// not freed, not even by Device.Close.
	ErrDeviceHung = fmt.Errorf("%w: its work does not end", ErrDeviceLost)
	// ErrStarved: workgroups of a kernel waited for others, which the device did not let go on.
	// What the commands were to write is undefined. The device is as good as before. Operations
	// that are recorded from then on do not wait inside kernels; commands recorded before that
	// could starve end with this error, too. See Device.Starved.
	ErrStarved = errors.New("workgroups starved")
	// ErrUnsignalled: a semaphore that commands waited for did not get its value within
	// DeviceOptions.HangAfter. The device was given nothing of them and is as good as before.
	ErrUnsignalled = errors.New("semaphore not signalled")
	// ErrCancelled: Commands.Cancel withheld parts of a submission.
	ErrCancelled = errors.New("cancelled")
	// ErrOutOfHostMemory: the driver could not allocate host memory.
	ErrOutOfHostMemory = errors.New("out of host memory")
	// ErrOutOfDeviceMemory: the device has no room for the allocation.
	ErrOutOfDeviceMemory = errors.New("out of device memory")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("closed")
	// ErrBusy: recorded commands have not finished, and were submitted again or
	// asked for their timestamps.
	ErrBusy = errors.New("still executing")
	// ErrDriver: the driver returned a code that has no sentinel of its own.
	ErrDriver = errors.New("driver error")
)

// ArgumentError says which argument was wrong, what it was and what was expected.
type ArgumentError struct {
	Op   string // package and operation, such as "vk: new buffer pool"
	Arg  string // argument, such as "Size"
	Got  string // its value, or what of it is wrong
	Want string // what is accepted
}

// Error reads "operation: argument: got X, want Y".
func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%s: %s: got %s, want %s", e.Op, e.Arg, e.Got, e.Want)
}

// Is reports whether target is ErrArgument.
func (e *ArgumentError) Is(target error) bool { return target == ErrArgument }

// MissingError says what a device would have to offer and does not.
type MissingError struct {
	What      string   // what was asked for, such as "attn_decode: variant cm"
	Device    string   // the device's name
	Required  []string // features needed
	Available []string // those of Required that the device offers
	Missing   []string // those it does not

	limits bool // all of this is limits
}

// Error lists the required, available and missing features, or the limits, and the device.
func (e *MissingError) Error() string {
	list := func(s []string) string {
		if len(s) == 0 {
			return "none"
		}
		return strings.Join(s, " ")
	}
	if e.limits {
		return fmt.Sprintf("vk: %s cannot run on %s: device allows %s, this needs %s",
			e.What, e.Device, strings.Join(e.Available, ", "), strings.Join(e.Missing, ", "))
	}
	return fmt.Sprintf("vk: %s cannot run on %s: missing %s (required %s; available %s)",
		e.What, e.Device, list(e.Missing), list(e.Required), list(e.Available))
}

// Is reports whether target is ErrMissingFeature or, of limits, ErrLimit.
func (e *MissingError) Is(target error) bool {
	return target == ErrMissingFeature || e.limits && target == ErrLimit
}

// resultError is a Vulkan result code with the call that returned it.
type resultError struct {
	op     string
	code   int
	kind   error
	detail string // what the device says to it, "" or in brackets
}

func (e *resultError) Error() string {
	return fmt.Sprintf("vk: %s: %v (VkResult %d)%s", e.op, e.kind, e.code, e.detail)
}

func (e *resultError) Unwrap() error { return e.kind }

// result turns a VkResult into an error; success codes (>= 0) give nil.
func result(op string, code int) error {
	if code >= 0 {
		return nil
	}
	kind := ErrDriver
	switch vulkan.Result(code) {
	case vulkan.ErrorOutOfHostMemory:
		kind = ErrOutOfHostMemory
	case vulkan.ErrorOutOfDeviceMemory:
		kind = ErrOutOfDeviceMemory
	case vulkan.ErrorDeviceLost:
		kind = ErrDeviceLost
	case vulkan.ErrorFeatureNotPresent, vulkan.ErrorExtensionNotPresent, vulkan.ErrorLayerNotPresent:
		kind = ErrMissingFeature
	case vulkan.ErrorIncompatibleDriver:
		kind = ErrNoDevice
	}
	return &resultError{op, code, kind, ""}
}

func argument(op, arg, got, want string, a ...any) error {
	return &ArgumentError{Op: "vk: " + op, Arg: arg, Got: got, Want: fmt.Sprintf(want, a...)}
}
