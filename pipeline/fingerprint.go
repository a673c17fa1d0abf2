package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/internal/pages"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Fingerprint says what the bytes of an engine's sessions mean, by a SHA-256 for each of three
// things. Engines with the same can take each other's snapshots; a store of snapshots may use it as
// a key.
//
// It covers what is computed and how it is stored. Capacities, page sizes, step sizes, kernels,
// ranks and the device do not count: at most they decide the order of sums. Nor do layers that the
// engine does not run.
type Fingerprint struct {
	Config  [sha256.Size]byte // sizes, norms and rotations of the model, and its layers
	Weights [sha256.Size]byte // DeviceLayer.Identity of each layer, and EngineOptions.Identity
	Formats [sha256.Size]byte // bytes of slots; Keys, Hadamard, QuantiseActivations, Invariant
}

// String is 64 hexadecimal digits, a SHA-256 of the three.
func (f Fingerprint) String() string {
	h := sha256.New()
	h.Write(f.Config[:])
	h.Write(f.Weights[:])
	h.Write(f.Formats[:])
	return hex.EncodeToString(h.Sum(nil))
}

// Fingerprint returns the engine's. It never changes.
func (e *Engine) Fingerprint() Fingerprint { return e.print }

// differs says which parts differ, "" for none.
func (f *Fingerprint) differs(o *Fingerprint) string {
	var parts []string
	for _, p := range []struct {
		name string
		a, b [sha256.Size]byte
	}{{"another configuration or other layers", f.Config, o.Config}, {"other weights", f.Weights, o.Weights},
		{"other formats of caches or activations", f.Formats, o.Formats}} {
		if p.a != p.b {
			parts = append(parts, p.name)
		}
	}
	return strings.Join(parts, ", ")
}

// encoding collects the text to hash: lines of a name and a value. A value that is zero has no
// line, so that a new one leaves all fingerprints as they were where it is not used.
type encoding struct{ strings.Builder }

// newEncoding begins the encoding of a part. The number changes when a line gets another meaning.
func newEncoding(part string) *encoding {
	x := &encoding{}
	x.WriteString("vkmla " + part + " 1\n")
	return x
}

func put[T int | bool | string | float32 | float64](x *encoding, name string, v T) {
	if v == *new(T) {
		return
	}
	var text string
	switch v := any(v).(type) {
	case int:
		text = strconv.Itoa(v)
	case bool:
		text = "yes"
	case string:
		text = strconv.QuoteToASCII(v)
	case float32:
		text = strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		text = strconv.FormatFloat(v, 'g', -1, 64)
	}
	x.WriteString(name + " " + text + "\n")
}

func (x *encoding) sum() [sha256.Size]byte { return sha256.Sum256([]byte(x.String())) }

// fingerprint makes the engine's, from its layers and the layouts of their caches.
func (e *Engine) fingerprint() Fingerprint {
	return Fingerprint{e.encodeConfig().sum(), e.encodeWeights().sum(), e.encodeFormats().sum()}
}

// picks reports whether one of the engine's layers has an indexer.
func (e *Engine) picks() bool {
	return e.has(func(s *model.LayerSpec) bool { return s.Picks == model.PickOwn })
}

// has reports whether a layer of the engine's is of such a kind.
func (e *Engine) has(is func(s *model.LayerSpec) bool) bool {
	return slices.ContainsFunc(e.layers, func(l commands.Layer) bool { return is(&l.Spec.LayerSpec) })
}

