package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// OpReport writes the rows of a suite of single operations in one of the Formats.
type OpReport struct {
	Report
	suite string
	rows  []OpRow
}

// opSuites says what the suites of single operations time, by their names.
var opSuites = map[string]string{
	"indexer":   "Indexer and compressors of a C4A layer, and the compressor of a C128A layer; keys = context/4.",
	"attention": "The attention kernel, with the merge of its parts.",
	"memory":    "What a layer does between its matrix products and its attention.",
	"linear":    "Matrix products of layers, by the names of their weights.",
	"compare":   "Operations that others have measured.",
}

// NewOpReport starts a report of a suite (indexer, attention, memory, linear or compare)
// about a device. Formats that need no table (jsonl and benchstat) are written row by
// row, the others by Close.
//
// Errors: vk.ErrArgument for an unknown format or suite.
func NewOpReport(w io.Writer, format, suite string, a *vk.Adapter, l Limits) (*OpReport, error) {
	if opSuites[suite] == "" {
		return nil, &vk.ArgumentError{Op: "bench: report", Arg: "suite", Got: fmt.Sprintf("%q", suite), Want: strings.Join(slices.Sorted(maps.Keys(opSuites)), ", ")}
	}
	r, err := NewReport(w, format, a, l)
	if err != nil {
		return nil, err
	}
	return &OpReport{Report: *r, suite: suite}, nil
}

// Add adds a row.
func (r *OpReport) Add(x OpRow) {
	r.rows = append(r.rows, x)
	switch r.format {
	case "jsonl":
		r.json(x)
	case "benchstat":
		name := strings.ToUpper(r.suite[:1]) + r.suite[1:] + "/op=" + x.Op + "/variant=" + x.Variant + "/" + x.Case
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
		r.printf("%s\n", opSuites[r.suite])
		r.printf("GPU time in microseconds; inputs rotated; every case checked against the reference first.\n")
		if hasFloors(r.rows) {
			r.printf(floorText)
		}
		if r.hasPeers() {
			r.printf("Peers: %s\n", peers.Source)
		}
		r.printf("\n%s\n", r.table().RenderMarkdown())
	case "csv":
		r.printf("%s\n", r.csv().RenderCSV())
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

// hasPeers tells whether anything that was timed was measured of others.
func (r *OpReport) hasPeers() bool {
	return slices.ContainsFunc(r.rows, func(x OpRow) bool { return len(x.Peers) > 0 })
}

// hasFloors tells whether any row has one.
func hasFloors(rows []OpRow) bool {
	return slices.ContainsFunc(rows, func(x OpRow) bool { return x.FloorUS > 0 })
}

// floorText says what the columns of floors are.
const floorText = `floor us: launches that read those MB and compute nothing, as many one behind the other as ours has, of which
the first reads all. of floor: that over our time. Matrix products may need longer than the bytes.
`

// table has a row for each part of a case; the peers, if there are any, are in one
// column, and so are floors and their shares.
func (r *OpReport) table() table.Writer {
	t, peers, floors := table.NewWriter(), r.hasPeers(), hasFloors(r.rows)
	header := table.Row{"op", "case", "part", "variant", "us", "p95", "MB", "GB/s", "TFLOP/s", "of copy", "of matrix"}
	if floors {
		header = append(header, "floor us", "of floor")
	}
	header = append(header, "check")
	if peers {
		header = append(header, "peers, us (ours / theirs)")
	}
	t.AppendHeader(header)
	for _, x := range r.rows {
		num := func(format string, v float64) string {
			if x.Status != "ok" || v == 0 {
				return "-"
			}
			return fmt.Sprintf(format, v)
		}
		row := table.Row{x.Op, x.Case, x.Part, x.Variant, num("%.1f", x.Time.Median), num("%.1f", x.Time.P95), num("%.2f", x.Bytes/1e6),
			num("%.4g", x.GBs), num("%.3g", x.TFLOPs), num("%.1f%%", 100*x.ShareCopy), num("%.1f%%", 100*x.ShareMatrix)}
		if floors {
			row = append(row, num("%.1f", x.FloorUS), num("%.1f%%", 100*x.ShareFloor))
		}
		row = append(row, x.Status)
		if peers {
			row = append(row, peerText(x))
		}
		t.AppendRow(row)
	}
	return t
}

// csv has the same rows with the numbers in full; what was not measured is empty. ratio
// is our time over the first peer's.
func (r *OpReport) csv() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"device", "driver", "op", "case", "part", "variant", "us", "p95_us", "bytes", "gbs", "tflops", "share_copy", "share_matrix", "check",
		"peer", "peer_us", "peer2", "peer2_us", "ratio", "goal", "floor_us", "floor_launches", "share_floor"})
	for _, x := range r.rows {
		num := func(v float64) string { return csvNumber(x.Status, v) }
		some := func(v float64) string {
			if x.Flop == 0 {
				return "" // nothing to have a rate of
			}
			return num(v)
		}
		row := table.Row{r.dev.Name, r.dev.Driver, x.Op, x.Case, x.Part, x.Variant, num(x.Time.Median), num(x.Time.P95), num(x.Bytes),
			num(x.GBs), some(x.TFLOPs), num(x.ShareCopy), some(x.ShareMatrix), x.Status}
		for i := range 2 {
			if i < len(x.Peers) {
				row = append(row, x.Peers[i].Name, x.Peers[i].US)
			} else {
				row = append(row, "", "")
			}
		}
		ratio := ""
		if len(x.Peers) > 0 {
			ratio = num(x.Time.Median / x.Peers[0].US)
		}
		row = append(row, ratio, x.goals())
		for _, v := range []float64{x.FloorUS, float64(x.FloorLaunches), x.ShareFloor} {
			if x.FloorUS == 0 {
				row = append(row, "")
			} else {
				row = append(row, num(v))
			}
		}
		t.AppendRow(row)
	}
	return t
}

// csvNumber is a number of a row in full, empty where it was not measured.
func csvNumber(status string, v float64) string {
	if status != "ok" {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// peerText is what others take, each with the quotient of our time by theirs.
func peerText(x OpRow) string {
	var parts []string
	for _, p := range x.Peers {
		parts = append(parts, fmt.Sprintf("%s %.4g (%.2f)", p.Name, p.US, x.Time.Median/p.US))
	}
	return strings.Join(parts, "; ")
}
