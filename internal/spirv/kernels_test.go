package spirv_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// Limits that every Vulkan 1.2 device keeps: 128 bytes of push constants, 16 KiB
// of shared memory and 128 invocations in a workgroup. Builds with optional
// features run on devices that offer more, of which 48 KiB is what the
// cooperative-matrix builds may use.
const (
	maxPush        = 128
	baseShared     = 16 << 10
	matrixShared   = 48 << 10
	maxInvocations = 128
)

// beyondCapabilities are features that no SPIR-V capability stands for: matrix
// shapes, and control over the subgroup's size.
var beyondCapabilities = []string{"coopmat.f16.f32", "coopmat.bf16.f32", "subgroupSizeControl", "computeFullSubgroups"}

// TestKernels holds every embedded kernel against the features that it is
// listed with, and against the limits above.
func TestKernels(t *testing.T) {
	names := shaders.Names()
	if len(names) == 0 {
		t.Fatal("no kernels")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			k, err := shaders.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			m, err := spirv.Parse(k.SPIRV)
			if err != nil {
				t.Fatal(err)
			}
			checkFeatures(t, m, k.Requires)
			checkSizes(t, name, m)
			checkBindings(t, m)
		})
	}
}

func checkFeatures(t *testing.T, m *spirv.Module, requires []string) {
	uses, err := m.Features()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range uses {
		if !slices.Contains(requires, f) {
			t.Errorf("uses %s, which shaders/requires.go does not list", f)
		}
	}
	for _, f := range requires {
		if !slices.Contains(uses, f) && !slices.Contains(beyondCapabilities, f) {
			t.Logf("lists %s, which no capability asks for", f)
		}
	}
	matrix := slices.ContainsFunc(requires, func(f string) bool { return strings.HasPrefix(f, "coopmat.") })
	if m.HasCapability(spirv.CooperativeMatrix) && !matrix {
		t.Error("uses cooperative matrices and lists no shape, such as coopmat.f16.f32")
	}
	if v := m.Version; v[0] != 1 || v[1] > 6 || v[1] > 5 && len(requires) == 0 {
		t.Errorf("SPIR-V %d.%d; a Vulkan 1.2 device takes up to 1.5", v[0], v[1])
	}
}

func checkSizes(t *testing.T, name string, m *spirv.Module) {
	matrix := m.HasCapability(spirv.CooperativeMatrix)
	shared, err := m.SharedBytes()
	if err != nil {
		t.Fatal(err)
	}
	limit := baseShared
	if matrix {
		limit = matrixShared
	}
	if shared > limit {
		t.Errorf("%d bytes of shared memory, at most %d", shared, limit)
	}
	size, err := m.LocalSize()
	if err != nil {
		t.Fatal(err)
	}
	n := size[0] * size[1] * size[2]
	// The peak measurements of the benchmark are not part of what has to run
	// everywhere.
	if n > maxInvocations && !matrix && !strings.HasPrefix(name, "bench_") {
		t.Errorf("%d invocations in a workgroup, at most %d", n, maxInvocations)
	}
	for _, p := range m.Push {
		if p.Offset+p.Size > maxPush {
			t.Errorf("push constant %s ends at byte %d, at most %d", p.Name, p.Offset+p.Size, maxPush)
		}
		if p.Name == "" {
			t.Error("a push constant without a name: the module was stripped, so Go structs cannot be compared")
		}
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
		if b.Set != 0 || i > 0 && m.Bindings[i-1].Binding == b.Binding {
			t.Errorf("binding %+v: all belong to set 0, each number once", b)
		}
		if b.ReadOnly && b.WriteOnly {
			t.Errorf("binding %+v can neither be read nor written", b)
		}
	}
}
