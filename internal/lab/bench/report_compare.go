package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// NewCompareReport starts a report of a comparison: md has the peers' times, quotients and
// geometric means, the others are as an OpReport's, whose csv has the quotients and the names
// of the goals, too. Errors: vk.ErrArgument for an unknown format.
func NewCompareReport(on ReportOn, peers PeerTable) (*Report[OpRow], error) {
	s, err := opStyle(compareSuite)
	if err != nil {
		return nil, err
	}
	s.table, s.peers = nil, peers.Source
	s.about = func(w *writer, rows []OpRow) { comparison(w, peers, rows) }
	return newReport(on, s)
}

// comparison writes the tables and the goals.
func comparison(w *writer, peers PeerTable, all []OpRow) {
	w.printf("GPU time in microseconds; operands rotated past the last-level cache; every case checked against the\n")
	w.printf("reference first. ratio: our time over the first peer's. of limit: the share of the copy bandwidth or of\n")
	w.printf("the matrix rate, whichever is larger. Launches wait for each other; short ones are timed %d at a time,\n", launches)
	w.printf("as the peers were.\n")
	if hasFloors(all) {
		w.printf("%s", floorText)
	}
	w.printf("Peers: %s\n", peers.Source)
	for rows := all; len(rows) > 0; {
		n := slices.IndexFunc(rows, func(x OpRow) bool { return x.Op != rows[0].Op })
		if n < 0 {
			n = len(rows)
		}
		w.printf("\n%s\n", compareTable(rows[:n]))
		rows = rows[n:]
	}
	w.printf("\n")
	for _, x := range outcomes(all) {
		w.printf("- %s\n", x)
	}
	if ops := left(peers, all); len(ops) > 0 {
		w.printf("\nMeasured of others and not run here: %s.\n", strings.Join(ops, ", "))
	}
}

// compareTable returns the table of an operation.
func compareTable(rows []OpRow) *describe.Table {
	floors, columns := hasFloors(rows), []string{"op", "case", "part", "peer", "peer us", "us", "ratio", "of limit"}
	if floors {
		columns = append(columns, "floor us", "of floor")
	}
	t := describe.NewTable(3, append(columns, "variant", "check", "others, us")...)
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
		t.Add(append(row, x.Variant, x.Status, strings.Join(others, "; ")))
	}
	return t
}

// compareRow returns the row beside the first peer.
func compareRow(x OpRow) []any {
	row, ratio := []any{x.Op, x.Case, x.Part, "-", "-"}, "-"
	if len(x.Peers) > 0 {
		row[3], row[4], ratio = x.Peers[0].Name, fmt.Sprintf("%.4g", x.Peers[0].US), fmt.Sprintf("%.2f", x.Time.Median/x.Peers[0].US)
	}
	if x.Status != "ok" {
		return append(row, "-", "-", "-")
	}
	return append(row, fmt.Sprintf("%.1f", x.Time.Median), ratio, percent(x.share()))
}

// left lists the operations of the table with cases that no row is about.
func left(peers PeerTable, rows []OpRow) (ops []string) {
	ran := map[string]bool{}
	for _, x := range rows {
		ran[x.Op+" "+x.Case+" "+x.Part] = true
	}
	counts := map[string]int{}
	for _, p := range peers.Rows {
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
