package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewLayerReport starts a report of the suite layer. Errors: vk.ErrArgument for an unknown format.
func NewLayerReport(on ReportOn) (*Report[LayerRow], error) {
	return newReport(on, style[LayerRow]{
		table: layerTable, csv: layerCSV, pictures: layerPictures,
		about: func(w *writer, _ []LayerRow) {
			w.printf("Whole layers, from hidden states to hidden states, with random weights; GPU time in microseconds.\n")
			w.printf("Bytes are the least that has to be read and written; \"of limit\" is the time that these, or the\n")
			w.printf("matrix products, need at the measured limits, over the time taken. Every operation was checked\n")
			w.printf("first, and that other kernels compute the same layer.\n")
		},
		more: func(w *writer, rows []LayerRow) {
			for _, x := range rows {
				if x.Status == "ok" {
					w.printf("\n%s, operation by operation:\n\n%s\n", describeRow(x), opTable(x.Ops))
					w.printf("\nMemory: %s\n", memoryText(x.Memory))
				}
			}
		},
		lines: func(w *writer, x LayerRow) {
			w.samples("Layer/"+x.title(), x.Time)
			for _, op := range x.Ops {
				w.samples("Layer/"+x.title()+"/op="+op.Name, op.Time)
			}
		},
		state: func(x LayerRow) (status, name, detail string) { return x.Status, describeRow(x), x.Detail },
	})
}

// title names a row.
func (x LayerRow) title() string {
	return fmt.Sprintf("model=%s/kind=%s/weights=%s/mode=%s/tokens=%d/context=%d", x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Context)
}

func describeRow(x LayerRow) string {
	s := fmt.Sprintf("%s, %s layer, %s weights, ", x.Model, x.Kind, x.Weights)
	if x.Mode == "prefill" {
		return s + fmt.Sprintf("prefill of tokens %d to %d", x.Context-x.Tokens, x.Context)
	}
	return s + fmt.Sprintf("decode, batch %d, context %d", x.Batch, x.Context)
}

func counts(ops []OpTime) (dispatches, barriers int) {
	for _, op := range ops {
		dispatches, barriers = dispatches+op.Dispatches, barriers+op.Barriers
	}
	return dispatches, barriers
}

func layerTable(rows []LayerRow) *describe.Table {
	t := describe.NewTable(2, "model", "kind", "weights", "mode", "tokens", "context", "us", "p95", "tokens/s", "weights MB", "cache MB", "activations MB",
		"GFLOP", "GB/s", "of limit", "dispatches", "barriers", "attention", "check")
	for _, x := range rows {
		row := []any{x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Context}
		if x.Status != "ok" {
			t.Add(append(row, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", x.Variant, x.Status))
			continue
		}
		d, b := counts(x.Ops)
		t.Add(append(row, f1(x.Time.Median), f1(x.Time.P95), fmt.Sprintf("%.4g", float64(x.Tokens)/x.Time.Median*1e6),
			mb(x.Work.Weights), mb(x.Work.Cache), mb(x.Work.Activations), fmt.Sprintf("%.3g", x.Work.Flop/1e9), fmt.Sprintf("%.4g", x.GBs),
			percent(x.Share), d, b, x.Variant, x.Status))
	}
	return t
}

// opTable returns a table of operations with the share of the whole that each takes.
func opTable(ops []OpTime) *describe.Table {
	sum := 0.0
	for _, op := range ops {
		sum += op.Time.Median
	}
	layers := slices.ContainsFunc(ops, func(op OpTime) bool { return op.Layer != "" })
	columns := []string{"op", "us", "p95", "of all", "MB", "GFLOP", "GB/s", "TFLOP/s", "of limit", "dispatches", "barriers"}
	if layers {
		columns = append([]string{"layers"}, columns...)
	}
	t := describe.NewTable(len(columns)-10, columns...)
	for _, op := range ops {
		us := op.Time.Median
		row := []any{op.Name, f1(us), f1(op.Time.P95), percent(us / sum), mb(op.Work.Bytes()), fmt.Sprintf("%.3g", op.Work.Flop/1e9),
			fmt.Sprintf("%.4g", op.Work.Bytes()/us/1e3), fmt.Sprintf("%.3g", op.Work.Flop/us/1e6), percent(op.Share), op.Dispatches, op.Barriers}
		if layers {
			row = append([]any{op.Layer}, row...)
		}
		t.Add(row)
	}
	return t
}

// memoryText lists device memory by purpose, most first.
func memoryText(m map[string]uint64) string {
	labels := slices.Collect(maps.Keys(m))
	slices.SortFunc(labels, func(a, b string) int {
		if m[a] != m[b] {
			if m[a] > m[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	var parts []string
	total, rest := uint64(0), uint64(0)
	for _, l := range labels {
		if total += m[l]; m[l] < 1<<20 {
			rest += m[l]
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %.1f MiB", l, float64(m[l])/(1<<20)))
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("other %.1f MiB", float64(rest)/(1<<20)))
	}
	return fmt.Sprintf("%.1f MiB: %s", float64(total)/(1<<20), strings.Join(parts, ", "))
}

// layerCSV has a line for each operation of each row, and before them one with the operation
// "layer" for the whole.
func layerCSV(dev describe.Origin, rows []LayerRow) table.Writer {
	t := describe.NewCSV("model", "kind", "weights", "mode", "tokens", "batch", "context", "op",
		"us", "p95_us", "samples_us", "weight_mb", "cache_mb", "activation_mb", "gflop",
		"limit_us", "share", "dispatches", "barriers", "check")
	for _, x := range rows {
		d, b := counts(x.Ops)
		whole := OpTime{Name: "layer", Time: x.Time, Work: x.Work, Limit: x.Limit, Share: x.Share, Dispatches: d, Barriers: b}
		for _, op := range append([]OpTime{whole}, x.Ops...) {
			row := dev.Row(x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Batch, x.Context, op.Name,
				csvNumber(x.Status, op.Time.Median), csvNumber(x.Status, op.Time.P95), csvSamples(x.Status, op.Time))
			for _, v := range []float64{op.Work.Weights / 1e6, op.Work.Cache / 1e6, op.Work.Activations / 1e6,
				op.Work.Flop / 1e9, op.Limit, op.Share, float64(op.Dispatches), float64(op.Barriers)} {
				row = append(row, csvNumber(x.Status, v))
			}
			t.AppendRow(append(row, x.Status))
		}
	}
	return t
}
