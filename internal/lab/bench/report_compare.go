package bench

import (
	"fmt"
	"slices"
	"strings"
)

// NewCompareReport starts a report of a comparison: md has the peers' times, quotients and
// geometric means, the others are as an OpReport's, whose csv has the quotients and the names
// of the goals, too. Errors: vk.ErrArgument for an unknown format.
func NewCompareReport(on ReportOn, peers PeerTable) (*Report[OpRow], error) {
	s, err := opStyle(compareSuite)
	if err != nil {
		return nil, err
	}
	s.keys, s.peers = 0, peers.Source
	s.about = func(w *writer, rows []OpRow) { comparison(w, s, peers, rows) }
	return newReport(on, s)
}

// comparison writes the tables and the goals.
func comparison(w *writer, s style[OpRow], peers PeerTable, all []OpRow) {
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
		w.printf("\n%s\n", s.tableOf(3, OpRow.compared, rows[:n]))
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

// compared are the cells of the tables, an operation each, beside the first peer.
func (r OpRow) compared() []cell {
	var others []string
	for _, p := range r.Peers[min(1, len(r.Peers)):] {
		others = append(others, fmt.Sprintf("%s %.4g", p.Name, p.US))
	}
	return []cell{{"op", "", nil, r.Op}, {"case", "", nil, r.Case}, {"part", "", nil, r.Part}, {"peer", "", nil, r.peer(0).Name},
		{"peer us", "", g4, some(r.peer(0).US)}, {"us", "", f1, r.Time.Median}, {"ratio", "", f2, r.ratio()},
		{"of limit", "", percent, r.share()},
		{"floor us", "", f1, some(r.FloorUS)}, {"of floor", "", percent, some(r.ShareFloor)}, {"variant", "", nil, r.Variant},
		{"check", "", nil, r.Status}, {"others, us", "", nil, strings.Join(others, "; ")}}
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
