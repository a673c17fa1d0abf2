package bench

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// StepReport writes the rows of the step suite in one of the Formats.
type StepReport struct {
	Report
	rows []StepRow
}

// NewStepReport starts a report about a device, as NewReport does.
//
// Errors: vk.ErrArgument for an unknown format.
func NewStepReport(w io.Writer, format string, a *vk.Adapter, l Limits) (*StepReport, error) {
	r, err := NewReport(w, format, a, l)
	if err != nil {
		return nil, err
	}
	return &StepReport{Report: *r}, nil
}

func (x StepRow) title() string {
	return fmt.Sprintf("model=%s/weights=%s/batch=%d/context=%d", x.Model, x.Weights, x.Batch, x.Context)
}

// Add adds a row.
func (r *StepReport) Add(x StepRow) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		for i, us := range x.Time.Samples {
			r.printf("BenchmarkStep/%s 1 %.0f ns/op %.0f host-ns/op\n", x.title(), us*1e3, x.Host.Samples[i]*1e3)
		}
		for i, us := range x.Chained.Samples {
			r.printf("BenchmarkChainedStep/%s 1 %.0f ns/op %.0f host-ns/op\n", x.title(), us*1e3, x.ChainedHost.Samples[i]*1e3)
		}
	}
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *StepReport) Close() error {
	switch r.format {
	case "md":
		r.head()
		r.printf("Whole decode steps: attention of all layers, from hidden states to hidden states, random weights.\n")
		r.printf("us: the device's time for a step, one submission, for which all layers' hidden states are there, so that\n")
		r.printf("a layer's first products run beside the last one of the layer before; chained: one submission, too, in which\n")
		r.printf("what enters a layer is made of the output of the one before, by a kernel between them (residual and norm),\n")
		r.printf("as in a model; layer by layer: each layer submitted by itself, without that kernel, the sum of their times.\n")
		r.printf("host us: the processor's, to fill in and submit a step and to end it, without the wait; latency: both with\n")
		r.printf("the wait; behind chained and layer by layer: what they are then, with one wait at the end. limit: the time\n")
		r.printf("that the bytes (the least of weights, caches and activations) need at the measured copy bandwidth. floor: as\n")
		r.printf("many launches in the same levels, the first of each operation reading its bytes, and computing nothing.\n\n")
		r.printf("%s\n", r.table().RenderMarkdown())
		for _, x := range r.rows {
			if x.Status == "ok" {
				r.printf("\n%s, batch %d, context %d, %s weights: operations, of all layers of a kind together (timestamps between\n", x.Model, x.Batch, x.Context, x.Weights)
				r.printf("them cost something: the sum is more than the step)\n\n%s\n", opTable(x.Ops).RenderMarkdown())
				r.printf("\n%s The longest submission took %.1f us.\n", layerCounts(x), x.Longest)
				if x.TimesFloor > 0 {
					r.printf("\n%s\n", floorCounts(x))
				}
				r.printf("\nMemory: %s\n", memoryText(x.Memory))
				if x.Shared != "" {
					r.printf("\nFor want of memory, %s.\n", x.Shared)
				}
			}
		}
	case "csv":
		r.printf("%s\n", r.csv().RenderCSV())
	case "json":
		r.json(struct {
			deviceInfo
			Limits
			Rows []StepRow `json:"rows"`
		}{r.dev, r.limits, r.rows})
	}
	for _, x := range r.rows {
		if x.Status != "ok" && (r.format == "md" || r.format == "benchstat") {
			r.printf("%s: %s: %s\n", strings.ToUpper(x.Status), x.title(), x.Detail)
		}
	}
	return r.err
}

