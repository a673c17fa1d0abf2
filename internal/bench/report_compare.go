package bench

import (
	"fmt"
	"io"
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
	r.printf("Peers: %s\n", r.peers.Source)
	last := ""
	var t table.Writer
	flush := func() {
		if t != nil {
			r.printf("\n%s\n", t.RenderMarkdown())
		}
	}
	for _, x := range r.rows {
		if x.Op != last {
			flush()
			last, t = x.Op, table.NewWriter()
			t.AppendHeader(table.Row{"op", "case", "part", "peer", "peer us", "us", "ratio", "of limit", "variant", "check", "others, us"})
		}
		t.AppendRow(compareRow(x))
	}
	flush()
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

func compareRow(x OpRow) table.Row {
	row := table.Row{x.Op, x.Case, x.Part}
	var others []string
	if len(x.Peers) == 0 {
		row = append(row, "-", "-")
	} else {
		row = append(row, x.Peers[0].Name, fmt.Sprintf("%.4g", x.Peers[0].US))
		for _, p := range x.Peers[1:] {
			others = append(others, fmt.Sprintf("%s %.4g", p.Name, p.US))
		}
	}
	if x.Status != "ok" {
		return append(row, "-", "-", "-", x.Variant, x.Status, strings.Join(others, "; "))
	}
	ratio := "-"
	if len(x.Peers) > 0 {
		ratio = fmt.Sprintf("%.2f", x.Time.Median/x.Peers[0].US)
	}
	return append(row, fmt.Sprintf("%.1f", x.Time.Median), ratio, percent(x.share()), x.Variant, x.Status, strings.Join(others, "; "))
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
