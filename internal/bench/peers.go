package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

// Peer is what another implementation takes for a case.
type Peer struct {
	Name string  `json:"name"`
	US   float64 `json:"us"` // GPU time, microseconds
}

// PeerTable is the measurements of other implementations that are shipped with the
// program.
type PeerTable struct {
	Source string    `json:"source"` // what was measured, where and how
	Rows   []PeerRow `json:"rows"`
}

// PeerRow is the measurements for one case of an operation.
type PeerRow struct {
	Op    string `json:"op"`
	Case  string `json:"case"`
	Part  string `json:"part,omitempty"`
	Peers []Peer `json:"peers"`
}

//go:embed peers.json
var peersJSON []byte

// Peers returns the shipped measurements.
var Peers = sync.OnceValues(func() (t PeerTable, err error) {
	if err = json.Unmarshal(peersJSON, &t); err != nil {
		err = fmt.Errorf("bench: peers.json: %w", err)
	}
	return t, err
})

// PeersOf returns what others take for a part of a case, nil if nobody measured it.
func PeersOf(op, name, part string) []Peer {
	t, _ := Peers()
	for _, r := range t.Rows {
		if r.Op == op && r.Case == name && r.Part == part {
			return r.Peers
		}
	}
	return nil
}