func (r *StepReport) table() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"model", "weights", "batch", "context", "layers", "us", "p95", "host us", "p95", "latency us", "chained us", "host us", "latency us", "layer by layer us", "host us", "latency us", "weights MB", "cache MB", "activations MB", "GB/s", "limit us", "times limit", "floor us", "times floor", "dispatches", "barriers", "check"})
	for _, x := range r.rows {
		row := table.Row{x.Model, x.Weights, x.Batch, x.Context, x.Layers}
		if x.Status != "ok" {
			for range 21 {
				row = append(row, "-")
			}
			t.AppendRow(append(row, x.Status))
			continue
		}
		floor, times := "-", "-"
		if x.TimesFloor > 0 {
			floor, times = f1(x.Floor.Median), fmt.Sprintf("%.2f", x.TimesFloor)
		}
		t.AppendRow(append(row, f1(x.Time.Median), f1(x.Time.P95), f1(x.Host.Median), f1(x.Host.P95), f1(x.Latency.Median),
			f1(x.Chained.Median), f1(x.ChainedHost.Median), f1(x.ChainedWall.Median),
			f1(x.Apart.Median), f1(x.ApartHost.Median), f1(x.ApartWall.Median), mb(x.Work.Weights), mb(x.Work.Cache), mb(x.Work.Activations),
			fmt.Sprintf("%.4g", x.GBs), f1(x.Limit), fmt.Sprintf("%.2f", x.Times), floor, times, x.Dispatches, x.Barriers, x.Status))
	}
	return t
}

// floorCounts says what the floors of a step are.
func floorCounts(x StepRow) string {
	return fmt.Sprintf("Floor: launches in the same levels that only read take %.1f us, the step %.2f times that; chained %.1f us, %.2f times; %.1f us where they read nothing.",
		x.Floor.Median, x.TimesFloor, x.ChainedFloor.Median, x.TimesChainedFloor, x.EmptyFloor.Median)
}

// layerCounts says how many launches and barriers a layer of each kind has.
func layerCounts(x StepRow) string {
	var parts []string
	layers := map[string]int{}
	c := modelConfig(x.Model)
	for _, kind := range Kinds {
		for _, r := range ratios(c) {
			if r == ratioOf(kind) {
				layers[kind]++
			}
		}
		d, b, us := 0, 0, 0.0
		for _, op := range x.Ops {
			if op.Layer == kind {
				d, b, us = d+op.Dispatches, b+op.Barriers, us+op.Time.Median
			}
		}
		if n := layers[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d layers of %.1f us, %.0f launches and %.0f barriers", kind, n, us/float64(n), float64(d)/float64(n), float64(b)/float64(n)))
		}
	}
	return "A layer: " + strings.Join(parts, "; ") + "."
}

// csv has a line for each operation of each row, of all layers of a kind together, and
// before them one with the operation "step" for the whole. What was not measured, as the
// processor's time of an operation, is empty.
func (r *StepReport) csv() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"device", "driver", "model", "weights", "batch", "context", "kind", "op", "us", "p95_us", "host_us", "host_p95_us", "latency_us",
		"chained_us", "chained_host_us", "chained_latency_us", "layer_by_layer_us", "layer_by_layer_host_us", "layer_by_layer_latency_us",
		"weight_mb", "cache_mb", "activation_mb", "gflop", "limit_us", "dispatches", "barriers", "check", "floor_us", "chained_floor_us", "floor_without_bytes_us"})
	for _, x := range r.rows {
		line := func(kind, op string, time Time, whole []any, w Work, limit float64, d, b int) {
			num := func(v float64) string { return csvNumber(x.Status, v) }
			row := append(table.Row{r.dev.Name, r.dev.Driver, x.Model, x.Weights, x.Batch, x.Context, kind, op, num(time.Median), num(time.P95)}, whole[:9]...)
			row = append(row, num(w.Weights/1e6), num(w.Cache/1e6), num(w.Activations/1e6), num(w.Flop/1e9), num(limit), num(float64(d)), num(float64(b)), x.Status)
			t.AppendRow(append(row, whole[9:]...))
		}
		whole, none := make([]any, 12), []any{"", "", "", "", "", "", "", "", "", "", "", ""}
		for i, v := range []float64{x.Host.Median, x.Host.P95, x.Latency.Median,
			x.Chained.Median, x.ChainedHost.Median, x.ChainedWall.Median, x.Apart.Median, x.ApartHost.Median, x.ApartWall.Median,
			x.Floor.Median, x.ChainedFloor.Median, x.EmptyFloor.Median} {
			if whole[i] = ""; v > 0 {
				whole[i] = csvNumber(x.Status, v)
			}
		}
		line("all", "step", x.Time, whole, x.Work, x.Limit, x.Dispatches, x.Barriers)
		for _, op := range x.Ops {
			line(op.Layer, op.Name, op.Time, none, op.Work, op.Limit, op.Dispatches, op.Barriers)
		}
	}
	return t
}
