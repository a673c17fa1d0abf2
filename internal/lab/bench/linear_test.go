package bench

import (
	"context"
	"errors"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestLinearRows(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for _, suite := range []struct {
		ops []string
		run func(context.Context, *vk.Device, SuiteOptions, Limits, Progress, func(OpRow)) error
	}{{LinearOps, Linear}} {
		seen := map[string]int{}
		if err := suite.run(ctx, dev, SuiteOptions{Tokens: []int{1, 17}, Common: Common{Reps: 2, Warmup: -1, Seed: 1}}, limits, Silent{}, func(r OpRow) {
			seen[r.Op]++
			if r.Status != "ok" || r.Variant == "" || r.Sets < 2 || !(r.Time.Median > 0 && r.Bytes > 0 && r.ShareCopy > 0 && r.FloorUS > 0 && r.ShareFloor > 0 && r.FloorLaunches > 0) {
				t.Errorf("row %+v", r)
			}
		}); err != nil {
			t.Fatal(err)
		}
		for _, op := range suite.ops {
			if seen[op] == 0 {
				t.Errorf("no row of %s", op)
			}
		}
		for arg, o := range map[string]SuiteOptions{"batch": {Tokens: []int{0}}, "op": {Ops: []string{"x"}}, "weights": {Weights: []string{"x"}}} {
			var bad *vk.ArgumentError
			if err := suite.run(ctx, dev, o, limits, Silent{}, nil); !errors.As(err, &bad) || bad.Arg != arg {
				t.Errorf("%s: %v", arg, err)
			}
		}
	}
}
