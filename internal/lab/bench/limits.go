package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Limits holds what a device's memory and arithmetic units give a shader, measured
// in the same run as the kernels that are compared with it.
type Limits struct {
	CopyGBs      float64 `json:"copy_gbs"`      // 10^9 bytes read plus written per second by a streaming copy
	MatrixTFLOPs float64 `json:"matrix_tflops"` // 10^12 FLOP/s of multiply-adds in registers
	MatrixKind   string  `json:"matrix_kind"`   // the unit: "bf16 16x16x16", "f16 8x8x8" or "f32 fma"
}

// Measure runs the two loops and takes the median of reps repetitions, of at most 3 on a
// CPU, which takes a tenth of a second for each.
//
// Errors: those of vk; vk.ErrMissingFeature where the queue has no timestamps.
func Measure(ctx context.Context, dev *vk.Device, reps int, progress Progress) (Limits, error) {
	var l Limits
	var err error
	if slow(dev) {
		reps = min(reps, 3)
	}
	progress.Step("measuring copy bandwidth")
	if l.CopyGBs, err = copyBandwidth(ctx, dev, reps); err != nil {
		return l, fmt.Errorf("bench: copy bandwidth: %w", err)
	}
	progress.Step("measuring the matrix rate")
	if l.MatrixTFLOPs, l.MatrixKind, err = matrixRate(ctx, dev, reps); err != nil {
		return l, fmt.Errorf("bench: matrix rate: %w", err)
	}
	return l, nil
}

type benchCopyPush struct{ Count, Step uint32 }

func copyBandwidth(ctx context.Context, dev *vk.Device, reps int) (float64, error) {
	size := uint64(1 << 30) // far past any last-level cache
	if slow(dev) {
		size = 64 << 20
	}
	size = min(size, dev.Caps().HeapBytes/8, dev.Caps().MaxStorageBufferRange) &^ 4095
	src, err := dev.NewBuffer(vk.BufferSpec{Label: "bench copy", Size: size})
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := dev.NewBuffer(vk.BufferSpec{Label: "bench copy", Size: size})
	if err != nil {
		return 0, err
	}
	defer dst.Close()
	k, err := kernel(dev, "bench_copy", vk.KernelSpec{Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 8})
	if err != nil {
		return 0, err
	}
	if err := run(ctx, dev, func(r *vk.Recorder) error { return r.Fill(src.Whole(), 0x3f8ccccd) }); err != nil {
		return 0, err
	}
	push := benchCopyPush{uint32(size / 16), 1}
	groups := min(uint32(size/16/256), dev.Caps().MaxWorkgroupCount[0])
	ns, err := timed(ctx, dev, reps, func(r *vk.Recorder) error {
		return r.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{groups, 1, 1},
			Bind: []vk.View{src.Whole(), dst.Whole()}, Push: vk.Bytes(&push)})
	})
	if err != nil {
		return 0, err
	}
	return 2 * float64(size) / ns, nil
}

type benchFmaPush struct {
	Rounds uint32
	Factor float32
}

type benchMatrixCmPush struct{ Rounds uint32 }

// matrixRate prefers the element type that the attention kernels prefer.
func matrixRate(ctx context.Context, dev *vk.Device, reps int) (float64, string, error) {
	caps := dev.Caps()
	for _, m := range []struct{ element, kernel string }{{"bf16", "bench_matrix_cmb"}, {"f16", "bench_matrix_cm"}} {
		code, err := kernels.Get(m.kernel)
		if err != nil {
			return 0, "", err
		}
		if len(caps.Missing(code.Requires)) > 0 {
			continue
		}
		// The largest shape that the device lists for the type is the fastest or as fast.
		var best vk.CoopMatShape
		for _, s := range caps.CoopMat {
			if s.Scope == "subgroup" && s.A == m.element && s.B == m.element && s.C == "f32" && s.Result == "f32" &&
				s.M*s.N*s.K > best.M*best.N*best.K {
				best = s
			}
		}
		if best.M == 0 {
			continue
		}
		rate, err := matrixLoop(ctx, dev, reps, code, best)
		return rate, fmt.Sprintf("%s %dx%dx%d", m.element, best.M, best.N, best.K), err
	}
	rate, err := fmaLoop(ctx, dev, reps)
	return rate, "f32 fma", err
}

