package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Rows keep their order whatever is prepared at a time, and what has not enough memory
// beside others comes again alone.
func TestTimeCases(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for together := range 6 {
		var all []opCase
		var full, builds atomic.Int32 // of case 3, and of case 5
		for i := range 8 {
			all = append(all, opCase{"op", fmt.Sprint("case ", i), func(_ context.Context, r *opRig) error {
				switch {
				case i == 3 && full.Add(1) == 1 && together > 1, i == 5:
					return fmt.Errorf("case %d: %w", builds.Add(1), vk.ErrOutOfDeviceMemory)
				}
				x := put(r, tensor.F32, r.normal(64), 64)
				r.parts = []opPart{{record: func(rec *vk.Recorder, _ int) error { return rec.Fill(x.View(), 7) }}}
				r.check = func(ctx context.Context) (verify.Result, error) {
					err := run(ctx, dev, func(rec *vk.Recorder) error { return r.parts[0].record(rec, 0) })
					return verify.Result{Pass: i != 6}, err
				}
				return r.err
			}})
		}
		o := IndexerOptions{Common: Common{Reps: 1, Seed: 1}, Heads: 2, together: together, only: func(op, name string) bool { return name != "case 7" }}
		var got []string
		err := timeCases(ctx, dev, o, all, limits, Silent{}, func(r OpRow) {
			got = append(got, strings.TrimPrefix(r.Case, "case ")+" "+r.Status)
			if r.Status == "ok" && r.Time.Median <= 0 {
				t.Errorf("%d at a time: %+v", together, r)
			}
		})
		want := []string{"0 ok", "1 ok", "2 ok", "3 ok", "4 ok", "5 skipped", "6 wrong"}
		if !errors.Is(err, ErrWrong) || !slices.Equal(got, want) {
			t.Errorf("%d at a time: %v, %v", together, got, err)
		}
	}
	bad := errors.New("bad luck")
	err := timeCases(ctx, dev, IndexerOptions{together: 2}, []opCase{{"op", "x", func(context.Context, *opRig) error { return bad }}}, limits, Silent{}, nil)
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), "op x") {
		t.Error(err)
	}
}

// TestNormals demands that a seed has its own numbers, whatever was asked for before.
func TestNormals(t *testing.T) {
	first, other, more := normals(3, 8), normals(4, 8), normals(3, 16)
	if !slices.Equal(first, more[:8]) {
		t.Errorf("%v, and later %v", first, more)
	}
	if slices.Equal(first, other) || slices.Equal(first, more[8:]) {
		t.Errorf("%v again: %v, %v", first, other, more)
	}
}
