package vk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// Stages that wait for each other inside a launch see what those before them wrote, with
// more workgroups than any device has room for, in one piece and in several, and leave
// their counters as they found them.
func TestTurns(t *testing.T) {
	d, ctx := open(t, vk.DeviceOptions{}), context.Background()
	s, err := shaders.Get("num_turns_da")
	if err != nil {
		t.Fatal(err)
	}
	type push struct {
		turns, out    uint64
		stages, width uint32
	}
	k, err := d.Kernel(vk.KernelSpec{Name: s.Name, SPIRV: s.SPIRV, PushSize: 24, Requires: s.Requires, Divisible: true})
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ stages, width, rows, pieces, launches int }{{1, 3, 1, 1, 2}, {2, 37, 1, 1, 5}, {7, 12, 7, 5, 2}, {3, 300, 1, 1, 1}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			of := c.width * 64
			out := buffer(t, d, uint64(4*of*c.stages), vk.Readback)
			turns := buffer(t, d, uint64(4*(1+c.stages)), vk.Readback)
			clear(turns.Mapped())
			cmd := record(t, d, func(r *vk.Recorder) error {
				if err := errors.Join(r.SplitEach(), r.Divide(vk.Pieces{Workgroups: c.width*c.stages/c.pieces + 1})); err != nil {
					return err
				}
				p := push{turns.Address(), out.Address(), uint32(c.stages), uint32(c.width)}
				for range c.launches {
					if err := errors.Join(r.Fill(out.Whole(), 0x7FC00000), r.Dispatch(vk.Dispatch{
						Kernel: k, Groups: [3]uint32{uint32(c.stages * c.width / c.rows), uint32(c.rows), 1}, Push: vk.Bytes(&p),
						Reach: []vk.Reach{{View: turns.Whole(), Access: vk.ReadWrite}, {View: out.Whole(), Access: vk.ReadWrite}},
					})); err != nil {
						return err
					}
				}
				return nil
			})
			if err := cmd.Run(ctx); err != nil {
				t.Fatal(err)
			}
			sum := uint32(0)
			for s := range c.stages {
				before := sum
				sum = 0
				want := words(of, func(i int) uint32 {
					v := uint32(i+s) + before
					sum += v
					return v
				})
				if got := out.Mapped()[4*of*s:][:4*of]; !bytes.Equal(got, want) {
					t.Fatalf("stage %d: %v.., want %v..", s, got[:16], want[:16])
				}
			}
			if got := turns.Mapped(); !bytes.Equal(got[:4*(1+c.stages)], make([]byte, 4*(1+c.stages))) {
				t.Errorf("counters %v", got)
			}
		})
	}
}
