package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// Formats are the output formats of a Report.
var Formats = []string{"md", "csv", "json", "jsonl", "benchstat"}

// Report writes rows in one of the Formats.
type Report struct {
	w      io.Writer
	format string
	dev    deviceInfo
	limits Limits
	rows   []Row
	err    error
}

type deviceInfo struct {
	Name   string `json:"device"`
	Type   string `json:"type"`
	Driver string `json:"driver"`
	API    string `json:"vulkan"`
}

// CheckFormat returns a vk.ErrArgument unless format is one of Formats.
func CheckFormat(format string) error {
	if slices.Contains(Formats, format) {
		return nil
	}
	return &vk.ArgumentError{Op: "bench: report", Arg: "format", Got: fmt.Sprintf("%q", format), Want: strings.Join(Formats, ", ")}
}

// NewReport starts a report about a device. Formats that need no table (jsonl and
// benchstat) are written row by row, the others by Close.
//
// Errors: vk.ErrArgument for an unknown format.
func NewReport(w io.Writer, format string, a *vk.Adapter, l Limits) (*Report, error) {
	if err := CheckFormat(format); err != nil {
		return nil, err
	}
	r := &Report{w: w, format: format, limits: l, dev: deviceInfo{
		Name: a.Name, Type: a.Type.String(), Driver: strings.TrimSpace(a.DriverName + " " + a.DriverInfo), API: a.APIVersion.String(),
	}}
	switch format {
	case "jsonl":
		r.json(struct {
			deviceInfo
			Limits
		}{r.dev, l})
	case "benchstat":
		r.printf("device: %s\ndriver: %s\n", r.dev.Name, r.dev.Driver)
	}
	return r, r.err
}

func (r *Report) printf(format string, a ...any) {
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.w, format, a...)
	}
}

func (r *Report) json(v any) {
	if r.err == nil {
		r.err = json.NewEncoder(r.w).Encode(v)
	}
}

// Add adds a row.
func (r *Report) Add(x Row) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		name := fmt.Sprintf("%s/variant=%s/heads=%d/topk=%d/window=%d/context=%d/batch=%d", "DecodeC4A", x.Variant, x.Heads, x.TopK, x.Window, x.Context, x.Batch)
		for _, us := range x.Attend.Samples {
			r.printf("Benchmark%s/part=attend 1 %.0f ns/op\n", name, us*1e3)
		}
		for _, us := range x.Step.Samples {
			r.printf("Benchmark%s/part=step 1 %.0f ns/op\n", name, us*1e3)
		}
	}
}

// head says which device it is and what it was measured to be able to.
func (r *Report) head() {
	r.printf("%s (%s), %s, Vulkan %s\n", r.dev.Name, r.dev.Type, r.dev.Driver, r.dev.API)
	r.printf("Measured limits: copy %.4g GB/s (bytes read plus written), %s %.4g TFLOP/s\n\n", r.limits.CopyGBs, r.limits.MatrixKind, r.limits.MatrixTFLOPs)
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *Report) Close() error {
	switch r.format {
	case "md":
		r.head()
		if len(r.rows) > 0 {
			x := r.rows[0]
			r.printf("Decode attention of a C4A layer: %d heads, %d top-k + %d window rows a token, context %d.\n", x.Heads, x.TopK, x.Window, x.Context)
			r.printf("GPU time in microseconds; inputs rotated; every variant checked against the reference first.\n\n")
		}
		r.printf("%s\n", r.table().RenderMarkdown())
	case "csv":
		r.printf("%s\n", r.csv().RenderCSV())
	case "json":
		r.json(struct {
			deviceInfo
			Limits
			Rows []Row `json:"rows"`
		}{r.dev, r.limits, r.rows})
	}
	for _, x := range r.rows {
		if x.Status != "ok" && r.format != "json" && r.format != "jsonl" && r.format != "csv" {
			r.printf("WRONG: batch %d, variant %s: %s\n", x.Batch, x.Variant, x.Detail)
		}
	}
	return r.err
}

func (r *Report) table() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"batch", "variant", "attend us", "p95", "step us", "p95", "MB", "GB/s", "TFLOP/s", "of copy", "of matrix", "check"})
	for _, x := range r.rows {
		num := func(format string, v float64) string {
			if x.Status != "ok" {
				return "-"
			}
			return fmt.Sprintf(format, v)
		}
		t.AppendRow(table.Row{
			x.Batch, x.Variant, num("%.1f", x.Attend.Median), num("%.1f", x.Attend.P95), num("%.1f", x.Step.Median), num("%.1f", x.Step.P95),
			num("%.2f", x.Bytes/1e6), num("%.4g", x.GBs), num("%.3g", x.TFLOPs), num("%.1f%%", 100*x.ShareCopy), num("%.1f%%", 100*x.ShareMatrix), x.Status,
		})
	}
	return t
}

// csv has the same rows with the numbers in full; what was not measured is empty.
func (r *Report) csv() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"device", "driver", "heads", "topk", "window", "context", "batch", "variant",
		"attend_us", "attend_p95_us", "step_us", "step_p95_us", "bytes", "gbs", "tflops", "share_copy", "share_matrix", "check"})
	for _, x := range r.rows {
		num := func(v float64) string { return csvNumber(x.Status, v) }
		t.AppendRow(table.Row{r.dev.Name, r.dev.Driver, x.Heads, x.TopK, x.Window, x.Context, x.Batch, x.Variant,
			num(x.Attend.Median), num(x.Attend.P95), num(x.Step.Median), num(x.Step.P95), num(x.Bytes), num(x.GBs), num(x.TFLOPs), num(x.ShareCopy), num(x.ShareMatrix), x.Status})
	}
	return t
}
