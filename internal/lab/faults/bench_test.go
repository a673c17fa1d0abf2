//go:build linux

package faults_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
)

// TestBenchFails holds that the cases of a benchmark stand by themselves: one without memory is
// skipped, one whose commands the driver refuses fails, and a lost device ends the run after the
// row of the case that lost it.
func TestBenchFails(t *testing.T) {
	call := func(name string) int { return slices.Index(faults.Calls, name) }
	for _, c := range []struct {
		what   string
		call   int
		code   int32
		lose   bool
		ends   error
		status []string
	}{
		{"memory", call("vkAllocateMemory"), faults.OutOfDeviceMemory, false, bench.ErrWrong, []string{"ok", "skipped", "ok"}},
		{"commands", call("vkEndCommandBuffer"), faults.OutOfHostMemory, false, bench.ErrWrong, []string{"ok", "failed", "ok"}},
		{"device", call("vkQueueSubmit"), faults.DeviceLost, true, vk.ErrDeviceLost, []string{"ok", "failed"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dev := open(t, vk.DeviceOptions{})
			var status []string
			o := bench.OpOptions{Common: bench.Common{Reps: 1, Warmup: -1, Seed: 1}, Ops: []string{"inverse_rope"}}
			o.Sizes.Heads, o.Sizes.Batches, o.Sizes.Prefill = []int{8}, []int{1, 2}, []int{128}
			limits := bench.Limits{CopyGBs: 1, MatrixTFLOPs: 1}
			err := bench.Ops(t.Context(), dev, "memory", o, limits, bench.Silent{}, func(r bench.OpRow) {
				if status = append(status, r.Status); len(status) == 1 {
					interposer.Fail(c.call, 0, c.code, c.lose)
				}
				assert.Equal(t, r.Status == "ok", r.Detail == "", r.Detail)
			})
			require.ErrorIs(t, err, c.ends)
			assert.Equal(t, c.status, status)
		})
	}
}
