package bench

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// OpReport writes the rows of the indexer suite in one of the Formats.
type OpReport struct {
	Report
	rows []OpRow
}

// NewOpReport starts a report about a device. Formats that need no table (jsonl and
// benchstat) are written row by row, the others by Close.
//
// Errors: vk.ErrArgument for an unknown format.
func NewOpReport(w io.Writer, format string, a *vk.Adapter, l Limits) (*OpReport, error) {
	r, err := NewReport(w, format, a, l)
	if err != nil {
		return nil, err
	}
	return &OpReport{Report: *r}, nil
}

// Add adds a row.
func (r *OpReport) Add(x OpRow) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		name := "Indexer/op=" + x.Op + "/variant=" + x.Variant + "/" + x.Case
		if x.Part != "" {
			name += "/part=" + x.Part
		}
		for _, us := range x.Time.Samples {
			r.printf("Benchmark%s 1 %.0f ns/op\n", name, us*1e3)
		}
	}
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *OpReport) Close() error {
	peers, err := Peers()
	if err != nil {
		return err
	}
	switch r.format {
	case "md":
		r.head()
		r.printf("Indexer and compressors of a C4A layer, and the compressor of a C128A layer; keys = context/4.\n")
		r.printf("GPU time in microseconds; inputs rotated; every case checked against the reference first.\n")
		r.printf("Peers: %s\n\n", peers.Source)
		r.printf("%s\n", r.table(true).RenderMarkdown())
	case "csv":
		r.printf("%s\n", r.table(false).RenderCSV())
	case "json":
		r.json(struct {
			deviceInfo
			Limits
			Rows   []OpRow `json:"rows"`
			Source string  `json:"peers_source"`
		}{r.dev, r.limits, r.rows, peers.Source})
	}
	for _, x := range r.rows {
		if x.Status != "ok" && (r.format == "md" || r.format == "benchstat") {
			r.printf("%s: %s %s, variant %s: %s\n", strings.ToUpper(x.Status), x.Op, x.Case, x.Variant, x.Detail)
		}
	}
	return r.err
}

// table has a row for each part of a case; the peers are in one column of a short
// table.
func (r *OpReport) table(short bool) table.Writer {
	t := table.NewWriter()
	if short {
		t.AppendHeader(table.Row{"op", "case", "part", "variant", "us", "p95", "MB", "GB/s", "TFLOP/s", "of copy", "of matrix", "check", "peers, us (times ours)"})
	} else {
		t.AppendHeader(table.Row{"device", "driver", "op", "case", "part", "variant", "us", "p95_us", "mb", "gbs", "tflops", "share_copy", "share_matrix", "check", "peer", "peer_us", "peer2", "peer2_us"})
	}
	for _, x := range r.rows {
		num := func(format string, v float64) string {
			if x.Status != "ok" || v == 0 {
				return "-"
			}
			return fmt.Sprintf(format, v)
		}
		share, scale := "%.1f%%", 100.0
		if !short {
			share, scale = "%.4f", 1
		}
		row := table.Row{x.Op, x.Case, x.Part, x.Variant, num("%.1f", x.Time.Median), num("%.1f", x.Time.P95), num("%.2f", x.Bytes/1e6),
			num("%.4g", x.GBs), num("%.3g", x.TFLOPs), num(share, x.ShareCopy*scale), num(share, x.ShareMatrix*scale), x.Status}
		if short {
			t.AppendRow(append(row, peerText(x)))
			continue
		}
		row = append(table.Row{r.dev.Name, r.dev.Driver}, row...)
		for i := range 2 {
			if i < len(x.Peers) {
				row = append(row, x.Peers[i].Name, x.Peers[i].US)
			} else {
				row = append(row, "", "")
			}
		}
		t.AppendRow(row)
	}
	return t
}

// peerText is what others take, each with the quotient of our time by theirs.
func peerText(x OpRow) string {
	var parts []string
	for _, p := range x.Peers {
		parts = append(parts, fmt.Sprintf("%s %.4g (%.2f)", p.Name, p.US, x.Time.Median/p.US))
	}
	return strings.Join(parts, "; ")
}
