package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewLayerReport starts a report of the suite layer. Errors: vk.ErrArgument for an unknown format.
func NewLayerReport(on ReportOn) (*Report[LayerRow], error) {
	return newReport(on, style[LayerRow]{
		keys: 2, cells: LayerRow.cells, parts: LayerRow.parts, pictures: layerPictures,
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
	return fmt.Sprintf("%s, %s layer, %s weights, %s", x.Model, x.Kind, x.Weights, x.step())
}

// step says in what step the layer is.
func (x LayerRow) step() string {
	if x.Mode == "prefill" {
		return fmt.Sprintf("prefill of tokens %d to %d", x.Context-x.Tokens, x.Context)
	}
	return fmt.Sprintf("decode, batch %d, context %d", x.Batch, x.Context)
}

func counts(ops []OpTime) (dispatches, barriers int) {
	for _, op := range ops {
		dispatches, barriers = dispatches+op.Dispatches, barriers+op.Barriers
	}
	return dispatches, barriers
}

// parts returns a row for each operation.
func (x LayerRow) parts() (list []LayerRow) {
	for _, op := range x.Ops {
		y := x
		y.part, y.Time, y.Work, y.Limit, y.Share, y.Ops = op.Name, op.Time, op.Work, op.Limit, op.Share, []OpTime{op}
		list = append(list, y)
	}
	return list
}

func (x LayerRow) cells() []cell {
	d, b := counts(x.Ops)
	return slices.Concat([]cell{{"model", "model", nil, x.Model}, {"kind", "kind", nil, x.Kind}, {"weights", "weights", nil, x.Weights},
		{"mode", "mode", nil, x.Mode}, {"tokens", "tokens", nil, x.Tokens}, {"", "batch", nil, x.Batch}, {"context", "context", nil, x.Context},
		{"", "op", nil, cmp.Or(x.part, "layer")}}, x.Time.cells(), []cell{{"tokens/s", "", g4, float64(x.Tokens) / x.Time.Median * 1e6}},
		x.Work.cells(), []cell{{"GB/s", "", g4, x.GBs}, {"", "limit_us", nil, x.Limit}, {"of limit", "share", percent, x.Share},
			{"dispatches", "dispatches", whole, float64(d)}, {"barriers", "barriers", whole, float64(b)},
			{"attention", "", nil, x.Variant}, {"check", "check", nil, x.Status}})
}

// opTable returns a table of operations with the share of the whole that each takes.
func opTable(ops []OpTime) *describe.Table {
	sum := 0.0
	for _, op := range ops {
		sum += op.Time.Median
	}
	t := describe.NewTable(2, "layers", "op", "us", "p95", "of all", "MB", "GFLOP", "GB/s", "TFLOP/s", "of limit", "dispatches", "barriers")
	for _, op := range ops {
		us := op.Time.Median
		t.Add([]any{op.Layer, op.Name, f1(us), f1(op.Time.P95), percent(us / sum), mb(op.Work.Bytes()), g4(op.Work.Flop / 1e9),
			g4(op.Work.Bytes() / us / 1e3), g4(op.Work.Flop / us / 1e6), percent(op.Share), op.Dispatches, op.Barriers})
	}
	return t
}

// memoryText lists device memory by purpose, most first.
func memoryText(m map[string]uint64) string {
	labels := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
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
