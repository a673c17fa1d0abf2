package pipeline_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// printed is all that a fingerprint is of.
type printed struct {
	cfg     model.Config
	numbers []int // of the engine's layers
	weights model.Identity
	o       pipeline.EngineOptions
}

// engine has layers whose weights have the identity p.weights with the layer's number in the last
// byte.
func (p printed) engine() (*pipeline.Engine, error) {
	var layers []*model.DeviceLayer
	for _, n := range p.numbers {
		id := p.weights
		if id != (model.Identity{}) {
			id[31] = byte(n)
		}
		layers = append(layers, &model.DeviceLayer{Layer: n, Identity: id})
	}
	return pipeline.WithoutDevice(p.cfg, layers, p.o)
}

func (p printed) print(t *testing.T) pipeline.Fingerprint {
	t.Helper()
	return must[*pipeline.Engine](t)(p.engine()).Fingerprint()
}

// copied is a copy that shares no memory.
func (p printed) copied() printed {
	p.cfg.Layers = slices.Clone(p.cfg.Layers)
	for i := range p.cfg.Layers {
		pools := slices.Clone(p.cfg.Layers[i].Pools)
		for k := range pools {
			pools[k].Stores = slices.Clone(pools[k].Stores)
		}
		p.cfg.Layers[i].Pools = pools
	}
	return p
}

func flash() printed {
	return printed{cfg: model.FlashConfig(), numbers: []int{0, 2, 3}, weights: model.Identity{0xab}}
}

const flashConfig = `vkmla configuration 1
hidden 4096
heads 64
q rank 1024
o rank 1024
groups 8
window 128
eps 1e-06
index heads 64
top k 512
layers 3
layer 0 rope theta 10000
layer 0 pools 1
layer 0 pool 0 name "window"
layer 0 pool 0 tokens 1
layer 0 pool 0 keep -2
layer 0 pool 0 stores 1
layer 0 pool 0 store 0 "window"
layer 1 number 2
layer 1 ratio 4
layer 1 overlap yes
layer 1 picks "own"
`

const flashFormats = `vkmla formats 1
keys "fp8"
cache 0 part 0 576
cache 0 part 1 8
cache 1 part 0 576
cache 1 part 1 8
cache 2 part 0 576
cache 2 part 1 8
cache 3 part 0 128
cache 3 part 1 4
cache 4 part 0 8192
cache 5 part 0 2048
cache 6 part 0 576
cache 6 part 1 8
cache 7 part 0 576
cache 7 part 1 8
cache 8 part 0 4096
`

// TestFingerprint pins fingerprints. Snapshots and stores have them: where this test fails, all of
// them become those of another model.
func TestFingerprint(t *testing.T) {
	p := flash()
	config, weights, formats := must[*pipeline.Engine](t)(p.engine()).Encodings()
	assert.True(t, strings.HasPrefix(config, flashConfig), config)
	zeros := strings.Repeat("0", 58)
	assert.Equal(t, "vkmla weights 1\n"+`layer 0 "ab`+zeros+`0000"`+"\n"+`layer 1 "ab`+zeros+`0002"`+"\n"+
		`layer 2 "ab`+zeros+`0003"`+"\n", weights)
	assert.Equal(t, flashFormats, formats)
	assert.Equal(t, "f40afb873669fedb5a4fe6655f9ea1610ff0ea8bbbcc15c6e65736b0d6b927d8", p.print(t).String())

	p = printed{cfg: fakemodel.Config(0), numbers: []int{0}, o: pipeline.EngineOptions{Identity: "experts\n\u00e4"}}
	_, weights, formats = must[*pipeline.Engine](t)(p.engine()).Encodings()
	assert.Equal(t, "vkmla weights 1\nidentity \"experts\\n\\u00e4\"\n", weights)
	assert.Equal(t, "vkmla formats 1\ncache 0 part 0 576\ncache 0 part 1 8\n", formats)
	assert.Equal(t, "7713544e6fe8cb5c468f65b1a87e4cab9892aa310fb589cf0b3feaf92a810c77", p.print(t).String())
}

// without lists the fields that decide neither what sessions' bytes mean nor what is computed, but
// for the order of sums.
var without = map[string]string{
	"Config.MaxPositions": "a limit",
	"Config.Quantization": "weights describe themselves", "Config.WeightBlock": "weights describe themselves",
	"Layer.Draft":    "where its tensors are",
	"LayerSpec.Name": "a word",
	"PoolSpec.Page":  "snapshots have slots",

	"EngineOptions.MaxTokens": "a limit", "EngineOptions.MaxSessions": "a limit", "EngineOptions.MaxStep": "a limit",
	"EngineOptions.CacheBytes": "memory", "EngineOptions.MaxCacheBytes": "memory",
	"EngineOptions.Rewind":       "Restore leaves out what is too much",
	"EngineOptions.Variant":      "the order of sums",
	"EngineOptions.KeepTopK":     "what a step tells",
	"EngineOptions.LayerByLayer": "how a step is submitted",
	"EngineOptions.Between":      "the caller's, see Identity", "EngineOptions.Logger": "what a server tells",
}

// eachField calls visit for the fields of a struct, and of those in it, with names as in without.
func eachField(v reflect.Value, visit func(name string, field reflect.Value)) {
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Name()+"."+v.Type().Field(i).Name
		switch {
		case f.Kind() == reflect.Struct:
			eachField(f, visit)
			continue
		case f.Kind() == reflect.Slice:
			for k := range f.Len() {
				if e := f.Index(k); e.Kind() == reflect.Struct {
					eachField(e, visit)
				} else {
					visit(name, e)
				}
			}
			continue
		}
		visit(name, f)
	}
}

