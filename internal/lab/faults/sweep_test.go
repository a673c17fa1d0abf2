//go:build linux

package faults_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/faults"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// all reports whether every place where a fault can come is tried.
func all() bool { return os.Getenv("VKMLA_TEST_FAULTS") == "all" }

// each runs a test with one of the models at random, or with all.
func each(t *testing.T, test func(t *testing.T, model *fake)) {
	for _, name := range drawn(t) {
		t.Run(name, func(t *testing.T) { test(t, checkpointOf(t, name)) })
	}
}

// eachOf is each with configurations of the test's own.
func eachOf(t *testing.T, cfg, cfg41 model.Config, test func(t *testing.T, cfg model.Config, records model.Records)) {
	for _, name := range drawn(t) {
		c, records := cfg41, model.RecordsV41
		switch name {
		case v4:
			c, records = cfg, model.RecordsV4
		case v41InV4:
			records = model.RecordsV4
		}
		t.Run(name, func(t *testing.T) { test(t, c, records) })
	}
}

// drawn returns the models of a test.
func drawn(t *testing.T) []string {
	if all() {
		return names
	}
	return names[chance(t).IntN(len(names)):][:1]
}

// chance returns what a test takes its sample by, each another one.
func chance(t *testing.T) *rand.Rand {
	name := fnv.New64a()
	name.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(testkit.Seed(t), name.Sum64()))
}

// kinds returns the kinds of calls, that a test lets fail: n at random, or all.
func kinds(rng *rand.Rand, n, few int) []int {
	list := rng.Perm(n)
	if !all() {
		return list[:few]
	}
	slices.Sort(list)
	return list
}

// places returns the calls, of n, that a test lets fail: one at random, or all, but of polls, which
// are tens of thousands and like their neighbours, as many as most says.
func places(rng *rand.Rand, n, most int) []int {
	switch {
	case n < 1:
		return nil
	case !all():
		return []int{rng.IntN(n)}
	}
	each := make([]int, min(n, most))
	for i := range each {
		each[i] = i * n / len(each)
	}
	return each
}

// sweep lets calls of a life fail.
type sweep struct {
	t     *testing.T
	model *fake
	clean [][]float32 // what a life without faults gives
	first []int       // calls of each kind of the first life on a device, which builds the kernels
	later []int       // of a later one

	warm       *vk.Device // with the kernels; nil: none yet
	fences     int        // before there was a device; hung ones left them
	hits, miss int
	began      time.Time
}

// newSweep lives twice without faults, and counts the calls.
func newSweep(t *testing.T, model *fake) *sweep {
	x := &sweep{t: t, model: model, began: time.Now()}
	x.fences = interposer.Live()["fence"]
	x.warm = open(t, vk.DeviceOptions{Staging: true})
	for _, count := range []*[]int{&x.first, &x.later} {
		before := seen()
		l := life{t: t, model: x.model, dev: x.warm}
		require.NoError(t, l.run())
		if *count = seen(); x.clean == nil {
			x.clean = l.out
		}
		for i, n := range before {
			(*count)[i] -= n
		}
		l.same(x.clean)
		l.end()
	}
	return x
}

// seen returns how many calls of each kind there were.
func seen() []int {
	n := make([]int, len(faults.Calls))
	for i := range n {
		n[i] = interposer.Seen(i)
	}
	return n
}

func (x *sweep) report() {
	require.NoError(x.t, x.warm.Close())
	assert.Equal(x.t, x.fences, interposer.Live()["fence"], "fences that the device was not given back")
	x.t.Logf("%d faults, %d more came after the last such call; %v", x.hits, x.miss, time.Since(x.began).Round(time.Second))
}

// TestEveryCall lets each fallible call fail in turn: typed errors, the same bits after trying
// again, nothing is left. Lives share a device unless only the first on it makes the call.
func TestEveryCall(t *testing.T) {
	rng := chance(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			x := newSweep(t, checkpointOf(t, name))
			for _, call := range kinds(rng, len(faults.Calls), 4) {
				n, fresh := x.later[call], false
				if n == 0 {
					n, fresh = x.first[call], true
				}
				for _, at := range places(rng, n, 1000) {
					t.Run(fmt.Sprintf("%s/%d", faults.Calls[call], at), func(t *testing.T) { x.fail(t, call, at, fresh) })
				}
			}
			x.report()
		})
	}
}

