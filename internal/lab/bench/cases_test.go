package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// filling returns an operation that fills 64 words with 7s; bind may fail first.
func filling(want int32, bind func() error) verify.Op {
	seven := func(v int32) verify.Arrays {
		return verify.Arrays{"y": vectors.FromI32(slices.Repeat([]int32{v}, 64), 64)}
	}
	return verify.Op{
		Name: "op", Class: verify.ClassExact, Variants: []vk.Variant{{Name: "base"}},
		Ref: func(verify.Case) (verify.Arrays, error) { return seven(want), nil },
		Bind: func(verify.Build, verify.Case) (verify.Bound, error) {
			return verify.Bound{Variant: "base", Place: func(r *verify.Rig) verify.Launch {
				y := r.Out(tensor.I32, 64)
				return verify.Launch{Out: map[string]tensor.Tensor{"y": y}, Record: func(rec *vk.Recorder) error { return rec.Fill(y.View(), 7) }}
			}}, bind()
		},
		Compare: func(_ verify.Case, got, want verify.Arrays) verify.Result {
			return verify.NewComparison(verify.ClassExact).Exact("y", got["y"], want["y"]).Result()
		},
	}
}

// Rows keep their order whatever is prepared at a time, and what has not enough memory
// beside others comes again alone.
func TestTimeCases(t *testing.T) {
	dev := testkit.Device(t)
	for together := range 6 {
		var all []opCase
		var full, builds atomic.Int32 // of case 3, and of case 5
		for i := range 7 {
			want := int32(7)
			if i == 6 {
				want = 8
			}
			all = append(all, opCase{filling(want, func() error {
				if i == 3 && full.Add(1) == 1 && together > 1 || i == 5 {
					return fmt.Errorf("case %d: %w", builds.Add(1), vk.ErrOutOfDeviceMemory)
				}
				return nil
			}), verify.Size{Name: fmt.Sprint("case ", i), Make: func(*rand.Rand) verify.Case { return verify.Case{} }}})
		}
		var got []string
		o := OpOptions{Common: Common{Reps: 1, Seed: 1}, together: together}
		err := timeCases(t.Context(), dev, o, all, anyLimits, Silent{}, func(r OpRow) {
			got = append(got, strings.TrimPrefix(r.Case, "case ")+" "+r.Status)
			assert.Equal(t, r.Status == "ok", r.Time.Median > 0, "%d at a time: %+v", together, r)
		})
		assert.ErrorIs(t, err, ErrWrong)
		assert.Equal(t, []string{"0 ok", "1 ok", "2 ok", "3 ok", "4 ok", "5 skipped", "6 wrong"}, got, "%d at a time", together)
	}
}

// A case that fails leaves the others, of its batch and after, as they are; a lost device ends the
// run behind the row of the case that lost it, and an interruption without one.
func TestTimeCasesFailing(t *testing.T) {
	dev := testkit.Device(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	large := &vk.ArgumentError{Op: "vk: new buffer", Arg: "Size", Got: "9", Want: "at most 8"}
	for _, c := range []struct {
		fail   error
		before func()
		ends   error
		want   []string
	}{
		{large, nil, ErrWrong, []string{"0 ok", "1 failed", "2 ok", "3 ok"}},
		{&vk.MissingError{What: "op"}, nil, ErrWrong, []string{"0 ok", "1 skipped", "2 ok", "3 ok"}},
		{fmt.Errorf("run: %w", vk.ErrDeviceLost), nil, vk.ErrDeviceLost, []string{"0 ok", "1 failed"}},
		{context.Canceled, cancel, context.Canceled, nil},
	} {
		var all []opCase
		for i := range 4 {
			all = append(all, opCase{filling(7, func() error {
				if i != 1 {
					return nil
				}
				if c.before != nil {
					c.before()
				}
				return c.fail
			}), verify.Size{Name: fmt.Sprint("case ", i), Make: func(*rand.Rand) verify.Case { return verify.Case{} }}})
		}
		var got []string
		err := timeCases(ctx, dev, OpOptions{Common: Common{Reps: 1, Seed: 1}, together: 3}, all, anyLimits, Silent{}, func(r OpRow) {
			got = append(got, strings.TrimPrefix(r.Case, "case ")+" "+r.Status)
			if r.Status != "ok" {
				assert.Equal(t, c.fail.Error(), r.Detail)
			}
		})
		require.ErrorIs(t, err, c.ends)
		assert.Equal(t, c.want, got, c.fail)
	}
}