// change gives a field another value.
func change(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(!f.Bool())
	case reflect.Int, reflect.Int64:
		f.SetInt(f.Int() + 1)
	case reflect.Uint64:
		f.SetUint(f.Uint() + 1)
	case reflect.Uint8: // Picks, Store
		f.SetUint((f.Uint() + 1) % 3)
	case reflect.Float32, reflect.Float64:
		f.SetFloat(f.Float()*1.5 + 1)
	case reflect.String:
		f.SetString(f.String() + "x")
	case reflect.Pointer: // Logger
		f.Set(reflect.New(f.Type().Elem()))
	case reflect.Func:
		f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { return nil }))
	default:
		t.Fatalf("%s: no other %s is known", name, f.Kind())
	}
}

// TestFingerprintFields changes every field of configurations and options. A new one fails the test
// until it is part of the fingerprint, or of the list of those that are not.
func TestFingerprintFields(t *testing.T) {
	base := printed{cfg: otherKinds(), weights: model.Identity{1}, o: pipeline.EngineOptions{MaxTokens: 100, Keys: cache.IndexKeyFP8}}
	base.cfg.Layers = append(base.cfg.Layers, model.V4Layers(0, 4, 128)...)
	for i := range base.cfg.Layers {
		base.numbers = append(base.numbers, i)
		if l := &base.cfg.Layers[i]; i >= 5 {
			l.EntriesOf, l.PicksOf = i, i
		}
	}
	base.cfg.Records = model.RecordsV41
	l := base.cfg.Layers // with candidates, and a block of drafts
	l[1].Candidates, l[2].Candidates, l[2].CandidatesOf, l[5].Block = model.CandidatesMade, model.CandidatesUsed, 1, true
	want, places, counted := base.print(t), map[string]int{}, map[string]int{}
	root := func(p *printed, k int) reflect.Value {
		return []reflect.Value{reflect.ValueOf(&p.cfg).Elem(), reflect.ValueOf(&p.o).Elem()}[k]
	}
	for k := range 2 {
		n := 0
		eachField(root(&base, k), func(string, reflect.Value) { n++ })
		for i := range n {
			p, at := base.copied(), 0
			eachField(root(&p, k), func(name string, f reflect.Value) {
				if at++; at != i+1 {
					return
				}
				places[name]++
				change(t, name, f)
				e, err := p.engine()
				if err == nil && e.Fingerprint() != want { // there is no such layout, where there is an error
					counted[name]++
				}
			})
		}
	}
	require.Greater(t, len(places), 40)
	for name := range places {
		if why := without[name]; why != "" {
			assert.Zero(t, counted[name], "%s alters the fingerprint: %s", name, why)
		} else {
			assert.Positive(t, counted[name], "%s does not alter the fingerprint", name)
		}
	}
	for name := range without {
		assert.Positive(t, places[name], "%s is not there", name)
	}
}

// TestFingerprintParts says which part differs, and that layers that an engine does not run decide
// nothing.
func TestFingerprintParts(t *testing.T) {
	base := flash()
	want := base.print(t)
	same := func(name string, change func(p *printed)) {
		t.Helper()
		p := base.copied()
		change(&p)
		assert.Equal(t, want, p.print(t), name)
	}
	same("with drafts", func(p *printed) {
		draft := model.V4Layers(0)[0]
		draft.Draft = true
		p.cfg.Layers = append(p.cfg.Layers, draft)
	})
	same("another layer of another kind", func(p *printed) { p.cfg.Layers[1] = model.V4Layers(0, 4)[1] })
	same("fewer layers", func(p *printed) { p.cfg.Layers = p.cfg.Layers[:4] })
	same("what YaRN does not use", func(p *printed) { p.cfg.Main = model.Rope{Theta: 10000, Original: 5, BetaFast: 3} })

	part := func(name string, config, weights, formats bool, change func(p *printed)) {
		t.Helper()
		p := base.copied()
		change(&p)
		got := p.print(t)
		assert.Equal(t, []bool{config, weights, formats},
			[]bool{got.Config != want.Config, got.Weights != want.Weights, got.Formats != want.Formats}, name)
		assert.NotEqual(t, want.String(), got.String(), name)
	}
	part("weights", false, true, false, func(p *printed) { p.weights[0]++ })
	part("weights that say nothing", false, true, false, func(p *printed) { p.weights = model.Identity{} })
	part("identity", false, true, false, func(p *printed) { p.o.Identity = "1" })
	part("keys", false, false, true, func(p *printed) { p.o.Keys = cache.IndexKeyMXFP4 })
	part("invariant", false, false, true, func(p *printed) { p.o.Invariant = true })
	part("rank", true, false, false, func(p *printed) { p.cfg.QRank++ })
	part("layers", true, true, true, func(p *printed) { p.numbers = p.numbers[:2] })
	part("order", true, true, true, func(p *printed) { slices.Reverse(p.numbers) })

	base.numbers = []int{0, 1} // no indexer, and no compressed entries
	want = base.print(t)
	same("an indexer that is not there", func(p *printed) {
		p.cfg.TopK, p.cfg.IndexHeads, p.cfg.Compress.Theta = 7, 3, 5
		p.o.Keys, p.cfg.Hadamard = cache.IndexKeyMXFP4, true
	})
}
