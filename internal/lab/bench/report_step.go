package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// NewStepReport starts a report of the suite step. Errors: vk.ErrArgument for an unknown format.
func NewStepReport(on ReportOn) (*Report[StepRow], error) {
	return newReport(on, style[StepRow]{
		keys: 4, cells: StepRow.cells, parts: StepRow.parts, more: stepDetails, pictures: stepPictures,
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

// parts returns a row for each operation, of all layers of a kind together. What was not measured
// of it, as the processor's time, is 0.
func (x StepRow) parts() (list []StepRow) {
	for _, op := range x.Ops {
		list = append(list, StepRow{Model: x.Model, Weights: x.Weights, Batch: x.Batch, Context: x.Context, Status: x.Status,
			part: op.Name, kind: op.Layer, Time: op.Time, Work: op.Work, Limit: op.Limit, Dispatches: op.Dispatches, Barriers: op.Barriers})
	}
	return list
}

func (x StepRow) cells() []cell {
	return slices.Concat([]cell{{"model", "model", nil, x.Model}, {"weights", "weights", nil, x.Weights}, {"batch", "batch", nil, x.Batch},
		{"context", "context", nil, x.Context}, {"", "kind", nil, cmp.Or(x.kind, outside)}, {"", "op", nil, cmp.Or(x.part, "step")},
		{"tokens/s", "", whole, x.rate()}, {"layers", "", nil, x.Layers}}, x.Time.cells(), []cell{
		{"host us", "host_us", f1, some(x.Host.Median)}, {"host p95", "host_p95_us", f1, some(x.Host.P95)},
		{"latency us", "latency_us", f1, some(x.Latency.Median)}, {"chained us", "chained_us", f1, some(x.Chained.Median)},
		{"chained host us", "chained_host_us", f1, some(x.ChainedHost.Median)},
		{"chained latency us", "chained_latency_us", f1, some(x.ChainedWall.Median)},
		{"layer by layer us", "layer_by_layer_us", f1, some(x.Apart.Median)},
		{"layer by layer host us", "layer_by_layer_host_us", f1, some(x.ApartHost.Median)},
		{"layer by layer latency us", "layer_by_layer_latency_us", f1, some(x.ApartWall.Median)}}, x.Work.cells(), []cell{
		{"GB/s", "", g4, x.GBs}, {"limit us", "limit_us", f1, x.Limit}, {"times limit", "", f2, x.Times},
		{"floor us", "floor_us", f1, some(x.Floor.Median)}, {"times floor", "", f2, some(x.TimesFloor)},
		{"", "chained_floor_us", nil, some(x.ChainedFloor.Median)}, {"dispatches", "dispatches", whole, float64(x.Dispatches)},
		{"barriers", "barriers", whole, float64(x.Barriers)}, {"check", "check", nil, x.Status}})
}

// rate returns sequences a second, over the latency of a chained step.
func (x StepRow) rate() any {
	if x.ChainedWall.Median == 0 {
		return nil
	}
	return float64(x.Batch) / x.ChainedWall.Median * 1e6
}

// floorCounts says what the floors of a step are.
func floorCounts(x StepRow) string {
	return fmt.Sprintf("Floor: launches in the same levels that only read take %.1f us, the step %.2f times that; chained %.1f us, "+
		"%.2f times.", x.Floor.Median, x.TimesFloor, x.ChainedFloor.Median, x.TimesChainedFloor)
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
