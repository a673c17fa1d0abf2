package indexer

import (
	"github.com/vkmla/vkmla/vk"
)

// topkTunings are choices of shapes to test and to compare.
var topkTunings = func() map[string]topkTuning {
	gpu := defaultTuning(vk.TypeDiscrete)
	change := func(f func(*topkTuning)) topkTuning {
		t := gpu
		f(&t)
		return t
	}
	return map[string]topkTuning{
		"gpu":  gpu,
		"half": change(func(t *topkTuning) { t.short = []topkShape{{512, 8, 0, 10}, {512, 16, 0, 10}, {512, 32, 0, 10}} }),
		"bits10": change(func(t *topkTuning) {
			t.short = []topkShape{{1024, 4, 0, 10}, {1024, 8, 0, 10}, {1024, 16, 0, 10}, {1024, 20, 0, 10}}
		}),
		"bits8": change(func(t *topkTuning) {
			t.short = []topkShape{{1024, 4, 0, 8}, {1024, 8, 0, 8}, {1024, 16, 0, 8}, {1024, 20, 0, 8}}
		}),
		"slice8192":  change(func(t *topkTuning) { t.slice = 8192 }),
		"slice16384": change(func(t *topkTuning) { t.slice = 16384 }),
		"unsliced":   change(func(t *topkTuning) { t.slice = 1 << 30 }),
		"stream1024": change(func(t *topkTuning) { t.many = t.few }),
		"stream512x16": change(func(t *topkTuning) {
			t.many = append([]topkShape{{512, 16, 2048, 10}}, t.many...)
			t.few = append([]topkShape{{512, 16, 4096, 10}}, t.few...)
		}),
		"stream": change(func(t *topkTuning) { t.short = nil }),
	}
}()

// TopKTunings are the names that NewTunedTopK knows.
func TopKTunings() (names []string) {
	for name := range topkTunings {
		names = append(names, name)
	}
	return names
}

// NewTunedTopK is NewTopK with the shapes of a name.
func NewTunedTopK(dev *vk.Device, cfg TopKConfig, name string) (*TopK, error) {
	return newTopK(dev, cfg, topkTunings[name])
}
