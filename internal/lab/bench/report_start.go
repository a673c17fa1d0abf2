package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture"
)

// NewStartReport starts a report of the suite start. Errors: vk.ErrArgument for an unknown format.
func NewStartReport(on ReportOn) (*Report[StartRow], error) {
	return newReport(on, style[StartRow]{
		table: startTable, csv: startCSV, pictures: startPictures,
		about: func(w *writer, _ []StartRow) { w.printf(startText) },
		more: func(w *writer, rows []StartRow) {
			for _, x := range rows {
				if x.Status == "ok" {
					w.printf("\n%s: %s\n", x.title(), x.compiled())
				}
			}
		},
		lines: func(w *writer, x StartRow) { w.samples("Start/"+x.title(), x.Ready) },
		state: func(x StartRow) (status, name, detail string) { return x.Status, x.title(), x.Detail },
	})
}

func (x StartRow) title() string {
	return fmt.Sprintf("model=%s/weights=%s/batch=%d/context=%d/caches=%s", x.Model, x.Weights, x.Batch, x.Context, x.Caches)
}

// compiled says what the driver's compiler took, and over which kernels it took longest.
func (x StartRow) compiled() string {
	names := slices.SortedFunc(maps.Keys(x.Kernels), func(a, b string) int {
		return cmp.Or(cmp.Compare(x.Kernels[b], x.Kernels[a]), cmp.Compare(a, b))
	})
	sum := 0.0
	for _, us := range x.Kernels {
		sum += us
	}
	text := fmt.Sprintf("%d kernels, %.1f ms of the compiler one after the other", len(names), sum/1e3)
	for _, name := range names[:min(8, len(names))] {
		text += fmt.Sprintf(", %s %.1f", name, x.Kernels[name]/1e3)
	}
	return text
}

// parts are the times of a row, in their order, by name.
func (x StartRow) parts() []startPart {
	return []startPart{{"open", x.Open}, {"upload", x.Upload}, {"engine", x.Engine}, {"compile", x.Compile}, {"record", x.Record},
		{"submit", x.Submit}, {"ready", x.Ready}, {"first", x.First}}
}

type startPart struct {
	name string
	Time
}

const startText = `Starts of an engine, each in a process of its own, median milliseconds. caches: what the library keeps of compiled
kernels and the driver's own folders, empty or as such a start left them. open: the device. upload: random weights, a
layer of each kind. engine: NewEngine. compile: kernels and memory of the step, with the wait for the driver's compiler.
record: the step's commands. submit: the first step's begin and submission. ready: the sum of the last four. first: from
the first step's submission to its end.
`

func startTable(rows []StartRow) table.Writer {
	columns := []string{"model", "weights", "batch", "context", "layers", "caches"}
	for _, p := range (StartRow{}).parts() {
		columns = append(columns, p.name)
	}
	t := newTable(append(columns, "cache MB", "check")...)
	for _, x := range rows {
		row := table.Row{x.Model, x.Weights, x.Batch, x.Context, x.Layers, x.Caches}
		num := func(v string) string {
			if x.Status != "ok" {
				return "-"
			}
			return v
		}
		for _, p := range x.parts() {
			row = append(row, num(f1(p.Median/1e3)))
		}
		t.AppendRow(append(row, num(mb(float64(x.CacheBytes))), x.Status))
	}
	return t
}

// startCSV has a line for each part of each row.
func startCSV(dev describe.Origin, rows []StartRow) table.Writer {
	t := describe.NewCSV("model", "weights", "batch", "context", "layers", "caches", "cache_bytes", "part", "us", "p95_us", "samples_us",
		"check")
	for _, x := range rows {
		for _, p := range x.parts() {
			t.AppendRow(dev.Row(x.Model, x.Weights, x.Batch, x.Context, x.Layers, x.Caches, x.CacheBytes, p.name,
				csvNumber(x.Status, p.Median), csvNumber(x.Status, p.P95), csvSamples(x.Status, p.Time), x.Status))
		}
	}
	return t
}

func startPictures(rows []StartRow, _ Limits) []picture.Group {
	var g grouper
	for _, x := range rows {
		if x.Status != "ok" {
			continue
		}
		b := picture.Bar{Name: "caches " + x.Caches, US: x.Ready.Median}
		for _, p := range x.parts()[2:6] {
			b.Parts = append(b.Parts, picture.Part{Name: p.name, US: p.Median})
		}
		g.add(fmt.Sprintf("%s, %s weights, batch %d", x.Model, x.Weights, x.Batch), b)
	}
	return g.groups
}
