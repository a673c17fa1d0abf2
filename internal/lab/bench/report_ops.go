package bench

import (
	"fmt"
	"slices"
	"strings"

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
		peers: peers.Source, keys: 3, cells: OpRow.cells, pictures: opPictures,
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

// cells has a peer's time each in CSV, and the peers in one column of the table. The ratio is our
// time over the first peer's.
func (r OpRow) cells() []cell {
	return slices.Concat([]cell{{"op", "op", nil, r.Op}, {"case", "case", nil, r.Case}, {"part", "part", nil, r.Part},
		{"variant", "variant", nil, r.Variant}},
		r.Time.cells(), []cell{
			{"MB", "", f2, r.Bytes / 1e6}, {"", "bytes", nil, r.Bytes}, {"GB/s", "gbs", g4, r.GBs}, {"TFLOP/s", "tflops", g4, some(r.TFLOPs)},
			{"of copy", "share_copy", percent, r.ShareCopy}, {"of matrix", "share_matrix", percent, some(r.ShareMatrix)},
			{"floor us", "floor_us", f1, some(r.FloorUS)}, {"", "floor_launches", nil, some(float64(r.FloorLaunches))},
			{"of floor", "share_floor", percent, some(r.ShareFloor)}, {"check", "check", nil, r.Status},
			{"peers, us (ours / theirs)", "", nil, peerText(r)}, {"", "peer", nil, r.peer(0).Name}, {"", "peer_us", nil, some(r.peer(0).US)},
			{"", "peer2", nil, r.peer(1).Name}, {"", "peer2_us", nil, some(r.peer(1).US)}, {"", "ratio", nil, r.ratio()},
			{"", "goal", nil, r.goals()},
		})
}

// peer returns the i-th of others that measured the case, or none.
func (r OpRow) peer(i int) Peer {
	if i < len(r.Peers) {
		return r.Peers[i]
	}
	return Peer{}
}

// ratio returns our time over the first peer's, or nil.
func (r OpRow) ratio() any {
	if len(r.Peers) == 0 {
		return nil
	}
	return r.Time.Median / r.Peers[0].US
}

// peerText returns what others take, each with the quotient of our time by theirs.
func peerText(x OpRow) string {
	var parts []string
	for _, p := range x.Peers {
		parts = append(parts, fmt.Sprintf("%s %.4g (%.2f)", p.Name, p.US, x.Time.Median/p.US))
	}
	return strings.Join(parts, "; ")
}
