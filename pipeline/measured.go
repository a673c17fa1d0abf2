package pipeline

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/pipeline/internal/measure"
	"github.com/vkmla/vkmla/vk"
)

const opMeasure = "pipeline: measure"

// Measure has operations and engines that are made from now on for dev, but not for other objects
// of the same device, run the builds of products, attention and scores that are fastest on it. It
// compiles them, times them for about a second, checks that they compute what the build without
// matrices does, and keeps the result in a folder, by device, driver and its version; from then on
// it reads that. It does nothing on a device whose tuning profile was measured (vkmla info shows
// which).
//
// A mark in the folder says what is being tried. If the program ends meanwhile, as some drivers'
// compilers end it, that build is never tried again. Other builds have other bits: sums in another
// order.
//
// Errors: vk.ErrArgument for a nil context, a nil device or no folder; the context's;
// vk.ErrDeviceLost, vk.ErrClosed; the file system's.
func Measure(ctx context.Context, dev *vk.Device, folder string) error {
	switch {
	case ctx == nil:
		return badArgument(opMeasure, "ctx", "nil", "a context")
	case dev == nil:
		return badArgument(opMeasure, "dev", "nil", "a device")
	case folder == "":
		return badArgument(opMeasure, "folder", "none", "one")
	}
	if err := measure.Builds(ctx, dev, folder); err != nil {
		return fmt.Errorf("%s: %w", opMeasure, err)
	}
	return nil
}
