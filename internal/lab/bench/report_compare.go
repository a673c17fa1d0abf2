package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/vk"
)

// CompareReport writes a comparison in one of the Formats: md with the peers' times,
// quotients and geometric means, the others as an OpReport does, whose csv has the
// quotients and the names of the goals, too.
type CompareReport struct {
	OpReport
	peers PeerTable
}

// NewCompareReport starts a report about a device, as NewReport does.
//
// Errors: vk.ErrArgument for an unknown format.
func NewCompareReport(w io.Writer, format string, a *vk.Adapter, l Limits, peers PeerTable) (*CompareReport, error) {
	r, err := NewOpReport(w, format, "compare", a, l)
	if err != nil {
		return nil, err
	}
	return &CompareReport{*r, peers}, nil
}

// Close writes what is still to be written and returns the first error of all
// writing.
func (r *CompareReport) Close() error {
	if r.format != "md" {
		return r.OpReport.Close()
	}
	r.head()
	r.printf("GPU time in microseconds; inputs rotated past the last-level cache; every case checked against the\n")
	r.printf("reference first. ratio: our time over the first peer's. of limit: the share of the copy bandwidth or of\n")
	r.printf("the matrix rate, whichever is larger. Launches wait for each other; short ones are timed %d at a time,\n", launches)
	r.printf("as the peers were.\n")
	if hasFloors(r.rows) {
		r.printf(floorText)
	}
	r.printf("Peers: %s\n", r.peers.Source)
	for rows := r.rows; len(rows) > 0; {
		n := slices.IndexFunc(rows, func(x OpRow) bool { return x.Op != rows[0].Op })
		if n < 0 {
			n = len(rows)
		}
		r.printf("\n%s\n", compareTable(rows[:n]).RenderMarkdown())
		rows = rows[n:]
	}
	r.printf("\n")
	for _, x := range outcomes(r.rows) {
		r.printf("- %s\n", x)
	}
	if left := r.left(); len(left) > 0 {
		r.printf("\nMeasured of others and not run here: %s.\n", strings.Join(left, ", "))
	}
	for _, x := range r.rows {
		if x.Status != "ok" {
			r.printf("%s: %s %s, variant %s: %s\n", strings.ToUpper(x.Status), x.Op, x.Case, x.Variant, x.Detail)
		}
	}
	return r.err
}

// compareTable is the table of an operation.
func compareTable(rows []OpRow) table.Writer {
	t, floors := table.NewWriter(), hasFloors(rows)
	header := table.Row{"op", "case", "part", "peer", "peer us", "us", "ratio", "of limit"}
	if floors {
		header = append(header, "floor us", "of floor")
	}
	t.AppendHeader(append(header, "variant", "check", "others, us"))
	for _, x := range rows {
		row := compareRow(x)
		if floors && x.Status == "ok" && x.FloorUS > 0 {
			row = append(row, f1(x.FloorUS), percent(x.ShareFloor))
		} else if floors {
			row = append(row, "-", "-")
		}
		var others []string
		for i, p := range x.Peers {
			if i > 0 {
				others = append(others, fmt.Sprintf("%s %.4g", p.Name, p.US))
			}
		}
		t.AppendRow(append(row, x.Variant, x.Status, strings.Join(others, "; ")))
	}
	return t
}

// compareRow is the row beside the first peer.
func compareRow(x OpRow) table.Row {
	row, ratio := table.Row{x.Op, x.Case, x.Part, "-", "-"}, "-"
	if len(x.Peers) > 0 {
		row[3], row[4], ratio = x.Peers[0].Name, fmt.Sprintf("%.4g", x.Peers[0].US), fmt.Sprintf("%.2f", x.Time.Median/x.Peers[0].US)
	}
	if x.Status != "ok" {
		return append(row, "-", "-", "-")
	}
	return append(row, fmt.Sprintf("%.1f", x.Time.Median), ratio, percent(x.share()))
}

// left lists the operations of the table with cases that no row is about.
func (r *CompareReport) left() (ops []string) {
	ran := map[string]bool{}
	for _, x := range r.rows {
		ran[x.Op+" "+x.Case+" "+x.Part] = true
	}
	counts := map[string]int{}
	for _, p := range r.peers.Rows {
		if !ran[p.Op+" "+p.Case+" "+p.Part] {
			if counts[p.Op]++; counts[p.Op] == 1 {
				ops = append(ops, p.Op)
			}
		}
	}
	for i, op := range ops {
		ops[i] = fmt.Sprintf("%d of %s", counts[op], op)
	}
	return ops
}
