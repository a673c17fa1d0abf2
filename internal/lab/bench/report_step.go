package bench

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewStepReport starts a report of the suite step. Errors: vk.ErrArgument for an unknown format.
func NewStepReport(on ReportOn) (*Report[StepRow], error) {
	return newReport(on, style[StepRow]{
		table: stepTable, csv: stepCSV, more: stepDetails, pictures: stepPictures,
		about: func(w *writer, _ []StepRow) { w.printf("%s", stepText) },
		lines: func(w *writer, x StepRow) {
			for _, s := range []struct {
				name         string
				device, host Time
			}{{"Step", x.Time, x.Host}, {"ChainedStep", x.Chained, x.ChainedHost}} {
				for i, us := range s.device.Samples {
					w.printf("Benchmark%s/%s 1 %.0f ns/op %.0f host-ns/op\n", s.name, x.title(), us*1e3, s.host.Samples[i]*1e3)
				}
			}
		},
		state: func(x StepRow) (status, name, detail string) { return x.Status, x.title(), x.Detail },
	})
}

func (x StepRow) title() string {
	return fmt.Sprintf("model=%s/weights=%s/batch=%d/context=%d", x.Model, x.Weights, x.Batch, x.Context)
}

const stepText = `Whole decode steps: attention of all layers, from hidden states to hidden states, random weights.
tokens/s: sequences over the latency of a chained step; experts and head are not in it. context:
tokens of a sequence in the last step that is timed; those before begin with fewer. us: the
device's time for a step in one submission whose layers have their hidden states at once, so that a
layer's first products run beside the last one of the layer before. chained: one submission, too,
in which a kernel makes the input of a layer from the output of the one before (residual and norm),
as in a model. layer by layer: each layer submitted by itself, without that kernel; the sum of
their times. host us: the processor's, to fill in and submit a step and to end it, without the
wait; latency: both with the wait; after chained and layer by layer: what they are then, with one
wait at the end. Steps after a pause of the host, in which the device's clocks fall asleep, count
in none of these, and stand among the samples. limit: the time that the bytes (the least of
weights, caches and activations) need at the measured copy bandwidth. floor: as many launches in
the same levels, the first of each operation reading its bytes, and computing nothing. MODEL+N: two
steps, one that verifies N drafted tokens of each sequence, which are taken back, and one that
drafts a block after it.
`

// stepDetails lists the operations of each row, counts and memory.
func stepDetails(w *writer, rows []StepRow) {
	for _, x := range rows {
		if x.Status != "ok" {
			continue
		}
		w.printf("\n%s, batch %d, context %d, %s weights: operations, of all layers of a kind together (timestamps between\n",
			x.Model, x.Batch, x.Context, x.Weights)
		w.printf("them cost something: the sum is more than the step)\n\n%s\n", opTable(x.Ops))
		w.printf("\n%s The longest submission took %.1f us.\n", layerCounts(x), x.Longest)
		if x.TimesFloor > 0 {
			w.printf("\n%s\n", floorCounts(x))
		}
		w.printf("\nMemory: %s\n", memoryText(x.Memory))
		if x.Shared != "" {
			w.printf("\nFor want of memory, %s.\n", x.Shared)
		}
	}
}

func stepTable(rows []StepRow) *describe.Table {
	t := describe.NewTable(4, "model", "weights", "batch", "context", "tokens/s", "layers", "us", "p95", "host us", "host p95", "latency us",
		"chained us", "chained host us", "chained latency us", "layer by layer us", "layer by layer host us", "layer by layer latency us",
		"weights MB", "cache MB", "activations MB", "GB/s", "limit us", "times limit", "floor us", "times floor", "dispatches", "barriers",
		"check")
	for _, x := range rows {
		row := []any{x.Model, x.Weights, x.Batch, x.Context}
		if x.Status != "ok" {
			row = append(row, "-", x.Layers)
			for range 21 {
				row = append(row, "-")
			}
			t.Add(append(row, x.Status))
			continue
		}
		each := "-"
		if x.ChainedWall.Median > 0 {
			each = fmt.Sprintf("%.0f", float64(x.Batch)/x.ChainedWall.Median*1e6)
		}
		row = append(row, each, x.Layers)
		for _, v := range []float64{x.Time.Median, x.Time.P95, x.Host.Median, x.Host.P95, x.Latency.Median,
			x.Chained.Median, x.ChainedHost.Median, x.ChainedWall.Median, x.Apart.Median, x.ApartHost.Median, x.ApartWall.Median} {
			row = append(row, f1(v))
		}
		floor, times := "-", "-"
		if x.TimesFloor > 0 {
			floor, times = f1(x.Floor.Median), fmt.Sprintf("%.2f", x.TimesFloor)
		}
		t.Add(append(row, mb(x.Work.Weights), mb(x.Work.Cache), mb(x.Work.Activations), fmt.Sprintf("%.4g", x.GBs), f1(x.Limit),
			fmt.Sprintf("%.2f", x.Times), floor, times, x.Dispatches, x.Barriers, x.Status))
	}
	return t
}

