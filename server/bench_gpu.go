package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/vkmla/vkmla/server/gpu"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/vk"
)

// logRates says how fast the device reads the experts of one token.
func logRates(ctx context.Context, log *slog.Logger, dev *vk.Device, g *gpu.GPU) error {
	copies, err := gpu.CopyRate(ctx, dev)
	if err != nil {
		return err
	}
	r, err := g.Measure(ctx, 1)
	if err != nil {
		return err
	}
	log.Info("bandwidth", "copies_GB/s", copies.PerSecond()/1e9, "experts_GB/s", r.Experts.PerSecond()/1e9,
		"share", r.Experts.PerSecond()/copies.PerSecond())
	return nil
}

// benchGPU is bench where all of the model is on the device: what batches generate, and how fast
// experts are read beside copies.
func (o *benchOptions) benchGPU(ctx context.Context, dev *vk.Device, m *model.Model, out io.Writer, log *slog.Logger) error {
	copies, err := gpu.CopyRate(ctx, dev)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, which copies (reads and writes) at %.0f GB/s; %d layers, one submission a step. Times in ms of a step.\n\n",
		dev.Adapter().Name, copies.PerSecond()/1e9, len(m.Weights.Layers))
	table(out, "batch", "prompts, tokens/s", "answers, tokens/s", "step", "of it the device", "experts alone", "GB read by them", "GB/s",
		"of copies", "gate and up", "down", "all weights read, GB", "as long as a copy takes for them")
	var rows []benchRow
	for _, n := range o.batches {
		row, err := o.run(ctx, m, n, log)
		if err != nil {
			return err
		}
		rows = append(rows, row)
		r, err := m.GPU().Measure(ctx, n)
		if err != nil {
			return err
		}
		all := float64(m.StepBytes()) + r.Experts.Bytes
		share := func(x gpu.Rate) float64 { return 100 * x.PerSecond() / copies.PerSecond() }
		fmt.Fprintf(out, "| %d | %.1f | %.1f | %.2f | %.2f | %.2f | %.2f | %.0f | %.0f %% | %.0f %% | %.0f %% | %.2f | %.2f |\n",
			n, row.prompts,
			float64(row.answers)/row.time.Seconds(), row.time.Seconds()*1e3/float64(row.steps), row.device.Seconds()*1e3/float64(row.steps),
			r.Experts.Seconds*1e3, r.Experts.Bytes/1e9, r.Experts.PerSecond()/1e9, share(r.Experts), share(r.Up), share(r.Down),
			all/1e9, all/copies.PerSecond()*1e3)
	}
	o.printDrafts(out, rows)
	fmt.Fprintln(out)
	return o.printSections(ctx, m, out)
}

// timing is the time that steps run before one is timed: the clock of a device that idled comes up
// late.
const timing = 1500 * time.Millisecond

// printSections prints where the device's time of a step goes.
func (o *benchOptions) printSections(ctx context.Context, m *model.Model, out io.Writer) error {
	sections := append([]string{"attention"}, gpu.Sections...)
	table(out, append([]string{"batch", "step"}, sections...)...)
	for _, n := range o.batches {
		whole, parts, err := m.Timed(ctx, n, timing)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| %d | %.3f |", n, whole)
		for _, s := range sections {
			fmt.Fprintf(out, " %.3f |", parts[s])
		}
		fmt.Fprintln(out)
	}
	return nil
}
