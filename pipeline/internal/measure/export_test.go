package measure

import (
	"context"

	"github.com/vkmla/vkmla/vk"
)

// Small is Builds with little to do, on any profile. It tells what it tries.
func Small(ctx context.Context, dev *vk.Device, dir string, began func(family, build string)) error {
	m := measurer{dev: dev, dir: dir, sizes: sizes{tokens: 24, rows: 128, heads: 16}, began: began}
	return m.run(ctx)
}

// Candidates are the builds that are timed on a device, by family.
func Candidates(caps *vk.Caps, avoidMatrices bool) map[string][]string {
	list := map[string][]string{}
	for _, t := range trials() {
		list[t.family] = t.candidates(caps, avoidMatrices)
	}
	return list
}

// Distance measures how far results are apart.
var Distance = distance

// Farthest is the largest distance that passes.
const Farthest = farthest
