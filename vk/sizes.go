package vk

import (
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// The two bindings that this package builds with spell C's size_t differently:
// goki/vulkan as uint64, vulkan-go/vulkan as uint. These helpers fit both.

type size interface{ ~uint | ~uint64 }

func setSize[T size](field *T, n int) { *field = T(n) }

func queryResults[T size](
	get func(vulkan.Device, vulkan.QueryPool, uint32, uint32, T, unsafe.Pointer, vulkan.DeviceSize,
		vulkan.QueryResultFlags) vulkan.Result,
	d vulkan.Device, pool vulkan.QueryPool, out []uint64, flags vulkan.QueryResultFlags) vulkan.Result {
	return get(d, pool, 0, uint32(len(out)), T(8*len(out)), unsafe.Pointer(&out[0]), 8, flags)
}

func cacheData[T size](get func(vulkan.Device, vulkan.PipelineCache, *T, unsafe.Pointer) vulkan.Result,
	d vulkan.Device, cache vulkan.PipelineCache) []byte {
	var n T
	if get(d, cache, &n, nil) != vulkan.Success || n == 0 {
		return nil
	}
	data := make([]byte, n)
	if get(d, cache, &n, unsafe.Pointer(&data[0])) != vulkan.Success {
		return nil
	}
	return data[:n]
}
