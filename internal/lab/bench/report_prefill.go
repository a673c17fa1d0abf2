package bench

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewPrefillReport starts a report of the suite prefill. Errors: vk.ErrArgument for an unknown
// format.
func NewPrefillReport(on ReportOn) (*Report[PrefillRow], error) {
	return newReport(on, style[PrefillRow]{
		keys: 4, cells: PrefillRow.cells, parts: PrefillRow.parts, pictures: prefillPictures,
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

// parts returns a row for each chunk.
func (x PrefillRow) parts() (list []PrefillRow) {
	for _, c := range x.Chunks {
		list = append(list, PrefillRow{Model: x.Model, Weights: x.Weights, Tokens: x.Tokens, Chunk: x.Chunk, Layers: x.Layers,
			Shared: x.Shared, Variant: x.Variant, Status: x.Status, part: &c, Time: c.Time, Limit: c.Limit,
			TokensPerS: float64(c.Tokens) / c.Time.Median * 1e6})
	}
	return list
}

func (x PrefillRow) cells() []cell {
	part, of := "prompt", ChunkTime{Tokens: x.Tokens}
	if x.part != nil {
		part, of = "chunk", *x.part
	}
	return slices.Concat([]cell{{"model", "model", nil, x.Model}, {"weights", "weights", nil, x.Weights}, {"tokens", "prompt", nil, x.Tokens},
		{"chunk", "chunk", nil, x.Chunk}, {"layers", "layers", nil, x.Layers}, {"", "part", nil, part}, {"", "first", nil, of.First},
		{"", "tokens", nil, of.Tokens}, {"tokens/s", "tokens_per_s", g4, x.TokensPerS}}, x.Time.cells(),
		[]cell{{"latency us", "latency_us", f1, some(x.Latency.Median)}}, x.Work.cells(), []cell{{"", "limit_us", nil, x.Limit},
			{"of limit", "", percent, x.Share}, {"weights shared", "shared", nil, x.Shared}, {"attention", "variant", nil, x.Variant},
			{"check", "check", nil, x.Status}})
}

// chunkTable returns a table of a prompt's chunks.
func chunkTable(chunks []ChunkTime) *describe.Table {
	t := describe.NewTable(1, "tokens", "us", "p95", "tokens/s", "of limit")
	for _, c := range chunks {
		t.Add([]any{fmt.Sprintf("%d to %d", c.First, c.First+c.Tokens), f1(c.Time.Median), f1(c.Time.P95),
			g4(float64(c.Tokens) / c.Time.Median * 1e6), percent(c.Limit / c.Time.Median)})
	}
	return t
}
