package bench

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"
	"sync"
	"unicode"

	"github.com/vkmla/vkmla/internal/files"
)

// ErrPeers is matched by the error of an unusable table, which says the file, the row, what it has
// and what was expected.
var ErrPeers = errors.New("unusable table of peers")

// Peer is the time that another implementation takes for a case.
type Peer struct {
	Name string  `json:"name"`
	US   float64 `json:"us"` // GPU time, microseconds
}

// PeerTable is the measurements of other implementations that are shipped with the
// program, or are read from a file of the same form.
type PeerTable struct {
	Source string    `json:"source"` // what was measured, where and how
	Rows   []PeerRow `json:"rows"`
}

// PeerRow is the measurements for one case of an operation.
type PeerRow struct {
	Op    string `json:"op"`
	Case  string `json:"case"`
	Part  string `json:"part,omitempty"`
	Peers []Peer `json:"peers"` // the one to compare with first
}

//go:embed peers.json
var peersJSON []byte

// ShippedPeers is the name of the table that is shipped with the program.
const ShippedPeers = "peers.json"

// Peers returns the shipped measurements.
var Peers = sync.OnceValues(func() (t PeerTable, err error) {
	return parsePeers(ShippedPeers, peersJSON)
})

// ReadPeers reads a table. ShippedPeers names the shipped one, unless there is a file of
// that name. Errors: ErrPeers, with the file system's in it.
func ReadPeers(name string) (PeerTable, error) {
	data, err := files.Read(name, maxPeers)
	switch {
	case errors.Is(err, fs.ErrNotExist) && name == ShippedPeers:
		return Peers()
	case errors.Is(err, files.ErrLarge):
		return PeerTable{}, fmt.Errorf("bench: %w: %s: got a larger file, want at most %d bytes", ErrPeers, name, maxPeers)
	case err != nil:
		return PeerTable{}, fmt.Errorf("bench: %w: %s: %w", ErrPeers, name, err)
	}
	return parsePeers(name, data)
}

// maxPeers bounds the bytes of a table.
const maxPeers = 16 << 20

// peersBounds: the shipped table has 1,000 values.
var peersBounds = files.Bounds{Depth: 8, Values: 1 << 17, Unique: true}

func parsePeers(name string, data []byte) (PeerTable, error) {
	var t PeerTable
	fail := func(row int, got any, want string) (PeerTable, error) {
		where := name
		if row >= 0 {
			where += fmt.Sprintf(": row %d", row)
		}
		return PeerTable{}, fmt.Errorf("bench: %w: %s: got %v, want %s", ErrPeers, where, got, want)
	}
	if err := peersBounds.Check(data); err != nil {
		return fail(-1, err, "a table of fewer, said once")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&t)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			return fail(-1, "something after the table", "one table")
		}
	}
	if err != nil {
		return PeerTable{}, fmt.Errorf("bench: %w: %s: %w", ErrPeers, name, err)
	}
	if !printable(t.Source) {
		return fail(-1, fmt.Sprintf("source %.60q", t.Source), "printable text")
	}
	if t.Source == "" || len(t.Rows) == 0 {
		return fail(-1, fmt.Sprintf("source %q and %d rows", t.Source, len(t.Rows)), "a source, and rows")
	}
	seen := map[string]int{}
	for i, r := range t.Rows {
		key := r.Op + " " + r.Case + " " + r.Part
		if first, twice := seen[key]; twice {
			return fail(i, "the case of row "+fmt.Sprint(first), "each case once")
		}
		seen[key] = i
		if r.Op == "" || r.Case == "" || len(r.Peers) == 0 {
			return fail(i, fmt.Sprintf("op %q, case %q, %d peers", r.Op, r.Case, len(r.Peers)), "an operation, a case, and peers")
		}
		if !printable(key) {
			return fail(i, fmt.Sprintf("op %.60q, case %.60q, part %.60q", r.Op, r.Case, r.Part), "printable names")
		}
		for _, p := range r.Peers {
			if !printable(p.Name) {
				return fail(i, fmt.Sprintf("peer %.60q", p.Name), "a printable name")
			}
			if p.Name == "" || !(p.US > 0) || math.IsInf(p.US, 0) {
				return fail(i, fmt.Sprintf("peer %q with %g us", p.Name, p.US), "a name and a positive time")
			}
		}
	}
	return t, nil
}

// printable reports whether a terminal would only print a text.
func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Of returns what others take for a part of a case, nil if none measured it.
func (t PeerTable) Of(op, name, part string) []Peer {
	for _, r := range t.Rows {
		if r.Op == op && r.Case == name && r.Part == part {
			return r.Peers
		}
	}
	return nil
}

// PeersOf returns what the shipped table has for a part of a case.
func PeersOf(op, name, part string) []Peer {
	t, _ := Peers()
	return t.Of(op, name, part)
}
