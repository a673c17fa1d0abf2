//go:build linux

package faults_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

func (l *life) Sessions() int { return l.e.Stats().Sessions }
func (l *life) Err() error    { return l.dev.Err() }

// TestLostReplica loses one of two devices, whose sessions are lost. Those of the other one go on,
// and one that was saved goes on there with the same bits.
func TestLostReplica(t *testing.T) { each(t, lostReplica) }

func lostReplica(t *testing.T, fake *fake) {
	var list []*life
	for range 2 {
		l := begun(t, fake, open(t, vk.DeviceOptions{}))
		t.Cleanup(l.end)
		list = append(list, l)
	}
	ctx := t.Context()
	opens := func(on int) *pipeline.Session {
		t.Helper()
		var at *life
		s, err := replicas.Open(list, func(l *life) (*pipeline.Session, error) {
			at = l
			return l.e.Open()
		})
		require.NoError(t, err)
		require.Same(t, list[on], at)
		return s
	}
	lose := func() { // what the next submission finds; the other device is whole
		interposer.Fail(slices.Index(faults.Calls, "vkQueueSubmit"), 0, faults.DeviceLost, false)
	}
	gone, stays := opens(0), opens(1)
	list[0].append(gone, 4, 0)
	list[1].append(stays, 4, 0)
	assert.Equal(t, list[0].out, list[1].out, "equal devices")
	var kept bytes.Buffer
	require.NoError(t, gone.Save(ctx, &kept))
	list[0].append(gone, 2, 0)

	lose()
	_, err := gone.Append(ctx, list[0].hidden(6, 1, 0))
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	list[1].append(stays, 2, 0)
	assert.Equal(t, list[0].out, list[1].out)
	opens(1)
	require.NoError(t, replicas.Err(list))

	again, err := replicas.Open(list, func(l *life) (*pipeline.Session, error) { return l.e.Restore(ctx, bytes.NewReader(kept.Bytes())) })
	require.NoError(t, err)
	before := len(list[1].out)
	list[1].append(again, 2, 0)
	assert.Equal(t, list[0].out[len(list[0].layers):], list[1].out[before:])

	lose()
	_, err = stays.Append(ctx, list[1].hidden(6, 1, 0))
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	assert.ErrorIs(t, replicas.Err(list), vk.ErrDeviceLost)
	_, err = replicas.Open(list, func(l *life) (*pipeline.Session, error) { return l.e.Open() })
	assert.ErrorIs(t, err, vk.ErrDeviceLost, "none is left")
}
