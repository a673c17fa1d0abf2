package bench

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewPrefillReport starts a report of the suite prefill. Errors: vk.ErrArgument for an unknown
// format.
func NewPrefillReport(on ReportOn) (*Report[PrefillRow], error) {
	return newReport(on, style[PrefillRow]{
		table: prefillTable, csv: prefillCSV, pictures: prefillPictures,
		about: func(w *writer, _ []PrefillRow) { w.printf("%s", prefillText) },
		more: func(w *writer, rows []PrefillRow) {
			for _, x := range rows {
				if x.Status == "ok" {
					w.printf("\n%s, chunk by chunk:\n\n%s\n", x.title(), chunkTable(x.Chunks))
					w.printf("\nMemory: %s\n", memoryText(x.Memory))
					if x.Shared != "" {
						w.printf("\nFor want of memory, %s.\n", x.Shared)
					}
				}
			}
		},
		lines: func(w *writer, x PrefillRow) {
			for _, us := range x.Time.Samples {
				w.printf("BenchmarkPrefill/%s 1 %.0f ns/op %.1f tokens/s\n", x.title(), us*1e3, float64(x.Tokens)/us*1e6)
			}
		},
		state: func(x PrefillRow) (status, name, detail string) { return x.Status, x.title(), x.Detail },
	})
}

func (x PrefillRow) title() string {
	return fmt.Sprintf("model=%s/weights=%s/tokens=%d/chunk=%d", x.Model, x.Weights, x.Tokens, x.Chunk)
}

const prefillText = `Whole prompts: attention of all layers, from hidden states to hidden states, from the first token
on, random weights. Experts and the rest of a model are not in it. tokens/s: of the prompt, over
the device's time for all its chunks, each a submission in which a kernel makes the input of a
layer from the output of the one before (residual and norm). latency: from beginning to end, with
the processor's part and the inputs' way to the device. of limit: what the bytes or the products of
each layer need at the measured limits, over the time taken.
`

func prefillTable(rows []PrefillRow) *describe.Table {
	t := describe.NewTable(4, "model", "weights", "tokens", "chunk", "layers", "tokens/s", "us", "p95", "latency us", "weights MB", "cache MB",
		"activations MB", "GFLOP", "of limit", "weights shared", "attention", "check")
	for _, x := range rows {
		shared := "no"
		if x.Shared != "" {
			shared = x.Shared
		}
		row := []any{x.Model, x.Weights, x.Tokens, x.Chunk, x.Layers}
		if x.Status != "ok" {
			t.Add(append(row, "-", "-", "-", "-", "-", "-", "-", "-", "-", shared, x.Variant, x.Status))
			continue
		}
		t.Add(append(row, fmt.Sprintf("%.4g", x.TokensPerS), f1(x.Time.Median), f1(x.Time.P95), f1(x.Latency.Median),
			mb(x.Work.Weights), mb(x.Work.Cache), mb(x.Work.Activations), fmt.Sprintf("%.4g", x.Work.Flop/1e9), percent(x.Share),
			shared, x.Variant, x.Status))
	}
	return t
}

// chunkTable returns a table of a prompt's chunks.
func chunkTable(chunks []ChunkTime) *describe.Table {
	t := describe.NewTable(1, "tokens", "us", "p95", "tokens/s", "of limit")
	for _, c := range chunks {
		t.Add([]any{fmt.Sprintf("%d to %d", c.First, c.First+c.Tokens), f1(c.Time.Median), f1(c.Time.P95),
			fmt.Sprintf("%.4g", float64(c.Tokens)/c.Time.Median*1e6), percent(c.Limit / c.Time.Median)})
	}
	return t
}

// prefillCSV has a line for each chunk of each row, and before them one for the whole prompt.
func prefillCSV(dev describe.Origin, rows []PrefillRow) table.Writer {
	t := describe.NewCSV("model", "weights", "prompt", "chunk", "layers", "shared", "variant", "part", "first", "tokens", "tokens_per_s",
		"us", "p95_us", "samples_us", "latency_us", "limit_us", "weight_mb", "cache_mb", "activation_mb", "gflop", "check")
	for _, x := range rows {
		num := func(v float64) string { return csvNumber(x.Status, v) }
		line := func(part string, c ChunkTime, more ...any) {
			t.AppendRow(append(dev.Row(x.Model, x.Weights, x.Tokens, x.Chunk, x.Layers, x.Shared, x.Variant, part, c.First,
				c.Tokens, num(float64(c.Tokens)/c.Time.Median*1e6), num(c.Time.Median), num(c.Time.P95), csvSamples(x.Status, c.Time)),
				append(more, x.Status)...))
		}
		line("prompt", ChunkTime{0, x.Tokens, x.Time, x.Limit}, num(x.Latency.Median), num(x.Limit), num(x.Work.Weights/1e6),
			num(x.Work.Cache/1e6), num(x.Work.Activations/1e6), num(x.Work.Flop/1e9))
		for _, c := range x.Chunks {
			line("chunk", c, "", num(c.Limit), "", "", "", "")
		}
	}
	return t
}
