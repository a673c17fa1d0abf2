package vk_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/vk"
)

// copies are kernels that differ only in a constant that the module ignores.
func copies(t *testing.T, d *vk.Device, n int) []*vk.Kernel {
	t.Helper()
	s, err := kernels.Get("bench_copy")
	require.NoError(t, err)
	list := make([]*vk.Kernel, n)
	for i := range list {
		spec := vk.KernelSpec{Name: s.Name, SPIRV: s.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 8, Constants: []uint32{uint32(i)}}
		list[i], err = d.Kernel(spec)
		require.NoError(t, err)
		again, err := d.Kernel(spec)
		require.NoError(t, err, "the same specification again")
		require.Same(t, list[i], again, "the same specification again")
	}
	return list
}

// Kernels compile in the background, or in the call that needs one first. After the device
// is closed none compiles.
func TestKernelsCompileLater(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	list := copies(t, d, 24)
	for _, k := range list[:16] {
		vk.CompileLater(k)
	}
	var all sync.WaitGroup
	for _, k := range list[8:] {
		for range 2 {
			all.Go(func() {
				assert.NoError(t, k.Ready())
			})
		}
	}
	all.Wait()
	vk.WaitForCompilers(d)
	for i, k := range list {
		assert.True(t, vk.Compiled(k), "kernel %d of %d is not compiled", i, len(list))
	}

	list = copies(t, d, 200)[100:]
	for _, k := range list {
		vk.CompileLater(k)
	}
	require.NoError(t, d.Close())
	left := 0
	for _, k := range list {
		if vk.Compiled(k) {
			continue
		}
		left++
		assert.ErrorIs(t, k.Ready(), vk.ErrClosed, "compile for a closed device")
	}
	t.Logf("%d of %d were left when the device was closed", left, len(list))
}

// What was compiled in the background is in the file before the device is closed: a program that is
// killed keeps it. What it took is known by name.
func TestCompiledKernelsAreKept(t *testing.T) {
	defer vk.KeepAll()()
	dir := t.TempDir()
	d := open(t, vk.DeviceOptions{PipelineCacheDir: dir})
	list := copies(t, d, 3)
	assert.Empty(t, d.Compiled(), "before any was compiled")
	for _, k := range list {
		vk.CompileLater(k)
	}
	vk.WaitForCompilers(d)
	names, err := filepath.Glob(filepath.Join(dir, "pipelines-*"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	for _, k := range list {
		assert.Positive(t, d.Compiled()[k.Name()], k.Name())
	}
	kept, err := os.ReadFile(names[0])
	require.NoError(t, err)
	require.NoError(t, d.Close())
	after, err := os.ReadFile(names[0])
	require.NoError(t, err)
	assert.Equal(t, kept, after, "written again by Close, although nothing was compiled since")
}

// Specifications that differ in anything, even in one bit of the module, give different
// kernels.
func TestKernelsByTheirSpecification(t *testing.T) {
	one, two := []vk.Access{vk.Read}, []vk.Access{vk.Read, vk.Write}
	k, err := kernels.Get("bench_copy")
	require.NoError(t, err)
	code, other, longer := k.SPIRV, slices.Clone(k.SPIRV), append(slices.Clone(k.SPIRV), 0, 0, 1, 0) // by OpNop
	other[8] ^= 1                                                                                    // of who made it
	seen := map[any]int{}
	for i, s := range []vk.KernelSpec{
		{Name: "k", SPIRV: code, Bindings: one},
		{Name: "k1", SPIRV: code, Bindings: one},
		{Name: "k", SPIRV: other, Bindings: one},
		{Name: "k", SPIRV: longer, Bindings: one},
		{Name: "k", SPIRV: code, Bindings: two},
		{Name: "k", SPIRV: code, Bindings: []vk.Access{vk.Write}},
		{Name: "k", SPIRV: code, Bindings: one, PushSize: 64},
		{Name: "k", SPIRV: code, Bindings: one, Constants: []uint32{1, 2}},
		{Name: "k", SPIRV: code, Bindings: one, Constants: []uint32{12}},
		{Name: "k", SPIRV: code, Bindings: one, SubgroupSize: 32},
		{Name: "k", SPIRV: code, Bindings: one, Divisible: true},
	} {
		key, err := vk.KernelKey(s)
		require.NoError(t, err)
		j, ok := seen[key]
		assert.False(t, ok, "specification %d gives the kernel of %d", i, j)
		seen[key] = i
	}
}

// What a module uses and its specification does not have is refused, with the binding's name.
func TestKernelsAgreeWithTheirModule(t *testing.T) {
	d := open(t, vk.DeviceOptions{})
	defer d.Close()
	k, err := kernels.Get("bench_copy")
	require.NoError(t, err)
	whole := vk.KernelSpec{Name: "k", SPIRV: k.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 8}
	_, err = d.Kernel(whole)
	require.NoError(t, err)
	for _, c := range []struct {
		change func(s *vk.KernelSpec)
		says   string
	}{
		{func(s *vk.KernelSpec) { s.Bindings = s.Bindings[:1] }, `Bindings: got 1, want more than 1, the binding of "Dst`},
		{func(s *vk.KernelSpec) { s.Bindings = []vk.Access{vk.Read, vk.Read} }, `Bindings[1]: got read, want write: "Dst`},
		{func(s *vk.KernelSpec) { s.PushSize = 4 }, "PushSize: got 4, want at least 8"},
		{func(s *vk.KernelSpec) { s.SPIRV = bytes.Replace(s.SPIRV, []byte("main\x00"), []byte("mine\x00"), 1) },
			`SPIRV: got entry point "mine", want main`},
		{func(s *vk.KernelSpec) { s.SPIRV = s.SPIRV[:len(s.SPIRV)/8*4] }, "SPIRV: got"},
		{func(s *vk.KernelSpec) { s.SPIRV = make([]byte, 400) }, "SPIRV: got"},
	} {
		s := whole
		c.change(&s)
		_, err := d.Kernel(s)
		assert.ErrorIs(t, err, vk.ErrArgument, c.says)
		assert.ErrorContains(t, err, c.says)
	}
}
