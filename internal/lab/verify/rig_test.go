package verify_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRig(t *testing.T) {
	r := verify.NewRig(t.Context(), testkit.Device(t))
	defer r.Close()
	x := vectors.FromI32([]int32{1, 2, 3}, 3)
	in, out, sum := r.In(x, tensor.I32), r.Out(tensor.I32, 5), r.Out(tensor.BF16, 2, 3)
	if !r.In(vectors.Array{}, tensor.I32).IsZero() {
		t.Error("the zero array gives a tensor")
	}
	empty := r.Out(tensor.F32, 0, 4)
	r.Do(func(rec *vk.Recorder) error { return rec.Copy(out.Rows(0, 3).View(), in.View()) })
	got, err := r.Results(map[string]tensor.Tensor{"in": in, "out": out, "sum": sum, "empty": empty})
	if err != nil {
		t.Fatal(err)
	}
	if v := got["out"].I32(); len(v) != 5 || v[2] != 3 || uint32(v[3]) != 0xA5A5A5A5 {
		t.Errorf("out: %x", v)
	}
	if !bytes.Equal(got["in"].Data, x.Data) || got["sum"].String() != "uint16 [2, 3]" || got["empty"].Len() != 0 {
		t.Errorf("results: %v", got)
	}
	for _, v := range got["sum"].BF16() {
		if v == v {
			t.Errorf("a float output starts as %g, want NaN", v)
		}
	}
}

// TestRigFence shows that a write next to a tensor, on either side, is noticed.
func TestRigFence(t *testing.T) {
	dev := testkit.Device(t)
	for where, shift := range map[string]int64{"before": -4, "after": 12} {
		r := verify.NewRig(t.Context(), dev)
		out := r.Out(tensor.I32, 3)
		r.Do(func(rec *vk.Recorder) error {
			return rec.Fill(out.Buffer.View(uint64(int64(out.Offset)+shift), 4), 0)
		})
		if _, err := r.Results(map[string]tensor.Tensor{"out": out}); err == nil || !strings.Contains(err.Error(), "stray write") || !strings.Contains(err.Error(), where) {
			t.Errorf("%s: %v", where, err)
		}
		r.Close()
	}
}

func TestRigErrors(t *testing.T) {
	dev := testkit.Device(t)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	if r.In(vectors.FromI32([]int32{1}, 1), tensor.BF16); r.Err() == nil {
		t.Error("elements of another size were uploaded")
	}
	first := r.Err()
	r.Out(tensor.I32, 1)
	r.Do(func(*vk.Recorder) error { t.Error("something was recorded after an error"); return nil })
	if _, err := r.Results(nil); !errors.Is(err, first) {
		t.Errorf("error %v, want the first one", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := verify.NewRig(ctx, dev)
	defer stopped.Close()
	if stopped.Out(tensor.F32, 4); !errors.Is(stopped.Err(), context.Canceled) {
		t.Errorf("with an ended context: %v", stopped.Err())
	}
}