func (e *Engine) encodeConfig() *encoding {
	x, c := newEncoding("configuration"), &e.cfg
	put(x, "hidden", c.Hidden)
	put(x, "heads", c.Heads)
	put(x, "q rank", c.QRank)
	put(x, "o rank", c.ORank)
	put(x, "groups", c.Groups)
	put(x, "window", c.Window)
	put(x, "eps", c.Eps)
	if e.picks() {
		put(x, "index heads", c.IndexHeads)
		put(x, "top k", c.TopK)
	}
	put(x, "plain queries", c.PlainQueries)
	if e.has(func(s *model.LayerSpec) bool { return s.Candidates != model.CandidatesNone }) {
		put(x, "candidate blocks", c.CandidateBlocks)
		put(x, "candidate block", c.CandidateBlock)
	}
	if e.has(func(s *model.LayerSpec) bool { return s.Block }) {
		put(x, "draft block", c.DraftBlock)
	}
	put(x, "layers", len(e.layers))
	for i, l := range e.layers {
		x.layer(fmt.Sprintf("layer %d ", i), &l)
	}
	return x
}

// What picks, candidates and stores are called; the numbers of Go's constants may change.
var (
	pickNames      = [...]string{model.PickNone: "", model.PickOwn: "own", model.PickEarlier: "earlier"}
	candidateNames = [...]string{model.CandidatesNone: "", model.CandidatesMade: "made", model.CandidatesUsed: "used"}

	storeNames = [...]string{model.StoreWindow: "window", model.StoreEntries: "entries", model.StoreKeys: "keys",
		model.StoreState: "state", model.StoreKeyState: "key state"}
)

// layer encodes a layer. Whether it only predicts ahead, and what its kind is called, decides
// nothing.
func (x *encoding) layer(at string, l *commands.Layer) {
	s := l.Spec
	put(x, at+"number", l.W.Layer)
	put(x, at+"ratio", s.Ratio)
	put(x, at+"overlap", s.Overlap)
	put(x, at+"picks", pickNames[s.Picks])
	if put(x, at+"borrows", s.Borrows); s.Borrows {
		put(x, at+"entries of", s.EntriesOf)
	}
	if s.Picks == model.PickEarlier {
		put(x, at+"picks of", s.PicksOf)
	}
	put(x, at+"unplaced", s.Unplaced)
	put(x, at+"latent", s.Latent)
	put(x, at+"latent keys", s.LatentKeys)
	if put(x, at+"candidates", candidateNames[s.Candidates]); s.Candidates == model.CandidatesUsed {
		put(x, at+"candidates of", s.CandidatesOf)
	}
	put(x, at+"block", s.Block)
	x.rope(at+"rope ", l.Rope)
	put(x, at+"pools", len(s.Pools))
	for i, p := range s.Pools {
		pool := fmt.Sprintf("%spool %d ", at, i)
		put(x, pool+"name", p.Name)
		put(x, pool+"tokens", p.Tokens)
		put(x, pool+"keep", p.Keep)
		put(x, pool+"stores", len(p.Stores))
		for k, store := range p.Stores {
			put(x, fmt.Sprintf("%sstore %d", pool, k), storeNames[store])
		}
	}
}

func (x *encoding) rope(at string, r model.Rope) {
	put(x, at+"theta", r.Theta)
	if !r.Scaled() {
		return
	}
	put(x, at+"factor", r.Factor)
	put(x, at+"beta fast", r.BetaFast)
	put(x, at+"beta slow", r.BetaSlow)
	put(x, at+"original", r.Original)
}

func (e *Engine) encodeWeights() *encoding {
	x := newEncoding("weights")
	put(x, "identity", e.opts.Identity)
	for i, l := range e.layers {
		if id := l.W.Identity; id != (model.Identity{}) {
			put(x, fmt.Sprintf("layer %d", i), id.String())
		}
	}
	return x
}

func (e *Engine) encodeFormats() *encoding {
	x, o := newEncoding("formats"), &e.opts
	if e.picks() {
		put(x, "keys", o.Keys.String())
		put(x, "hadamard", e.cfg.Hadamard)
	}
	if o.Records != model.RecordsV4 {
		put(x, "records", o.Records.String())
	}
	put(x, "quantised activations", o.QuantiseActivations)
	put(x, "invariant", o.Invariant)
	i := 0
	e.pages.EachCache(func(c *pages.Cache) {
		for k, bytes := range c.Parts {
			put(x, fmt.Sprintf("cache %d part %d", i, k), bytes)
		}
		i++
	})
	return x
}
