//go:build linux

package walk_test

import (
	"bytes"
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
	"github.com/vkmla/vkmla/internal/lab/validation"
	"github.com/vkmla/vkmla/internal/lab/walk"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestWalk walks some steps. VKMLA_TEST_WALK says how many, or for how long: 100000, 450s. The
// library that counts objects is VKMLA_TEST_INTERPOSER where there is no C compiler.
func TestWalk(t *testing.T) {
	o := walk.Options{Workers: 4, Seed: rand.Uint64(), Alone: 12}
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

	o.Device, o.Live = d, x.Live
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) { m.walk(t, o, x) })
	}
	assert.NoError(t, d.Close())
	assert.NoError(t, in.Close())
	assert.Empty(t, x.Live())
	assert.Empty(t, messages())
}

// walked is a model with whose sessions a test walks.
type walked struct {
	name   string
	config func() model.Config
	pages  map[string]int
	few    int  // steps of a short walk
	more   bool // walks that are spoilt, and on a slow device
}

var models = []walked{
	{"v4", func() model.Config { return fakemodel.Tiny(0, 4, 128) }, model.VLLMPages(), 250, true},
	{"v41", drafting, map[string]int{"window": 32, "ratio2": 32, "ratio2.state": 3, "ratio1": 48, "draft": 5}, 60, false},
}

// drafting has a layer of each role of V4.1. The last one drafts, in blocks that every step of a
// walk has room for.
func drafting() model.Config {
	c := fakemodel.TinyV41().WithDrafts(1)
	c.DraftBlock = 3
	return c
}

func (m *walked) walk(t *testing.T, o walk.Options, x *faults.Interposer) {
	c := m.upload(t, &o)
	if o.Config, o.Pages = c, m.pages; o.Steps == 0 && o.Time == 0 {
		o.Steps = m.few
	}
	r, err := walk.Run(o)
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
		seen(t, o)
		slowly(t, o, x)
	}
	for _, w := range o.Layers {
		assert.NoError(t, w.Close())
	}
}

// upload puts the model's weights on the walk's device.
func (m *walked) upload(t *testing.T, o *walk.Options) model.Config {
	fake, err := fakemodel.New(fakemodel.Options{Config: m.config(), Storage: fakemodel.FP8, Seed: 5})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, fake.Write(dir, 1))
	var all []int
	for i := range m.config().Layers {
		all = append(all, i)
	}
	c, err := model.Open(dir, model.CheckpointOptions{Layers: all})
	require.NoError(t, err)
	o.Layers, err = c.Upload(t.Context(), o.Device, nil)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	return c.Config
}

// seen walks while somebody writes to the rows of windows, and demands that the walk sees it.
func seen(t *testing.T, o walk.Options) {
	o.Steps, o.Time, o.Workers, o.Long, o.Progress = 2000, 0, 1, false, nil
	o.Disturb = func(e *pipeline.Engine) {
		rows := e.Caches(0).Window.Pool
		require.NoError(t, rows.Upload(t.Context(), bytes.Repeat([]byte{0x31}, int(rows.Bytes()))))
	}
	r, err := walk.Run(o)
	require.ErrorContains(t, err, "other bits than before")
	assert.Less(t, r.Steps, o.Steps)
	assert.Empty(t, r.LeftLive, "objects that are left")
}

// slowly walks on a device that is so slow that its launches are divided, and steps in many
// submissions; bits are those that they were whole.
func slowly(t *testing.T, o walk.Options, x *faults.Interposer) {
	o.Steps, o.Time, o.Workers, o.Alone, o.Long, o.Progress = 40, 0, 2, 4, false, nil
	x.Slow(30*time.Millisecond, false)
	defer x.Slow(0, false)
	r, err := walk.Run(o)
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