// floorCounts says what the floors of a step are.
func floorCounts(x StepRow) string {
	return fmt.Sprintf("Floor: launches in the same levels that only read take %.1f us, the step %.2f times that; chained %.1f us, "+
		"%.2f times; %.1f us where they read nothing.",
		x.Floor.Median, x.TimesFloor, x.ChainedFloor.Median, x.TimesChainedFloor, x.EmptyFloor.Median)
}

// layerCounts says how many launches and barriers a layer of each kind has.
func layerCounts(x StepRow) string {
	var parts []string
	layers := map[string]int{}
	for _, l := range modelConfig(x.Model).Layers {
		layers[kindOf(l.LayerSpec)]++
	}
	for _, kind := range KindsOf(x.Model) {
		d, b, us := 0, 0, 0.0
		for _, op := range x.Ops {
			if op.Layer == kind {
				d, b, us = d+op.Dispatches, b+op.Barriers, us+op.Time.Median
			}
		}
		if n := layers[kind]; n > 0 {
			each := float64(n)
			parts = append(parts, fmt.Sprintf("%s: %d layers of %.1f us, %.0f launches and %.0f barriers",
				kind, n, us/each, float64(d)/each, float64(b)/each))
		}
	}
	return "A layer: " + strings.Join(parts, "; ") + "."
}

// stepCSV has a line for each operation of each row, of all layers of a kind together, and
// before them one with the operation "step" for the whole. What was not measured, as the
// processor's time of an operation, is empty.
func stepCSV(dev describe.Origin, rows []StepRow) table.Writer {
	t := describe.NewCSV("model", "weights", "batch", "context", "kind", "op",
		"us", "p95_us", "samples_us", "host_us", "host_p95_us",
		"latency_us", "chained_us", "chained_host_us", "chained_latency_us", "layer_by_layer_us", "layer_by_layer_host_us",
		"layer_by_layer_latency_us", "weight_mb", "cache_mb", "activation_mb", "gflop", "limit_us", "dispatches", "barriers", "check",
		"floor_us", "chained_floor_us", "floor_without_bytes_us")
	for _, x := range rows {
		num := func(v float64) string { return csvNumber(x.Status, v) }
		line := func(op OpTime, times, floors []float64) {
			row := dev.Row(x.Model, x.Weights, x.Batch, x.Context, op.Layer, op.Name, num(op.Time.Median), num(op.Time.P95),
				csvSamples(x.Status, op.Time))
			some := func(list []float64) {
				for _, v := range list {
					if v > 0 {
						row = append(row, num(v))
					} else {
						row = append(row, "")
					}
				}
			}
			some(times)
			for _, v := range []float64{op.Work.Weights / 1e6, op.Work.Cache / 1e6, op.Work.Activations / 1e6, op.Work.Flop / 1e9, op.Limit,
				float64(op.Dispatches), float64(op.Barriers)} {
				row = append(row, num(v))
			}
			row = append(row, x.Status)
			some(floors)
			t.AppendRow(row)
		}
		line(OpTime{Name: "step", Layer: outside, Time: x.Time, Work: x.Work, Limit: x.Limit, Dispatches: x.Dispatches, Barriers: x.Barriers},
			[]float64{x.Host.Median, x.Host.P95, x.Latency.Median, x.Chained.Median, x.ChainedHost.Median, x.ChainedWall.Median,
				x.Apart.Median, x.ApartHost.Median, x.ApartWall.Median},
			[]float64{x.Floor.Median, x.ChainedFloor.Median, x.EmptyFloor.Median})
		for _, op := range x.Ops {
			line(op, make([]float64, 9), make([]float64, 3))
		}
	}
	return t
}
