package opkit

import (
	"sync"

	"github.com/vkmla/vkmla/vk"
)

// Later is a kernel that the device is asked for when it is needed: what is asked for is compiled,
// in the background on a GPU, whether it is launched or not.
type Later struct {
	pkg  Package
	dev  *vk.Device
	spec Spec

	once   sync.Once
	kernel *vk.Kernel
	err    error
}

// Later is Kernel for a kernel that may not be needed.
func (p Package) Later(dev *vk.Device, s Spec) *Later { return &Later{pkg: p, dev: dev, spec: s} }

// Kernel asks for the kernel the first time. Errors: those of Package.Kernel.
func (l *Later) Kernel() (*vk.Kernel, error) {
	l.once.Do(func() { l.kernel, l.err = l.pkg.Kernel(l.dev, l.spec) })
	return l.kernel, l.err
}

// Ask asks for kernels that are going to be needed.
func Ask(kernels ...*Later) error {
	for _, l := range kernels {
		if _, err := l.Kernel(); err != nil {
			return err
		}
	}
	return nil
}
