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
var Formats = []string{"md", "csv", "json", "benchstat", "html"}

// Report writes the rows of a suite in one of the Formats.
type Report[R any] struct {
	writer
	style style[R]
	rows  []R
}

// style says how a suite's rows are written.
type style[R any] struct {
	about func(w *writer, rows []R)               // md: in front of the table
	keys  int                                     // columns that tell rows apart; 0: about writes tables, too
	cells func(x R) []cell                        // of the table, and of CSV
	parts func(x R) []R                           // csv: a line of its own each, after the row's; nil: none
	more  func(w *writer, rows []R)               // md: after the table; nil: nothing
	lines func(w *writer, x R)                    // benchstat
	state func(x R) (status, name, detail string) // of a row
	// html: the bars, and what has a place under the roofline
	pictures func(rows []R, l Limits) []picture.Group
	peers    string // json: what measurements of others are
}

// cell holds the content of a row in a column, with the column's names in the table and in CSV, ""
// where it is in only one of them, and how the table shows a number. Numbers of rows that are not
// ok, and nil, were not measured and stand nowhere.
type cell struct {
	name, csv string
	show      func(v float64) string
	value     any
}

// text returns the content, with numbers as show has them.
func (c cell) text(ok bool, show func(v float64) string) any {
	v, number := c.value.(float64)
	switch {
	case c.value == nil || number && !ok:
		return ""
	case number:
		return show(v)
	}
	return c.value
}

// tableOf returns rows for people.
func (s style[R]) tableOf(keys int, cells func(x R) []cell, rows []R) *describe.Table {
	var names []string
	for _, c := range cells(*new(R)) {
		if c.name != "" {
			names = append(names, c.name)
		}
	}
	t := describe.NewTable(keys, names...)
	for _, x := range rows {
		status, _, _ := s.state(x)
		var row []any
		for _, c := range cells(x) {
			if c.name != "" {
				row = append(row, c.text(status == "ok", c.show))
			}
		}
		t.Add(row)
	}
	return t
}

// csvOf returns rows with numbers in full, each before its parts.
func (s style[R]) csvOf(dev describe.Origin, rows []R) table.Writer {
	var names []string
	for _, c := range s.cells(*new(R)) {
		if c.csv != "" {
			names = append(names, c.csv)
		}
	}
	t := describe.NewCSV(names...)
	for _, row := range rows {
		status, _, _ := s.state(row)
		lines := []R{row}
		if s.parts != nil {
			lines = append(lines, s.parts(row)...)
		}
		for _, x := range lines {
			var list []any
			for _, c := range s.cells(x) {
				if c.csv != "" {
					list = append(list, c.text(status == "ok", func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }))
				}
			}
			t.AppendRow(dev.Row(list...))
		}
	}
	return t
}

// cells are those of a time, with its samples in the order of their launches.
func (t Time) cells() []cell {
	return []cell{{"us", "us", f1, t.Median}, {"p95", "p95_us", f1, t.P95}, {"", "samples_us", nil, strings.Trim(fmt.Sprint(t.Samples), "[]")}}
}

// cells are those of the bytes and products of a row, if it has any.
func (w Work) cells() []cell {
	part := func(v float64) any {
		if w == (Work{}) {
			return nil
		}
		return v
	}
	return []cell{{"weights MB", "weight_mb", g4, part(w.Weights / 1e6)}, {"cache MB", "cache_mb", g4, part(w.Cache / 1e6)},
		{"activations MB", "activation_mb", g4, part(w.Activations / 1e6)}, {"GFLOP", "gflop", g4, part(w.Flop / 1e9)}}
}

// some returns a number that is 0 where nothing was measured.
func some(v float64) any {
	if v == 0 {
		return nil
	}
	return v
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

// newReport starts a report. benchstat, which needs no table, is written row by row, the others by
// Close.
func newReport[R any](on ReportOn, s style[R]) (*Report[R], error) {
	if err := CheckFormat(on.Format); err != nil {
		return nil, err
	}
	r := &Report[R]{style: s, writer: writer{w: on.Out, format: on.Format, limits: on.Limits,
		dev: describe.OriginOf(on.Adapter, on.Profile)}}
	if d := r.dev; on.Format == "benchstat" {
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
	if r.format == "benchstat" && r.Problem(x) == "" {
		r.style.lines(&r.writer, x)
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
		r.printf("%s\n", r.style.csvOf(r.dev, r.rows).RenderCSV())
	case "json":
		return json.NewEncoder(r.w).Encode(struct {
			describe.Origin
			Limits
			Rows  []R    `json:"rows"`
			Peers string `json:"peers_source,omitempty"`
		}{r.dev, r.limits, r.rows, r.style.peers})
	case "benchstat":
		r.problems()
	}
	return r.err
}

// markdown writes the report for people, after its head.
func (r *Report[R]) markdown() {
	r.style.about(&r.writer, r.rows)
	if r.style.keys > 0 {
		r.printf("\n%s\n", r.style.tableOf(r.style.keys, r.style.cells, r.rows))
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

func f1(v float64) string      { return fmt.Sprintf("%.1f", v) }
func f2(v float64) string      { return fmt.Sprintf("%.2f", v) }
func g4(v float64) string      { return fmt.Sprintf("%.4g", v) }
func mb(v float64) string      { return g4(v / 1e6) }
func whole(v float64) string   { return fmt.Sprintf("%.0f", v) }
func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }
