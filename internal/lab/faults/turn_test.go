//go:build linux

package faults_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/vk"
)

// TestTurned holds that the recorder puts a barrier wherever one is needed, also between launches
// that reach pools by address, which no validation sees: a driver that turns the order of commands
// between barriers around gives the same bits, and one that does so without the barriers others. A
// recorder that only forgets Dispatch.Reach fails it for each model.
func TestTurned(t *testing.T) {
	defer interposer.Honest()
	defer interposer.Turn(faults.Straight)
	some := names[:2]
	if all() {
		some = names
	}
	for _, name := range some {
		model := checkpointOf(t, name)
		for _, addressed := range []bool{false, true} {
			lives := func(order uint32) (out [][]float32, err error) {
				defer func() {
					if x := recover(); x != nil { // a step that starved
						err = fmt.Errorf("%v", x)
					}
				}()
				if addressed {
					interposer.Range(1<<20 - 1)
				}
				l := life{t: t, model: model, dev: open(t, vk.DeviceOptions{})}
				interposer.Turn(order)
				l.openDevice()
				l.openEngine()
				a, err := l.e.Open()
				require.NoError(t, err)
				l.append(a, 13, 0)
				b, err := a.Fork()
				require.NoError(t, err)
				for range 3 {
					l.append(a, 1, 0)
					l.append(b, 2, 1)
				}
				interposer.Turn(faults.Straight)
				l.end()
				require.NoError(t, l.dev.Close())
				interposer.Honest()
				return l.out, nil
			}
			what := fmt.Sprintf("%s, by address: %t", name, addressed)
			want, err := lives(faults.Straight)
			require.NoError(t, err)
			got, err := lives(faults.Turned)
			require.NoError(t, err)
			assert.Equal(t, want, got, what)
			got, err = lives(faults.Blind)
			assert.False(t, err == nil && assert.ObjectsAreEqual(want, got), "%s: nothing needs a barrier", what)
		}
	}
}
