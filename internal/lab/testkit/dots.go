package testkit

import (
	"embed"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

//go:embed shaders/spv/*.spv
var dotModules embed.FS

// dotProducts is the feature that variant dot needs.
const dotProducts = "shaderMixedFloatDotProductFloat16AccFloat32"

// Dots opens the device of the tests once more, with variant dot. A device without dot products of
// halves executes builds of the same sources with two multiply-adds in the place of each.
func Dots(t testing.TB) *vk.Device {
	t.Helper()
	WithoutMatrices(t)
	a := *Device(t).Adapter()
	if !a.Caps.Features["shaderFloat16"] || !a.Caps.Features["bufferDeviceAddress"] {
		t.Skip("no halves, or no device addresses")
	}
	if !a.Caps.Features[dotProducts] {
		a.Caps.Features = maps.Clone(a.Caps.Features)
		a.Caps.Features[dotProducts] = true
		putDots()
	}
	dev, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}

// putDots has opkit take these builds.
var putDots = sync.OnceFunc(func() {
	opkit.Instead = map[string]shaders.Kernel{}
	files, _ := fs.Glob(dotModules, "shaders/spv/*.spv") // the pattern is well formed
	for _, f := range files {
		code, _ := dotModules.ReadFile(f) // embedded
		needs, _ := spirv.Features(code)  // known, as those of the library's build are
		name := strings.TrimSuffix(f[strings.LastIndex(f, "/")+1:], ".spv")
		opkit.Instead[name] = shaders.Kernel{Name: name, SPIRV: code, Requires: needs}
	}
})

// TestDots holds variant dot of an operation against the recorded vectors and the reference on
// random cases.
func TestDots(t *testing.T, name string) {
	t.Helper()
	op, ok := verify.Lookup(name)
	require.True(t, ok, "testkit: no operation %q is registered", name)
	dev := Dots(t)
	o := verify.Options{Ops: []string{name}, Variants: []string{opkit.Dot}, Seed: Seed(t)}
	for _, dir := range Folders(t) {
		set, err := vectors.Open(dir)
		require.NoError(t, err)
		if set.Cases(name) != nil {
			recorded := o
			recorded.Vectors = []string{dir}
			run(t, dev, recorded)
		}
	}
	if testing.Short() {
		o.Cases = small(op, o.Seed)
	}
	run(t, dev, o)
}
