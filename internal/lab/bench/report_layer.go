package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// LayerReport writes the rows of the layer suite in one of the Formats.
type LayerReport struct {
	Report
	rows []LayerRow
}

// NewLayerReport starts a report about a device, as NewReport does.
//
// Errors: vk.ErrArgument for an unknown format.
func NewLayerReport(w io.Writer, format string, a *vk.Adapter, l Limits) (*LayerReport, error) {
	r, err := NewReport(w, format, a, l)
	if err != nil {
		return nil, err
	}
	return &LayerReport{Report: *r}, nil
}

// title names a row.
func (x LayerRow) title() string {
	return fmt.Sprintf("model=%s/kind=%s/weights=%s/mode=%s/tokens=%d/context=%d", x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Context)
}

// Add adds a row.
func (r *LayerReport) Add(x LayerRow) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		for _, us := range x.Time.Samples {
			r.printf("BenchmarkLayer/%s 1 %.0f ns/op\n", x.title(), us*1e3)
		}
		for _, op := range x.Ops {
			for _, us := range op.Time.Samples {
				r.printf("BenchmarkLayer/%s/op=%s 1 %.0f ns/op\n", x.title(), op.Name, us*1e3)
			}
		}
	}
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *LayerReport) Close() error {
	switch r.format {
	case "md":
		r.head()
		r.printf("Whole layers, from hidden states to hidden states, with random weights; GPU time in microseconds.\n")
		r.printf("Bytes are the least that has to be read and written; \"of limit\" is the time that these, or the\n")
		r.printf("matrix products, need at the measured limits, over the time taken. Every operation of a layer was\n")
		r.printf("checked first, for some tokens of the step.\n\n")
		r.printf("%s\n", r.table().RenderMarkdown())
		for _, x := range r.rows {
			if x.Status == "ok" {
				r.printf("\n%s, operation by operation:\n\n%s\n", describeRow(x), opTable(x.Ops).RenderMarkdown())
				r.printf("\nMemory: %s\n", memoryText(x.Memory))
			}
		}
	case "csv":
		r.printf("%s\n", r.csv().RenderCSV())
	case "json":
		r.json(struct {
			deviceInfo
			Limits
			Rows []LayerRow `json:"rows"`
		}{r.dev, r.limits, r.rows})
	}
	for _, x := range r.rows {
		if x.Status != "ok" && (r.format == "md" || r.format == "benchstat") {
			r.printf("%s: %s: %s\n", strings.ToUpper(x.Status), describeRow(x), x.Detail)
		}
	}
	return r.err
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

func (r *LayerReport) table() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"model", "kind", "weights", "mode", "tokens", "context", "us", "p95", "tokens/s", "weights MB", "cache MB", "activations MB", "GFLOP", "GB/s", "of limit", "dispatches", "barriers", "attention", "check"})
	for _, x := range r.rows {
		row := table.Row{x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Context}
		if x.Status != "ok" {
			t.AppendRow(append(row, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", x.Variant, x.Status))
			continue
		}
		d, b := counts(x.Ops)
		t.AppendRow(append(row, f1(x.Time.Median), f1(x.Time.P95), fmt.Sprintf("%.4g", float64(x.Tokens)/x.Time.Median*1e6),
			mb(x.Work.Weights), mb(x.Work.Cache), mb(x.Work.Activations), fmt.Sprintf("%.3g", x.Work.Flop/1e9), fmt.Sprintf("%.4g", x.GBs), percent(x.Share), d, b, x.Variant, x.Status))
	}
	return t
}

func f1(v float64) string      { return fmt.Sprintf("%.1f", v) }
func mb(v float64) string      { return fmt.Sprintf("%.4g", v/1e6) }
func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

// opTable is a table of operations with the share of the whole that each takes.
func opTable(ops []OpTime) table.Writer {
	t := table.NewWriter()
	sum := 0.0
	for _, op := range ops {
		sum += op.Time.Median
	}
	layers := slices.ContainsFunc(ops, func(op OpTime) bool { return op.Layer != "" })
	header := table.Row{"op", "us", "p95", "of all", "MB", "GFLOP", "GB/s", "TFLOP/s", "of limit", "dispatches", "barriers"}
	if layers {
		header = append(table.Row{"layers"}, header...)
	}
	t.AppendHeader(header)
	for _, op := range ops {
		us := op.Time.Median
		row := table.Row{op.Name, f1(us), f1(op.Time.P95), percent(us / sum), mb(op.Work.Bytes()), fmt.Sprintf("%.3g", op.Work.Flop/1e9),
			fmt.Sprintf("%.4g", op.Work.Bytes()/us/1e3), fmt.Sprintf("%.3g", op.Work.Flop/us/1e6), percent(op.Share), op.Dispatches, op.Barriers}
		if layers {
			row = append(table.Row{op.Layer}, row...)
		}
		t.AppendRow(row)
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

// csv has a line for each operation of each row, and before them one with the operation
// "layer" for the whole. What was not measured is empty.
func (r *LayerReport) csv() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"device", "driver", "model", "kind", "weights", "mode", "tokens", "batch", "context", "op", "us", "p95_us", "weight_mb", "cache_mb", "activation_mb", "gflop", "limit_us", "share", "dispatches", "barriers", "check"})
	for _, x := range r.rows {
		head := table.Row{r.dev.Name, r.dev.Driver, x.Model, x.Kind, x.Weights, x.Mode, x.Tokens, x.Batch, x.Context}
		line := func(op string, time Time, w Work, limit, share float64, d, b int) {
			row := append(slices.Clone(head), op)
			for _, v := range []float64{time.Median, time.P95, w.Weights / 1e6, w.Cache / 1e6, w.Activations / 1e6, w.Flop / 1e9, limit, share, float64(d), float64(b)} {
				row = append(row, csvNumber(x.Status, v))
			}
			t.AppendRow(append(row, x.Status))
		}
		d, b := counts(x.Ops)
		line("layer", x.Time, x.Work, x.Limit, x.Share, d, b)
		for _, op := range x.Ops {
			line(op.Name, op.Time, op.Work, op.Limit, op.Share, op.Dispatches, op.Barriers)
		}
	}
	return t
}
