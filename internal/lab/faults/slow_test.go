//go:build linux

package faults_test

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// submitted holds what Interposer.Took says of a step.
type submitted struct {
	longest             time.Duration
	submissions, pieces int
}

// slowSteps runs steps of a layer with the same number of tokens on the device as it is now.
// before is called before each step.
func slowSteps(t *testing.T, l *life, budget time.Duration, steps int, before func(step int)) (out [][]float32, took []submitted) {
	const tokens = 24
	l.openDevice()
	var err error
	l.e, err = pipeline.NewEngine(context.Background(), l.dev, l.cfg, l.layers,
		pipeline.EngineOptions{MaxTokens: tokens * steps, MaxStep: tokens, Records: l.model.records})
	require.NoError(t, err)
	if budget != 0 {
		probe.SetBudget(l.e, budget)
	}
	s := l.open()
	for i := range steps {
		if before != nil {
			before(i)
		}
		interposer.Took()
		got, err := s.Append(context.Background(), l.hidden(i*tokens, tokens, 0))
		require.NoError(t, err, "step %d", i)
		var x submitted
		x.longest, x.submissions, x.pieces = interposer.Took()
		t.Logf("step %d: %d submissions, the longest took %v; %d more pieces", i, x.submissions, x.longest, x.pieces)
		for _, x := range got {
			out = append(out, x.Out)
		}
		took = append(took, x)
	}
	l.close()
	return out, took
}

// On a device that is slow no submission exceeds the budget once it is known how long launches
// take, and what the estimate finds too long is in pieces from the beginning. That holds with
// timestamps and without, for the usual budget and for others, and for a device that slows down.
// Outputs have the same bits.
func TestSlowDevice(t *testing.T) {
	c, c41 := fakemodel.Config(0), fakemodel.TinyV41()
	c41.Hidden, c41.Heads, c41.QRank, c41.ORank = c.Hidden, c.Heads, c.QRank, c.ORank // for the estimate
	c41.Layers = model.V41Layers(model.Sources{Entries: []int{0, 1}, Picks: []int{0, 1, 2}, Candidates: 1}, 2, 1, 1)
	eachOf(t, c, c41, slowDevice)
}

func slowDevice(t *testing.T, cfg model.Config, records model.Records) {
	defer interposer.Honest()
	m := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8, Seed: 6})
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	fake := &fake{path: dir, records: records}
	const steps = 5
	interposer.Slow(time.Microsecond, false)
	want, whole := slowSteps(t, &life{t: t, model: fake, dev: open(t, vk.DeviceOptions{})}, -1, steps, nil)
	groups := whole[0].longest / time.Microsecond // in a step of one submission
	for name, c := range map[string]struct {
		step, budget, most time.Duration // of a step, of the engine unless 0, of a submission at the end
		wall, slower       bool
		pieces             bool // from the beginning, by the estimate
	}{
		"a budget":            {step: time.Second, budget: 60 * time.Millisecond, most: 60 * time.Millisecond},
		"an estimate":         {step: 20 * time.Millisecond, budget: 2 * time.Millisecond, most: 2 * time.Millisecond, pieces: true},
		"the usual budget":    {step: 2 * time.Second, most: 200 * time.Millisecond},
		"one that slows down": {step: time.Second, budget: 240 * time.Millisecond, most: 240 * time.Millisecond, slower: true},
		"one without a clock": {step: 200 * time.Millisecond, budget: 20 * time.Millisecond, most: 20 * time.Millisecond, wall: true},
		"fast enough":         {step: 40 * time.Millisecond, most: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			if c.wall && cfg.Records == model.RecordsV41 && !all() {
				t.Skip("VKMLA_TEST_FAULTS is not all: many launches are timed by the host")
			}
			defer interposer.Honest()
			a := *open(t, vk.DeviceOptions{}).Adapter()
			if c.wall {
				a.Caps.TimestampPeriod = 0
			}
			d, err := a.Open(vk.DeviceOptions{Profile: "cpu"})
			require.NoError(t, err)
			interposer.Slow(c.step/groups, c.wall)
			got, took := slowSteps(t, &life{t: t, model: fake, dev: d}, c.budget, steps, func(step int) {
				if c.slower && step == 2 {
					interposer.Slow(4*c.step/groups, false)
				}
			})
			assert.Equal(t, want, got, "other bits")
			assert.Equal(t, c.pieces, took[0].pieces > 0, "pieces of the first step")
			assert.Greater(t, took[0].submissions, 5, "launches are timed one by one")
			last := took[steps-1]
			if c.wall { // others may have had a part of it: one step that fits will do
				last = slices.MinFunc(took[1:], func(a, b submitted) int { return cmp.Compare(a.longest, b.longest) })
			}
			assert.LessOrEqual(t, last.longest, c.most)
			if c.step <= c.most {
				assert.Equal(t, 1, last.submissions, "a step within the budget is one submission")
				return
			}
			assert.Less(t, last.submissions, 8*int(c.step/c.most)+10, "no more than it takes")
			if !c.pieces && !c.slower {
				assert.Greater(t, took[0].longest, c.most, "nobody knew")
			}
		})
	}
}
