package vk_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/vk"
)

// TestRacesAreSeen records launches and fills without the barriers that they need. The mode sync
// has to report each: all other tests rely on its silence. Accesses by device address stay unseen
// with every release of the layer, and two launches that write the same bytes with that of Debian
// 12. Those by address are TestTurned's, of internal/lab/faults.
func TestRacesAreSeen(t *testing.T) {
	if !door.HasValidation() {
		t.Skip("the validation layer is not installed")
	}
	var mu sync.Mutex
	var heard []string
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vk test", Validation: vk.ValidationSync, OnMessage: func(m vk.Message) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, m.ID+" "+m.Text)
	}})
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })

	k := copyKernel(t, d)
	const size = 4 << 10
	var views [3]vk.View
	for i := range views {
		views[i] = buffer(t, d, size, vk.DeviceLocal).Whole()
	}
	x, y, z := views[0], views[1], views[2]
	launch := func(dst, src vk.View) func(*vk.Recorder) error {
		return func(r *vk.Recorder) error { return r.Dispatch(addStep(k, dst, src, 1)) }
	}
	fill := func(dst vk.View) func(*vk.Recorder) error {
		return func(r *vk.Recorder) error { return r.Fill(dst, 7) }
	}
	for _, c := range []struct {
		name, hazard  string
		first, second func(*vk.Recorder) error
	}{
		{"a launch reads what one wrote", "READ-AFTER-WRITE", launch(y, x), launch(z, y)},
		{"a launch writes what one read", "WRITE-AFTER-READ", launch(y, x), launch(x, z)},
		{"a launch reads what was filled", "READ-AFTER-WRITE", fill(x), launch(y, x)},
		{"what a launch read is filled", "WRITE-AFTER-READ", launch(y, x), fill(x)},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, forget := range []bool{false, true} {
				mu.Lock()
				heard = nil
				mu.Unlock()
				commands := record(t, d, func(r *vk.Recorder) error {
					if err := c.first(r); err != nil {
						return err
					}
					if forget {
						vk.Forget(r)
					}
					return c.second(r)
				})
				require.NoError(t, commands.Run(context.Background()))
				mu.Lock()
				all := strings.ReplaceAll(strings.Join(heard, "\n"), "_", "-")
				mu.Unlock()
				if !forget {
					assert.Empty(t, all, "with the recorder's barrier")
					continue
				}
				assert.Contains(t, all, "SYNC-HAZARD-"+c.hazard, "without it")
			}
		})
	}
}
