package testkit

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Unlaunched returns the kernels that a device was asked for and that nothing recorded launches. A
// kernel of a CPU's device is compiled when the first launch of it is recorded, which tells.
func Unlaunched(t testing.TB, dev *vk.Device) (names []string) {
	t.Helper()
	require.Equal(t, vk.TypeCPU, dev.Adapter().Type, "a device that compiles in the background")
	for _, k := range dev.Kernels() {
		if reflect.ValueOf(k).Elem().FieldByName("layout").IsNil() { // nil until it is compiled
			names = append(names, fmt.Sprint(k.Name(), " ", k.Constants()))
		}
	}
	return names
}

// Words runs a kernel that makes `out` words of every `in` words of src: one that computes a
// function of shaders/lib, whose push constants are the number of results, and push.
func Words(t testing.TB, name string, src []uint32, in, out int, push ...uint32) (got []uint32) {
	t.Helper()
	dev, code := Device(t), Must[shaders.Kernel](t)(shaders.Get(name))
	if missing := dev.Caps().Missing(code.Requires); len(missing) > 0 {
		t.Skipf("device lacks %v", missing)
	}
	k := Must[*vk.Kernel](t)(dev.Kernel(vk.KernelSpec{Name: code.Name, SPIRV: code.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write},
		PushSize: 4 + 4*len(push), Requires: code.Requires}))
	for part := range slices.Chunk(src, in<<21) { // well within the smallest grid
		n := len(part) / in
		r := verify.NewRig(t.Context(), dev)
		from := r.In(vectors.FromU32(part, len(part)), tensor.U32)
		to := r.Out(tensor.U32, n*out)
		words := binary.LittleEndian.AppendUint32(nil, uint32(n))
		for _, w := range push {
			words = binary.LittleEndian.AppendUint32(words, w)
		}
		r.Do(func(rec *vk.Recorder) error {
			return rec.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{uint32(n+63) / 64, 1, 1},
				Bind: []vk.View{from.View(), to.View()}, Push: words})
		})
		got = append(got, Must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": to}))["out"].U32()...)
		r.Close()
	}
	return got
}
