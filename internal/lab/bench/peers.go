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

// ErrPeers is matched by every *PeersError.
var ErrPeers = errors.New("unusable table of peers")

// PeersError says what is wrong with a table of measurements.
type PeersError struct {
	File string // its name
	Row  int    // counted from 0; -1 where no row is concerned
	Got  string
	Want string
	err  error // of the file or its syntax
}

// Error reads "bench: peers: file: row 3: got X, want Y".
func (e *PeersError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("bench: peers: %s: %v", e.File, e.err)
	}
	where := e.File
	if e.Row >= 0 {
		where = fmt.Sprintf("%s: row %d", e.File, e.Row)
	}
	return fmt.Sprintf("bench: peers: %s: got %s, want %s", where, e.Got, e.Want)
}

// Is reports whether target is ErrPeers.
func (e *PeersError) Is(target error) bool { return target == ErrPeers }

// Unwrap returns what was wrong with the file or its syntax, if anything.
func (e *PeersError) Unwrap() error { return e.err }

// Peer is what another implementation takes for a case.
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
// that name. Errors: *PeersError (ErrPeers), with the file system's in it.
func ReadPeers(name string) (PeerTable, error) {
	data, err := files.Read(name, maxPeers)
	switch {
	case errors.Is(err, fs.ErrNotExist) && name == ShippedPeers:
		return Peers()
	case errors.Is(err, files.ErrLarge):
		return PeerTable{}, &PeersError{File: name, Row: -1, Got: "a larger file", Want: fmt.Sprintf("at most %d bytes", maxPeers)}
	case err != nil:
		return PeerTable{}, &PeersError{File: name, Row: -1, err: err}
	}
	return parsePeers(name, data)
}

// peerOps translates operations of tables that use other names than this program. front is what
// a case's name begins with here.
var peerOps = map[string]struct{ op, front string }{
	"decode_c4a":                {op: decodeOp},
	"decode_window":             {op: decodeOp},
	"decode_c128a":              {op: decodeOp},
	"prefill":                   {op: "flashmla_sparse_prefill"},
	"compress_main4":            {"compressor_main_kv", "ratio=4/"},
	"compress_main128":          {"compressor_main_kv", "ratio=128/"},
	"compress_idx_fp8":          {"compressor_indexer_k_fp8", "ratio=4/"},
	"compress_idx_mxfp4":        {"compressor_indexer_k_mxfp4", "ratio=4/"},
	"query_quant_fp8":           {op: "fused_indexer_q_rope_quant_fp8"},
	"query_quant_mxfp4":         {op: "fused_indexer_q_rope_quant_mxfp4"},
	"logits_fp8":                {op: "indexer_logits_fp8"},
	"logits_mxfp4":              {op: "indexer_logits_mxfp4"},
	"topk":                      {op: "indexer_topk"},
	"select_fp8":                {op: "indexer_select_fp8"},
	"select_mxfp4":              {op: "indexer_select_mxfp4"},
	"qkv_norm":                  {op: "fused_q_kv_rmsnorm"},
	"q_insert":                  {op: "fused_qnorm_rope_kv_insert"},
	"insert_k":                  {op: "quantize_and_insert_k_cache"},
	"gather_k":                  {op: "dequantize_and_gather_k_cache"},
	"inverse_rope_quant_f32":    {"fused_inv_rope_fp8_quant", "scales=f32/"},
	"inverse_rope_quant_packed": {"fused_inv_rope_fp8_quant", "scales=packed/"},
	"wq_a_wkv":                  {"linear", "matrix=wq_a_wkv/"},
	"wq_b":                      {"linear", "matrix=wq_b/"},
	"wo_a":                      {"linear", "matrix=wo_a/"},
	"wo_b":                      {"linear", "matrix=wo_b/"},
}

// ours returns a row by the names of this program.
func (r PeerRow) ours() PeerRow {
	if x, ok := peerOps[r.Op]; ok {
		r.Op, r.Case = x.op, x.front+r.Case
	}
	return r
}

// maxPeers is how large a table may be.
const maxPeers = 16 << 20

// peersBounds: the shipped table has 1,000 values.
var peersBounds = files.Bounds{Depth: 8, Values: 1 << 17, Unique: true}

func parsePeers(name string, data []byte) (PeerTable, error) {
	var t PeerTable
	fail := func(row int, got any, want string) (PeerTable, error) {
		return PeerTable{}, &PeersError{File: name, Row: row, Got: fmt.Sprint(got), Want: want}
	}
	if err := peersBounds.Check(data); err != nil {
		return fail(-1, err, "a table of fewer, said once")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&t)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			return fail(-1, "something behind the table", "one table")
		}
	}
	if err != nil {
		return PeerTable{}, &PeersError{File: name, Row: -1, err: err}
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
		t.Rows[i] = r.ours()
	}
	return t, nil
}

// printable reports whether a terminal would only print a text.
func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Of returns what others take for a part of a case, nil if nobody measured it.
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
