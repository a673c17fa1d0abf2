package measure

import (
	"context"

	"github.com/vkmla/vkmla/vk"
)

// Small is Builds with little to do, on any profile. It tells what it tries.
func Small(ctx context.Context, dev *vk.Device, dir string, began func(pkg, build string)) error {
	m := measurer{dev: dev, dir: dir, sizes: sizes{tokens: 24, rows: 128, heads: 16}, began: began}
	return m.run(ctx)
}

// Distance is how far results are apart, and Farthest how far they may be.
var Distance = distance

// Farthest is how far they may be.
const Farthest = farthest
