package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A kernel that does not read all that it is for is not used.
func TestReader(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	testkit.PushLayouts(t, "bench_read", map[string]any{"bench_read": benchReadPush{}})
	for _, name := range []string{"bench_read", readKernel(dev)} {
		r, err := newReader(ctx, dev, name, readShape{64, 3, 5})
		if err != nil {
			t.Fatal(err)
		}
		pattern := make([]byte, readPattern)
		if err := r.check(ctx, dev, pattern); err == nil || !strings.Contains(err.Error(), "add up to 0") {
			t.Errorf("%s: the words are not zeros: %v", name, err)
		}
		if err := errors.Join(r.src.Upload(ctx, make([]byte, r.src.Bytes())), r.check(ctx, dev, pattern), r.close()); err != nil {
			t.Errorf("%s: the words are zeros: %v", name, err)
		}
	}
}

// A floor has as many launches one behind the other as the part, and reads its bytes.
func TestFloors(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	x, err := tensor.New(dev, "test", tensor.U32, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	f := &floors{}
	if err := f.open(ctx, dev); err != nil {
		t.Fatal(err)
	}
	for want := range 3 {
		f.reader.at = 0
		us, launches, err := f.below(ctx, dev, opPart{Work: verify.Work{Bytes: 8192}, inner: 1, record: func(rec *vk.Recorder, _ int) error {
			err := rec.Fill(x.View(), 1)
			for range want {
				err = errors.Join(err, rec.Fill(x.View(), 2))
			}
			return err
		}}, 0, 2)
		if err != nil || launches != want+1 || !(us > 0) {
			t.Errorf("%d launches of %g us, want %d: %v", launches, us, want+1, err)
		}
		if read, want := f.reader.at, uint64(2*(8192+want*viewAlign)); read != want {
			t.Errorf("two samples go on by %d bytes, want %d", read, want)
		}
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
}
