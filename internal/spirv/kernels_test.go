package spirv_test

import (
	"bytes"
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// Limits that every Vulkan 1.2 device keeps: 128 bytes of push constants, 16 KiB
// of shared memory and 128 invocations in a workgroup. Builds with optional
// features run on devices that offer more; 48 KiB is what the
// cooperative-matrix builds may use.
const (
	maxPush        = 128
	baseShared     = 16 << 10
	matrixShared   = 48 << 10
	maxInvocations = 128
)

// TestKernels holds every embedded kernel against the limits above, and against all others. Each of
// its capabilities stands for a feature that is known.
func TestKernels(t *testing.T) {
	names := shaders.Names()
	require.NotEmpty(t, names, "no kernels")
	by := map[string]string{} // the kernel that a module is
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			k, err := shaders.Get(name)
			require.NoError(t, err)
			assert.Empty(t, by[string(k.SPIRV)], "the same module")
			by[string(k.SPIRV)] = name
			m, err := spirv.Parse(k.SPIRV)
			require.NoError(t, err)
			checkFeatures(t, m, k)
			checkSizes(t, m, k.Name)
			checkBindings(t, m)
		})
	}
}

func checkFeatures(t *testing.T, m *spirv.Module, k shaders.Kernel) {
	features, err := spirv.Features(k.SPIRV)
	require.NoError(t, err)
	assert.Equal(t, features, k.Requires)
	assert.Equal(t, features, shaders.Requires(k.Name), "from the beginning of the module")
	assert.False(t, m.Version[0] != 1 || m.Version[1] > 6 || m.Version[1] > 5 && len(features) == 0,
		"SPIR-V %d.%d; a Vulkan 1.2 device takes up to 1.5", m.Version[0], m.Version[1])
}

func checkSizes(t *testing.T, m *spirv.Module, name string) {
	matrix := slices.Contains(m.Capabilities, spirv.CooperativeMatrix)
	shared, err := m.SharedBytes()
	require.NoError(t, err)
	limit := baseShared
	if matrix {
		limit = matrixShared
	}
	assert.LessOrEqual(t, shared, limit, "bytes of shared memory, at most")
	size, err := m.LocalSize()
	require.NoError(t, err)
	n := size[0] * size[1] * size[2]
	assert.False(t, n > maxInvocations && !matrix,
		"%d invocations in a workgroup, at most %d", n, maxInvocations)
	// Package indexer takes this one only where the device has room for its addresses.
	push := cmp.Or(map[string]uint32{"idx_logits_lanes_picks_cm": 200}[name], maxPush)
	for _, p := range m.Push {
		assert.LessOrEqual(t, p.Offset+p.Size, push, "push constant %s ends at byte, at most", p.Name)
		assert.NotEmpty(t, p.Name,
			"a push constant without a name: the module was stripped, so Go structs cannot be compared")
	}
	for i, c := range m.Constants {
		if c.ID != uint32(i) {
			t.Errorf("specialisation constants %v: ids have a gap", m.Constants)
			break
		}
	}
}

// checkBindings demands one set, with each binding used once.
func checkBindings(t *testing.T, m *spirv.Module) {
	for i, b := range m.Bindings {
		assert.False(t, b.Set != 0 || i > 0 && m.Bindings[i-1].Binding == b.Binding,
			"binding %+v: all belong to set 0, each number once", b)
		assert.False(t, b.ReadOnly && b.WriteOnly, "binding %+v can neither be read nor written", b)
	}
}

// NVIDIA's compiler writes eight functions into one another. Where a ninth remains, matrices that
// are variables of the module lie in memory: decode in lanes took 78.7 us in place of 30.5 for 32
// tokens on an H100, in 25 forms of nine and in none of eight; on an H200 a product of Q4_K took 74
// in place of 21.5. attn_decode_cm has few of them and loses nothing there. Nor did
// idx_logits_lanes_picks_cm where it was timed.
func TestDepth(t *testing.T) {
	for _, name := range shaders.Names() {
		k, err := shaders.Get(name)
		require.NoError(t, err)
		m, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		if !slices.Contains(m.Capabilities, spirv.CooperativeMatrix) {
			continue
		}
		most := cmp.Or(map[string]int{"attn_decode_cm": 9, "attn_decode_cmb": 9, "attn_decode_float8_cmb": 9,
			"idx_logits_lanes_picks_cm": 9}[name], 8)
		assert.LessOrEqual(t, spirv.Depth(k.SPIRV), most, "%s: functions under way at a time", name)
	}
}

// Every kernel stays a module of the same interface. Drivers and validation layers see the rest of
// it in every test that launches one.
func TestPruneKernels(t *testing.T) {
	shorter := 0
	for _, name := range shaders.Names() {
		k, err := shaders.Get(name)
		require.NoError(t, err)
		m, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		pruned := spirv.Prune(k.SPIRV, nil)
		after, err := spirv.Parse(pruned)
		require.NoError(t, err, name)
		assert.Equal(t, m.Bindings, after.Bindings, name)
		assert.Equal(t, m.Constants, after.Constants, name)
		assert.Equal(t, m.Push, after.Push, name)
		assert.LessOrEqual(t, len(pruned), len(k.SPIRV), name)
		if len(pruned) < len(k.SPIRV) {
			shorter++
		}
	}
	assert.Positive(t, shorter)
}

// Every kernel with binary16 numbers asks for the modes, whatever else is in it; others, and what
// is no module, stay as they are.
func TestWithModes(t *testing.T) {
	const float16 = 9
	asked := 0
	for _, name := range shaders.Names() {
		k, err := shaders.Get(name)
		require.NoError(t, err)
		before, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		code := spirv.WithModes(k.SPIRV, spirv.PreserveDenorms, spirv.RoundNearest)
		if !slices.Contains(before.Capabilities, float16) {
			assert.True(t, bytes.Equal(k.SPIRV, code), name)
			continue
		}
		asked++
		after, err := spirv.Parse(code)
		require.NoError(t, err, name)
		assert.Equal(t, append(before.Capabilities, 4464, 4467), after.Capabilities, name)
		assert.Len(t, code, len(k.SPIRV)+2*8+2*16, name)
		assert.GreaterOrEqual(t, before.Version[1], 4, "%s: the modes are an extension before 1.4", name)
		for cut := range 64 {
			spirv.WithModes(k.SPIRV[:4*cut], spirv.RoundNearest)
		}
	}
	assert.Positive(t, asked)
}