func matrixLoop(ctx context.Context, dev *vk.Device, reps int, code shaders.Kernel, s vk.CoopMatShape) (float64, error) {
	groups, rounds := uint32(tuning.Of(dev).Device.WorkgroupsOf(dev.Adapter(), 16)), uint32(2000)
	if slow(dev) {
		groups, rounds = 16, 200
	}
	k, err := matrixKernel(dev, code, s)
	if err != nil {
		return 0, err
	}
	seed, err := dev.NewBuffer(vk.BufferSpec{Label: "bench matrix", Size: max(1024, uint64(s.M*s.K+s.K*s.N)*2)})
	if err != nil {
		return 0, err
	}
	defer seed.Close()
	out, err := dev.NewBuffer(vk.BufferSpec{Label: "bench matrix", Size: uint64(groups) * 4 * uint64(s.M*s.N) * 4})
	if err != nil {
		return 0, err
	}
	defer out.Close()
	bits := make([]byte, seed.Size())
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(bits); i += 2 { // 0x3800..0x3BFF: f16 in 0.5..1 and small bf16 values, with random signs
		bits[i], bits[i+1] = byte(rng.Uint32()), byte(0x38+rng.Uint32()%4)|byte(rng.Uint32()%2)<<7
	}
	if err := dev.Upload(ctx, seed.Whole(), bits); err != nil {
		return 0, err
	}
	push := benchMatrixCmPush{rounds}
	ns, err := timed(ctx, dev, reps, func(r *vk.Recorder) error {
		return r.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{groups, 1, 1},
			Bind: []vk.View{seed.Whole(), out.Whole()}, Push: vk.Bytes(&push)})
	})
	if err != nil {
		return 0, err
	}
	flop := 2 * float64(s.M*s.N*s.K) * 8 * float64(rounds) * 4 * float64(groups)
	return flop / ns / 1e3, nil
}

// matrixKernel multiplies in four subgroups of the smallest size, as operations do. It need not
// be the default: Intel's matrix units are as wide as the smallest.
func matrixKernel(dev *vk.Device, code shaders.Kernel, s vk.CoopMatShape) (*vk.Kernel, error) {
	subgroup := dev.Caps().MinSubgroupSize
	return dev.Kernel(vk.KernelSpec{Name: code.Name, SPIRV: code.SPIRV, Bindings: []vk.Access{vk.Read, vk.Write}, PushSize: 4,
		Constants: []uint32{s.M, s.N, s.K, 4 * subgroup}, SubgroupSize: subgroup, Requires: code.Requires})
}

func fmaLoop(ctx context.Context, dev *vk.Device, reps int) (float64, error) {
	groups, rounds := uint32(4096), uint32(512)
	if slow(dev) {
		groups, rounds = 32, 256
	}
	k, err := kernel(dev, "bench_fma", vk.KernelSpec{Bindings: []vk.Access{vk.Write}, PushSize: 8})
	if err != nil {
		return 0, err
	}
	out, err := dev.NewBuffer(vk.BufferSpec{Label: "bench fma", Size: uint64(groups) * 256 * 4})
	if err != nil {
		return 0, err
	}
	defer out.Close()
	push := benchFmaPush{rounds, 0.999}
	ns, err := timed(ctx, dev, reps, func(r *vk.Recorder) error {
		return r.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{groups, 1, 1}, Bind: []vk.View{out.Whole()}, Push: vk.Bytes(&push)})
	})
	if err != nil {
		return 0, err
	}
	return 2 * 4 * 16 * float64(rounds) * float64(groups) * 256 / ns / 1e3, nil
}

// timed returns the median time in ns of reps launches, each alone between two timestamps, after
// one that is not counted.
func timed(ctx context.Context, dev *vk.Device, reps int, launch func(*vk.Recorder) error) (ns float64, err error) {
	for range 2 { // the first run wakes the device up
		var t Time
		if t, err = sample(ctx, dev, 1, reps, func(r *vk.Recorder, _ int) error { return launch(r) }); err != nil {
			return 0, err
		}
		ns = t.Median * 1e3
	}
	return ns, nil
}
