package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// filling is an operation that fills 64 words with 7s; bind may fail first.
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
	bad := errors.New("bad luck")
	err := timeCases(t.Context(), dev, OpOptions{together: 2}, []opCase{{filling(7, func() error { return bad }),
		verify.Size{Name: "x", Make: func(*rand.Rand) verify.Case { return verify.Case{} }}}}, anyLimits, Silent{}, nil)
	assert.ErrorIs(t, err, bad)
	assert.ErrorContains(t, err, "op x")
}
