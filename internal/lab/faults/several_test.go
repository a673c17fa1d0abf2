//go:build linux

package faults_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/replicas"
	"github.com/vkmla/vkmla/vk"
)

// lose lets the next submission find its device lost. The other devices are whole.
func lose() {
	interposer.Fail(slices.Index(faults.Calls, "vkQueueSubmit"), 0, faults.DeviceLost, false)
}

// states are hidden states of tokens, the same for every layer.
func states(cfg model.Config, tokens []int32) (values []float32) {
	for _, id := range tokens {
		rng := rand.New(rand.NewPCG(uint64(id), 3))
		for range cfg.Hidden {
			values = append(values, float32(rng.NormFloat64()))
		}
	}
	return values
}

// pair is a group of two lives.
type pair struct {
	lives [2]life
	g     *replicas.Group
}

func newPair(t *testing.T, m *fake, o vk.DeviceOptions) *pair {
	x, list := &pair{}, []replicas.Replica{}
	for i := range x.lives {
		l := &x.lives[i]
		*l = life{t: t, model: m, dev: open(t, o)}
		l.openDevice()
		l.openEngine()
		t.Cleanup(l.end)
		list = append(list, replicas.Replica{Engine: l.e, Device: l.dev, MaxCacheBytes: 1 << 30})
	}
	var err error
	x.g, err = replicas.New(list, replicas.Options{Rewind: 8})
	require.NoError(t, err)
	return x
}

// step takes tokens of sessions through the layers and returns what the last one gives.
func (x *pair) step(ctx context.Context, chunks ...replicas.Chunk) ([][]float32, error) {
	outs, cfg := make([][]float32, len(chunks)), x.lives[0].cfg
	return outs, x.g.Step(ctx, func(ctx context.Context, p replicas.Part) error {
		layers := x.lives[p.Replica].e.Layers()
		for i, k := range p.Chunks {
			for l := range layers {
				if err := p.Step.SetInput(l, i, states(cfg, chunks[k].Tokens)); err != nil {
					return err
				}
			}
		}
		if err := p.Step.Run(ctx); err != nil {
			return err
		}
		for i, k := range p.Chunks {
			outs[k] = make([]float32, len(chunks[k].Tokens)*cfg.Hidden)
			if err := p.Step.ReadOutput(layers-1, i, outs[k]); err != nil {
				return err
			}
		}
		return nil
	}, chunks...)
}

// A lost device takes its own sessions with it, and no others: these go on beside, and those that
// kept ones go on there with the same bits.
func TestLostReplica(t *testing.T) { each(t, lostReplica) }

func lostReplica(t *testing.T, fake *fake) {
	x := newPair(t, fake, vk.DeviceOptions{})
	ctx := t.Context()
	a, b := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}, []int32{9, 8, 7, 6, 5, 4, 3, 2}
	on := func(tokens []int32, n, replica int) *replicas.Session {
		t.Helper()
		s, got, err := x.g.Open(ctx, tokens)
		require.NoError(t, err)
		require.Equal(t, []int{n, replica}, []int{got, s.Replica()})
		return s
	}
	gone, stays := on(a, 0, 0), on(b, 0, 1)
	chunks := func(from, to int) []replicas.Chunk {
		return []replicas.Chunk{{Session: gone, Tokens: a[from:to]}, {Session: stays, Tokens: b[from:to]}}
	}
	_, err := x.step(ctx, chunks(0, 4)...)
	require.NoError(t, err)
	var kept bytes.Buffer
	require.NoError(t, gone.Save(ctx, &kept))
	fork, err := gone.Fork()
	require.NoError(t, err)
	want, err := x.step(ctx, replicas.Chunk{Session: fork, Tokens: a[4:6]})
	require.NoError(t, err)

	lose()
	_, err = x.step(ctx, chunks(4, 5)[:1]...)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	var failed *replicas.StepError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, []int{0}, failed.Failed[0].Chunks)
	began := time.Now()
	_, err = x.step(ctx, chunks(4, 6)...)
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	assert.Equal(t, 0, failed.Failed[0].Replica)
	assert.ErrorIs(t, err, vk.ErrDeviceLost)
	assert.Equal(t, 6, stays.Len(), "the other device's session has its tokens")
	assert.Equal(t, a[:4], gone.Tokens())
	for _, err := range []error{gone.Err(), x.g.Err(), x.g.Loads()[0].Err, gone.Move(ctx, 1), gone.Save(ctx, &bytes.Buffer{}),
		gone.Truncate(0)} {
		assert.ErrorIs(t, err, vk.ErrDeviceLost)
	}
	assert.NoError(t, stays.Err())
	_, err = x.g.Relieve(ctx, 0)
	assert.ErrorIs(t, err, vk.ErrDeviceLost)
	assert.Less(t, time.Since(began), 15*time.Minute, "nobody waits for a lost device")

	again, err := x.g.Restore(ctx, gone.Tokens(), bytes.NewReader(kept.Bytes()))
	require.NoError(t, err)
	require.Equal(t, 1, again.Replica())
	got, err := x.step(ctx, replicas.Chunk{Session: again, Tokens: a[4:6]})
	require.NoError(t, err)
	assert.Equal(t, want, got)
	require.NoError(t, gone.Close())
	require.NoError(t, fork.Close())
	anew := on(a, 6, 1) // from the one that was restored
	_, err = x.step(ctx, replicas.Chunk{Session: anew, Tokens: a[6:8]}, replicas.Chunk{Session: stays, Tokens: b[6:]})
	require.NoError(t, err)

	lose()
	_, err = x.step(ctx, replicas.Chunk{Session: stays, Tokens: a[:1]})
	assert.ErrorIs(t, err, vk.ErrDeviceLost)
	_, _, err = x.g.Open(ctx, a)
	assert.ErrorIs(t, err, vk.ErrDeviceLost, "none is left")
}

// A step on devices that hang ends with its context.
func TestHungReplica(t *testing.T) { each(t, hungReplica) }

func hungReplica(t *testing.T, fake *fake) {
	x := newPair(t, fake, vk.DeviceOptions{Staging: true}) // which submits to transfer
	a := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	s, _, err := x.g.Open(t.Context(), a)
	require.NoError(t, err)
	_, err = x.step(t.Context(), replicas.Chunk{Session: s, Tokens: a[:2]})
	require.NoError(t, err)
	interposer.Hang()
	for _, f := range []func(context.Context) error{
		func(ctx context.Context) error {
			_, err := x.step(ctx, replicas.Chunk{Session: s, Tokens: a[2:3]})
			return err
		},
		func(ctx context.Context) error { return s.Move(ctx, 1) },
		func(ctx context.Context) error { return s.Save(ctx, &bytes.Buffer{}) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		assert.ErrorIs(t, f(ctx), context.DeadlineExceeded)
		assert.Less(t, time.Since(began), 15*time.Minute)
		cancel()
	}
	interposer.Mend()
	assert.Equal(t, []int{2, 0}, []int{s.Len(), s.Replica()})
	_, err = x.step(t.Context(), replicas.Chunk{Session: s, Tokens: a[2:3]})
	require.NoError(t, err)
}
