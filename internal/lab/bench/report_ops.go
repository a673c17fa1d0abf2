package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/vk"
)

// NewOpReport starts a report of one of OpSuites. Errors: vk.ErrArgument for an unknown format
// or suite.
func NewOpReport(on ReportOn, suite string) (*Report[OpRow], error) {
	s, err := opStyle(suite)
	if err != nil {
		return nil, err
	}
	return newReport(on, s)
}

// opStyle returns how rows of single operations are written.
func opStyle(suite string) (style[OpRow], error) {
	peers, err := Peers()
	if err != nil {
		return style[OpRow]{}, err
	}
	about, known := "", []string{}
	for _, s := range OpSuites {
		if known = append(known, s.Name); s.Name == suite {
			about = s.About
		}
	}
	if about == "" {
		return style[OpRow]{}, &vk.ArgumentError{Op: "bench: report", Arg: "suite", Got: fmt.Sprintf("%q", suite),
			Want: strings.Join(known, ", ")}
	}
	return style[OpRow]{
		peers: peers.Source, table: opRowTable, csv: opRowCSV, pictures: opPictures,
		about: func(w *writer, rows []OpRow) {
			w.printf("%s\n", about)
			w.printf("GPU time in microseconds; operands rotated; every case checked against the reference first.\n")
			if hasFloors(rows) {
				w.printf("%s", floorText)
			}
			if hasPeers(rows) {
				w.printf("Peers: %s\n", peers.Source)
			}
		},
		lines: func(w *writer, x OpRow) {
			name := strings.ToUpper(suite[:1]) + suite[1:] + "/op=" + x.Op + "/variant=" + x.Variant + "/" + x.Case
			if x.Part != "" {
				name += "/part=" + x.Part
			}
			w.samples(name, x.Time)
		},
		state: func(x OpRow) (status, name, detail string) {
			return x.Status, x.Op + " " + x.Case + ", variant " + x.Variant, x.Detail
		},
	}, nil
}

// hasPeers reports whether anything that was timed was measured of others.
func hasPeers(rows []OpRow) bool {
	return slices.ContainsFunc(rows, func(x OpRow) bool { return len(x.Peers) > 0 })
}

// hasFloors reports whether any row has one.
func hasFloors(rows []OpRow) bool {
	return slices.ContainsFunc(rows, func(x OpRow) bool { return x.FloorUS > 0 })
}

// floorText explains the columns of floors.
const floorText = `floor us: launches that read those MB and compute nothing, as many one after the other as ours has,
the first of them reads all. of floor: that over our time. Matrix products may need longer than
the bytes.
`

// opRowTable has a row for each part of a case; the peers, if there are any, are in one
// column, and so are floors and their shares.
func opRowTable(rows []OpRow) *describe.Table {
	peers, floors := hasPeers(rows), hasFloors(rows)
	columns := []string{"op", "case", "part", "variant", "us", "p95", "MB", "GB/s", "TFLOP/s", "of copy", "of matrix"}
	if floors {
		columns = append(columns, "floor us", "of floor")
	}
	columns = append(columns, "check")
	if peers {
		columns = append(columns, "peers, us (ours / theirs)")
	}
	t := describe.NewTable(3, columns...)
	for _, x := range rows {
		num := func(format string, v float64) string {
			if x.Status != "ok" || v == 0 {
				return "-"
			}
			return fmt.Sprintf(format, v)
		}
		row := []any{x.Op, x.Case, x.Part, x.Variant, num("%.1f", x.Time.Median), num("%.1f", x.Time.P95), num("%.2f", x.Bytes/1e6),
			num("%.4g", x.GBs), num("%.3g", x.TFLOPs), num("%.1f%%", 100*x.ShareCopy), num("%.1f%%", 100*x.ShareMatrix)}
		if floors {
			row = append(row, num("%.1f", x.FloorUS), num("%.1f%%", 100*x.ShareFloor))
		}
		row = append(row, x.Status)
		if peers {
			row = append(row, peerText(x))
		}
		t.Add(row)
	}
	return t
}

// opRowCSV has a ratio: our time over the first peer's.
func opRowCSV(dev describe.Origin, rows []OpRow) table.Writer {
	t := describe.NewCSV("op", "case", "part", "variant", "us", "p95_us", "samples_us",
		"bytes", "gbs", "tflops", "share_copy",
		"share_matrix", "check", "peer", "peer_us", "peer2", "peer2_us", "ratio", "goal", "floor_us", "floor_launches", "share_floor")
	for _, x := range rows {
		num := func(v float64) string { return csvNumber(x.Status, v) }
		some := func(measured bool, v float64) string {
			if !measured {
				return ""
			}
			return num(v)
		}
		row := dev.Row(x.Op, x.Case, x.Part, x.Variant, num(x.Time.Median), num(x.Time.P95),
			csvSamples(x.Status, x.Time), num(x.Bytes),
			num(x.GBs), some(x.Flop > 0, x.TFLOPs), num(x.ShareCopy), some(x.Flop > 0, x.ShareMatrix), x.Status)
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
			row = append(row, some(x.FloorUS > 0, v))
		}
		t.AppendRow(row)
	}
	return t
}

// peerText returns what others take, each with the quotient of our time by theirs.
func peerText(x OpRow) string {
	var parts []string
	for _, p := range x.Peers {
		parts = append(parts, fmt.Sprintf("%s %.4g (%.2f)", p.Name, p.US, x.Time.Median/p.US))
	}
	return strings.Join(parts, "; ")
}
