//go:build linux

package walk_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/internal/lab/sequences"
	"github.com/vkmla/vkmla/internal/lab/validation"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestWalk walks some steps, in a process of its own: the interposer counts calls only where it is
// loaded before the system's loader. VKMLA_TEST_WALK says how many, or for how long: 100000, 450s.
// The library that counts objects is VKMLA_TEST_INTERPOSER where there is no C compiler.
func TestWalk(t *testing.T) {
	o := sequences.WalkOptions{Workers: 4, Seed: rand.Uint64(), Alone: 12}
	if long := os.Getenv("VKMLA_TEST_WALK"); long != "" {
		var err error
		if o.Steps, err = strconv.Atoi(long); err != nil {
			o.Steps = 0
			o.Time, err = time.ParseDuration(long)
			require.NoError(t, err, "VKMLA_TEST_WALK")
		}
		o.Long, o.Workers, o.Alone = true, 6, 300
		o.Progress = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	if seed := os.Getenv("VKMLA_TEST_SEED"); seed != "" {
		var err error
		o.Seed, err = strconv.ParseUint(seed, 0, 64)
		require.NoError(t, err, "VKMLA_TEST_SEED")
	}
	t.Logf("VKMLA_TEST_SEED=%d", o.Seed)

	x, err := faults.New(os.Getenv("VKMLA_TEST_INTERPOSER"), t.TempDir())
	require.NoError(t, err)
	in, messages := instance(t, x.Library)
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	t.Log(a.Name)
	d, err := a.Open(vk.DeviceOptions{})
	require.NoError(t, err)

	o.Live = x.Live
	for _, m := range models(t, o.Seed) {
		t.Run(m.name, func(t *testing.T) { m.walk(t, d, o, x) })
	}
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		others(t, d, o, x)
	}
	assert.NoError(t, d.Close())
	assert.NoError(t, in.Close())
	assert.Empty(t, x.Live())
	assert.Empty(t, messages())
}

// walked is a model with whose sessions a test walks.
type walked struct {
	name  string
	o     sequences.Options
	pages map[string]int
	few   int  // steps of a short walk
	more  bool // on a slow device, too
}

var v41Pages = map[string]int{"window": 32, "ratio2": 32, "ratio2.state": 3, "ratio1": 48, "draft": 5}

func models(t *testing.T, seed uint64) []walked {
	return []walked{
		{name: "v4", o: sequences.Options{Model: sequences.V4}, pages: fakemodel.VLLMPages(), few: 250, more: true},
		{name: "v41", o: sequences.Options{Model: sequences.V41}, pages: v41Pages, few: 60},
		random(t, seed),
	}
}

// random has random sizes and lists of sources, pages of random sizes, and either records.
func random(t *testing.T, seed uint64) walked {
	rng := rand.New(rand.NewPCG(seed, 45))
	_, m := fakemodel.RandomV41(rng)
	o := sequences.Options{Random: m, Model: []sequences.Model{sequences.V41, sequences.V41InV4Store}[rng.IntN(2)]}
	return walked{name: fmt.Sprint("random ", seed), o: o, pages: map[string]int{"window": 1 + rng.IntN(40)}, few: 60}
}

// others walks 100 random models, and layers with weights of every format.
func others(t *testing.T, d *vk.Device, o sequences.WalkOptions, x *faults.Interposer) {
	few := pipeline.EngineOptions{QuantiseActivations: true}
	var list []walked
	for range 100 {
		o.Seed++
		list = append(list, random(t, o.Seed))
	}
	for _, s := range []fakemodel.Storage{fakemodel.BF16, fakemodel.FP8, fakemodel.NVFP4} {
		c := fakemodel.Config(4, 0, 128)
		c.Hidden, c.ORank = 256, 128 // blocks of 128
		m := fakemodel.New(fakemodel.Options{Config: c, Storage: s})
		list = append(list, walked{name: string(s), o: sequences.Options{Random: m}, few: 800})
		if s != fakemodel.BF16 {
			list = append(list, walked{name: string(s) + " quantised", o: sequences.Options{Random: m, Engines: few}, few: 800})
		}
	}
	o.Long, o.Steps, o.Time = true, 0, 0
	for _, m := range list {
		t.Run(m.name, func(t *testing.T) { m.walk(t, d, o, x) })
	}
}

func (m *walked) walk(t *testing.T, d *vk.Device, o sequences.WalkOptions, x *faults.Interposer) {
	if o.Pages = m.pages; o.Steps == 0 && o.Time == 0 {
		o.Steps = m.few
	}
	l, err := sequences.Open(t.Context(), d, m.o)
	require.NoError(t, err)
	r, err := l.Walk(o)
	require.NoError(t, err)
	t.Log(r)
	for _, s := range r.Stages {
		t.Log(s)
	}
	assert.Empty(t, r.LeftBytes, "memory that is left")
	assert.Empty(t, r.LeftLive, "objects that are left")
	assert.Empty(t, r.Grew())
	assert.Positive(t, r.Compared)
	if m.more {
		slowly(t, l, o, x)
	}
	assert.NoError(t, l.Close())
}

// slowly walks on a device that is so slow that its launches are divided, and steps in many
// submissions; bits are those that they were whole.
func slowly(t *testing.T, l *sequences.Lab, o sequences.WalkOptions, x *faults.Interposer) {
	o.Steps, o.Time, o.Workers, o.Alone, o.Long, o.Progress = 40, 0, 2, 4, false, nil
	x.Slow(30*time.Millisecond, false)
	defer x.Slow(0, false)
	r, err := l.Walk(o)
	require.NoError(t, err)
	longest, submissions, pieces := x.Took()
	t.Logf("slowly: %v%d submissions, the longest took %v; %d more pieces", r, submissions, longest, pieces)
	assert.Positive(t, r.Compared)
	assert.Positive(t, pieces, "nothing was divided")
	assert.Empty(t, r.LeftBytes, "memory that is left")
	assert.Empty(t, r.LeftLive, "objects that are left")
}

// instance opens a loader with validation, and returns what collects its messages. To ask first
// whether there is a validation layer would open the system's loader, and no call of it is counted.
func instance(t *testing.T, library string) (in *vk.Instance, messages func() []string) {
	env := os.Getenv(validation.Env)
	v, err := validation.Choose(env, true)
	require.NoError(t, err)
	var mu sync.Mutex
	var list []string
	in, err = vk.NewInstance(vk.InstanceOptions{Library: library, Validation: v, OnMessage: func(m vk.Message) {
		if !validation.Late(m) {
			mu.Lock()
			list = append(list, m.Text)
			mu.Unlock()
		}
	}})
	if env == "" && errors.Is(err, vk.ErrMissingFeature) {
		in, err = vk.NewInstance(vk.InstanceOptions{Library: library})
	}
	require.NoError(t, err)
	return in, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}
