package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture"
	"github.com/vkmla/vkmla/vk"
)

// Formats are the output formats of a Report.
var Formats = []string{"md", "csv", "json", "jsonl", "benchstat", "html"}

// Report writes the rows of a suite in one of the Formats.
type Report[R any] struct {
	writer
	style style[R]
	rows  []R
}

// style says how a suite's rows are written.
type style[R any] struct {
	about func(w *writer, rows []R)                        // md: in front of the table
	table func(rows []R) *describe.Table                   // md; nil: about writes tables, too
	more  func(w *writer, rows []R)                        // md: after the table; nil: nothing
	csv   func(dev describe.Origin, rows []R) table.Writer // numbers in full, empty where nothing was measured
	lines func(w *writer, x R)                             // benchstat
	state func(x R) (status, name, detail string)          // of a row
	// html: the bars, and what has a place under the roofline
	pictures func(rows []R, l Limits) []picture.Group
	peers    string // json: what measurements of others are
}

// writer holds what all reports share.
type writer struct {
	w      io.Writer
	format string
	dev    describe.Origin
	limits Limits
	err    error
}

// CheckFormat returns a vk.ErrArgument unless format is one of Formats.
func CheckFormat(format string) error {
	if slices.Contains(Formats, format) {
		return nil
	}
	return &vk.ArgumentError{Op: "bench: report", Arg: "format", Got: fmt.Sprintf("%q", format), Want: strings.Join(Formats, ", ")}
}

// ReportOn describes the subject of all reports.
type ReportOn struct {
	Out     io.Writer
	Format  string // of Formats
	Adapter *vk.Adapter
	Profile string // that was asked for; "" for the device's own
	Limits  Limits
}

// newReport starts a report. Formats that need no table (jsonl and benchstat) are written row
// by row, the others by Close.
func newReport[R any](on ReportOn, s style[R]) (*Report[R], error) {
	if err := CheckFormat(on.Format); err != nil {
		return nil, err
	}
	r := &Report[R]{style: s, writer: writer{w: on.Out, format: on.Format, limits: on.Limits,
		dev: describe.OriginOf(on.Adapter, on.Profile)}}
	switch on.Format {
	case "jsonl":
		r.json(struct {
			describe.Origin
			Limits
		}{r.dev, r.limits})
	case "benchstat":
		d := r.dev
		// No version in the form of a configuration: benchstat compares only what has the same.
		r.printf("# %s\ndevice: %s\ndriver: %s\nprofile: %s\n", d.Program(), d.Device, d.Driver, d.Profile)
	}
	return r, r.err
}

// printf writes text, for people in lines that a terminal has room for.
func (w *writer) printf(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if w.format == "md" {
		text = describe.Wrap(text, "  ")
	}
	if w.err == nil {
		_, w.err = io.WriteString(w.w, text)
	}
}

func (w *writer) json(v any) {
	if w.err == nil {
		w.err = json.NewEncoder(w.w).Encode(v)
	}
}

// samples writes a line for each sample.
func (w *writer) samples(name string, t Time) {
	for _, us := range t.Samples {
		w.printf("Benchmark%s 1 %.0f ns/op\n", name, us*1e3)
	}
}

// Problem says of a row that is not ok which it is and why, "" of others.
func (r *Report[R]) Problem(x R) string {
	status, name, detail := r.style.state(x)
	if status == "ok" {
		return ""
	}
	return fmt.Sprintf("%s: %s: %s", strings.ToUpper(status), name, detail)
}

// Add adds a row.
func (r *Report[R]) Add(x R) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		if r.Problem(x) == "" {
			r.style.lines(&r.writer, x)
		}
	}
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *Report[R]) Close() error {
	switch r.format {
	case "md":
		r.head()
		r.markdown()
	case "html":
		r.html()
	case "csv":
		r.printf("%s\n", r.style.csv(r.dev, r.rows).RenderCSV())
	case "json":
		r.json(struct {
			describe.Origin
			Limits
			Rows  []R    `json:"rows"`
			Peers string `json:"peers_source,omitempty"`
		}{r.dev, r.limits, r.rows, r.style.peers})
	}
	if r.format == "benchstat" {
		r.problems()
	}
	return r.err
}

// markdown writes the report for people, after its head.
func (r *Report[R]) markdown() {
	r.style.about(&r.writer, r.rows)
	if r.style.table != nil {
		r.printf("\n%s\n", r.style.table(r.rows))
	}
	if r.style.more != nil {
		r.style.more(&r.writer, r.rows)
	}
	r.problems()
}

// problems are a line for each row that has no times.
func (r *Report[R]) problems() {
	for _, x := range r.rows {
		if text := r.Problem(x); text != "" {
			r.printf("%s\n", text)
		}
	}
}

// head says which device it is and what it was measured to be able to.
func (w *writer) head() {
	w.printf("%s (%s), %s, Vulkan %s, tuning profile %s\n", w.dev.Device, w.dev.Type, w.dev.Driver, w.dev.API, w.dev.Profile)
	w.printf("%s\n", w.dev.Program())
	w.printf("Measured limits: copy %.4g GB/s (bytes read plus written), %s %.4g TFLOP/s\n\n",
		w.limits.CopyGBs, w.limits.MatrixKind, w.limits.MatrixTFLOPs)
}

// csvNumber returns a number of a row in full, empty where it was not measured.
func csvNumber(status string, v float64) string {
	if status != "ok" {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// csvSamples returns the samples of a row in microseconds, in the order of their launches.
func csvSamples(status string, t Time) string {
	var list []string
	for _, us := range t.Samples {
		list = append(list, csvNumber(status, us))
	}
	return strings.TrimSpace(strings.Join(list, " "))
}

func f1(v float64) string      { return fmt.Sprintf("%.1f", v) }
func mb(v float64) string      { return fmt.Sprintf("%.4g", v/1e6) }
func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }
