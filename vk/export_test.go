package vk

// CompileLater is what a device that is no CPU does with a kernel.
func CompileLater(k *Kernel) {
	k.dev.mu.Lock()
	defer k.dev.mu.Unlock()
	k.dev.compileLater(k)
}

// WaitForCompilers waits until nothing is left to be compiled.
func WaitForCompilers(d *Device) { d.compiling.Wait() }

// Compiled tells whether a kernel is.
func Compiled(k *Kernel) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.layout != nil
}

// KernelKey is what tells a kernel from others.
func KernelKey(s KernelSpec) any { return s.key() }

// Remembered is how many accesses the recorder compares with the next one.
func Remembered(r *Recorder) int { return len(r.pending) }

// TimedParts is how many parts of a recording there is a timestamp for.
func TimedParts(c *Commands) (n int) {
	for _, m := range c.rec.parts.marks[1:] {
		if m >= 0 {
			n++
		}
	}
	return n
}

// Subgroups is what a device offers with these sizes of subgroups.
func Subgroups(size, least, most uint32, required bool) *Caps {
	c := &Caps{}
	c.fillSubgroups(size, least, most, required)
	return c
}

// KnowsSubgroups tells whether kernels can be built for a size of subgroups.
func (c *Caps) KnowsSubgroups() bool { return c.knownSubgroupSize }
