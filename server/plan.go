package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// plan says where --offload would put the parts of a model, before any of it is read. The device
// tells how much memory caches and steps take: with --memory it need not be the one planned for.
func plan(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet("server plan", flag.ContinueOnError)
	o.modelFlags(f)
	o.sizeFlags(f)
	if err := parseFlags(f, args, "Plan says which parts of a model --offload puts on the GPU.\n"); err != nil {
		return err
	}
	o.offload = true
	if err := o.checkModel(); err != nil {
		return err
	}
	return o.withDevice(func(dev *vk.Device) error {
		at, err := model.Plan(ctx, dev, o.dir, o.modelOptions())
		if err == nil {
			_, err = fmt.Fprintln(out, at)
		}
		return err
	})
}

// bytesOf reads a size with a unit, as 24GiB or 80GB.
func bytesOf(text string) (uint64, error) {
	digits := strings.TrimRight(text, "kmgtibKMGTIB")
	factor := map[string]float64{"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
		"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}[strings.ToLower(text[len(digits):])]
	x, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(x > 0 && x*factor >= 1 && x*factor < 1<<60) {
		return 0, fmt.Errorf("got %q, want a size such as 24GiB or 80GB", text)
	}
	return uint64(x * factor), nil
}