// fail lives with a fault, on a device of its own or not.
func (x *sweep) fail(t *testing.T, call, at int, fresh bool) {
	d := x.warm
	if fresh || d == nil {
		d = open(t, vk.DeviceOptions{Staging: true})
	}
	inUse, before := d.MemoryInUse(), interposer.Live()
	code := int32(faults.OutOfHostMemory)
	if at%2 == 0 {
		code = faults.OutOfDeviceMemory
	}
	l := life{t: t, model: x.model, dev: d}
	interposer.Fail(call, at, code, false)
	err := l.run()
	interposer.Mend()
	if _, hit := interposer.Hit(); hit {
		x.hits++
	} else {
		x.miss++
	}
	require.NoError(t, err)
	l.same(x.clean)
	l.end()
	if fresh {
		require.NoError(t, d.Close(), "left behind")
		before["device"]-- // and what opening it made
	} else {
		assert.Equal(t, inUse, d.MemoryInUse(), "left behind")
	}
	for object, n := range interposer.Live() {
		if object == "fence" && !fresh {
			continue // the device keeps them, see report
		}
		assert.LessOrEqual(t, n, before[object], "%s left behind", object)
	}
	assert.Zero(t, interposer.Orphans(), "fences in flight destroyed")
}

// TestLoss loses the device at each submission, wait and status: a typed error, and another device
// in the same process continues what was saved, with the same bits.
func TestLoss(t *testing.T) {
	waits := []string{"vkQueueSubmit", "vkWaitForFences", "vkGetFenceStatus"}
	rng := chance(t)
	each(t, func(t *testing.T, model *fake) {
		x := newSweep(t, model)
		for _, i := range kinds(rng, len(waits), 1) {
			call := slices.Index(faults.Calls, waits[i])
			for _, at := range places(rng, x.first[call], 500) {
				t.Run(fmt.Sprintf("%s/%d", faults.Calls[call], at), func(t *testing.T) { x.lose(t, call, at) })
			}
		}
		x.report()
	})
}

// lose lives until the device is lost, and goes on with another one.
func (x *sweep) lose(t *testing.T, call, at int) {
	d := open(t, vk.DeviceOptions{Staging: true})
	l := life{t: t, model: x.model, dev: d}
	interposer.Fail(call, at, faults.DeviceLost, true)
	err := l.run()
	if _, hit := interposer.Hit(); !hit {
		x.miss++
		require.NoError(t, err)
		l.end()
		return
	}
	x.hits++
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	assert.ErrorIs(t, d.Err(), vk.ErrDeviceLost)
	l.end()
	_ = d.Close()
	assert.Empty(t, d.MemoryInUse())

	again := begun(t, x.model, open(t, vk.DeviceOptions{Staging: true}))
	from, what := x.model.past, morePast
	if l.saved != nil {
		from, what = l.saved, moreSaved
	}
	again.restore(from, what)
	again.same(x.clean[what.number*len(again.layers):][:len(again.layers)])
	again.close()
}

// TestOpening lets each call fail that opens or closes a device with a cache of pipelines.
func TestOpening(t *testing.T) {
	cycle := func(t *testing.T) (failed error) {
		l := life{t: t}
		dir := t.TempDir()
		var in *vk.Instance
		l.try("new instance", func() (err error) {
			in, err = vk.NewInstance(vk.InstanceOptions{Library: interposer.Library})
			return err
		})
		var d *vk.Device
		l.try("open", func() error {
			a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
			if err == nil {
				d, err = a.Open(vk.DeviceOptions{PipelineCacheDir: dir})
			}
			return err
		})
		l.try("upload", func() error { return d.Upload(t.Context(), d.Dummy(), make([]byte, 256)) })
		require.NoError(t, d.Close())
		require.NoError(t, in.Close())
		return nil
	}
	interposer.Mend()
	before := seen()
	require.NoError(t, cycle(t))
	injected := 0
	for call, n := range seen() {
		for at := range min(n-before[call], 40) { // polls can be many more
			for _, code := range []int32{faults.OutOfHostMemory, faults.OutOfDeviceMemory} {
				injected++
				t.Run(fmt.Sprintf("%s/%d/%d", faults.Calls[call], at, code), func(t *testing.T) {
					live := interposer.Live()
					interposer.Fail(call, at, code, false)
					defer interposer.Mend()
					require.NoError(t, cycle(t))
					assert.Equal(t, live, interposer.Live())
				})
			}
		}
	}
	t.Logf("%d faults", injected)
}
