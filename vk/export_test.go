package vk

import (
	"maps"
	"slices"
	"time"
)

// HangAfter changes DeviceOptions.HangAfter while the device has nothing to do.
func HangAfter(d *Device, limit time.Duration) { d.opts.HangAfter = limit }

// HangsAfter returns the time after which the device counts as hung.
func HangsAfter(d *Device) time.Duration { return d.hangAfter() }

// CompileLater compiles a kernel in the background, as devices other than CPUs do.
func CompileLater(k *Kernel) {
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	k.dev.compileLater(k)
}

// KeepAll has every kernel that is compiled in the background count as one that took long.
func KeepAll() (restore func()) {
	before := worthKeeping
	worthKeeping = -1
	return func() { worthKeeping = before }
}

// WaitForCompilers waits until every background compilation has ended.
func WaitForCompilers(d *Device) { d.compiling.Wait() }

// Compiled tells whether a kernel is compiled.
func Compiled(k *Kernel) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.layout != nil
}

// KernelKey identifies a kernel: specifications with equal keys share one.
func KernelKey(s KernelSpec) (any, error) {
	m, err := parseModule(s.SPIRV)
	return s.key(m), err
}

// Remembered is the number of accesses that the recorder compares the next one with.
func Remembered(r *Recorder) int { return len(r.pending) }

// Forget makes the recorder forget all accesses so far, so that what comes needs no barrier.
func Forget(r *Recorder) { r.pending = r.pending[:0] }

// TimedParts is the number of parts of a recording that have a timestamp.
func TimedParts(c *Commands) (n int) {
	for _, m := range c.rec.parts.marks[1:] {
		if m >= 0 {
			n++
		}
	}
	return n
}

// Subgroups returns the limits of a device whose driver reports these subgroup sizes.
func Subgroups(size, least, most uint32, required bool) *Caps {
	c := &Caps{}
	c.fillSubgroups(size, least, most, required)
	return c
}

// KnowsSubgroups tells whether kernels can be built for a known subgroup size.
func (c *Caps) KnowsSubgroups() bool { return c.knownSubgroupSize }

// SubmitCancelled submits commands of several parts; the device gets none of them.
func SubmitCancelled(c *Commands) (*Pending, error) {
	p := &Pending{c: c, number: c.rec.proof.next(), cancel: true}
	c.flying = p
	return p, c.rec.dev.begin(p)
}

// Barriers returns the number of barriers that the recorder derived.
func (c *Commands) Barriers() int { return c.rec.barriers }

// Dispatches returns the number of recorded launches.
func (c *Commands) Dispatches() int { return c.rec.dispatches }

// Compiled returns how long the driver took over each kernel so far, by name; kernels of one name
// are added up. It waits for those that are being compiled.
func (d *Device) Compiled() map[string]time.Duration {
	d.mu.Lock()
	kernels := slices.Collect(maps.Values(d.kernels))
	d.mu.Unlock()
	took := map[string]time.Duration{}
	for _, k := range kernels {
		k.mu.Lock()
		if k.layout != nil {
			took[k.spec.Name] += k.took
		}
		k.mu.Unlock()
	}
	return took
}
