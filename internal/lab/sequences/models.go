package sequences

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Model says whose kinds of layers scenarios run, and in what records.
type Model int

// Models.
const (
	V4           Model = iota // DeepSeek-V4
	V41                       // DeepSeek-V4.1 in its own records
	V41InV4Store              // DeepSeek-V4.1 in those of DeepSeek-V4
)

// String returns "v4", "v41" or "v41 in v4 records".
func (m Model) String() string { return models[m].name }

// modelRow is a Model.
type modelRow struct {
	name    string
	config  func() model.Config
	records model.Records
	window  int // of small scripts; no multiple of a page
	small   int // tokens of a small script
	within  bounds
}

// bounds bound the distance of a token's output from what it wants, by the length of the
// latter: of all numbers, and of those that positions turn.
type bounds struct{ all, turned float64 }

// Records of DeepSeek-V4 keep numbers that are not turned as E4M3, which rounds by 1/16 at most and
// by 0.026 in the mean; turned ones as bf16, which is rounded to four times on the way, by 2^-9 at
// most and half of that in the mean. The angle of a pair is seen in these alone: a window's layer
// that turned with YaRN would be off by 0.009 at a distance of 71.
//
// Of DeepSeek-V4.1's own records, script.found knows the rounding. What is left is bf16, which
// takes a number near the middle of two codes to the other one now and then: 0.0201 and 0.0285 at
// most in 560 tokens.
var v4Within, v41Within = bounds{0.06, 0.0085}, bounds{0.03, 0.045}

var models = []modelRow{
	V4:           {"v4", v4Config, model.RecordsV4, 72, 1040, v4Within},
	V41:          {"v41", v41Config, model.RecordsV41, 40, 320, v41Within},
	V41InV4Store: {"v41 in v4 records", v41Config, model.RecordsV4, 40, 320, v4Within},
}

// v4Config has a layer of each kind, the draft block's among them.
func v4Config() model.Config { return fakemodel.Config(0, 4, 128).WithDrafts(1) }

// v41Config has a layer of each role. From 25 tokens on not all entries are candidates.
func v41Config() model.Config {
	c := fakemodel.V41()
	c.TopK = 16
	s := model.Sources{Entries: []int{1, 3}, Picks: []int{1, 3, 5}, Candidates: 3}
	c.Layers = model.V41Layers(s, 0, 2, 2, 1, 1, 1, 1)
	return c.WithDrafts(1)
}

// config returns the model's configuration in the sizes that weights are made for.
func (m Model) config(size Size) model.Config {
	c := models[m].config()
	c.Hidden, c.QRank, c.ORank, c.Heads = hidden, features, features, 2
	if c.Window = 128; size == Small {
		c.Window = models[m].window
	}
	return c
}

// record returns how a kind of rows is kept, if that changes all of their numbers.
func (m Model) record(s model.Store) (r cache.Record, all bool) {
	r = models[m].records.Record(s)
	return r, r != cache.RecordV4
}
