package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// layerFlags are the flags of the suites of whole layers.
type layerFlags struct {
	models, kinds, weights []string
	chunk                  int
	invariant              bool
	keys, store            string
	format                 cache.IndexKeyFormat // 0: as the store has them
	records                model.Records        // 0: the model's own
}

func (f *layerFlags) define(fl *pflag.FlagSet, suites []string) {
	fl.StringSliceVar(&f.models, "model", nil, strings.Join(bench.Models, ", ")+
		" (default flash; linear flash,pro; small on a processor); in layer and step with drafts as MODEL+N, N 0 to 5")
	fl.StringSliceVar(&f.kinds, "kind", nil, strings.Join(bench.Kinds, ", ")+" (default all)")
	fl.StringSliceVar(&f.weights, "weights", nil, strings.Join(bench.WeightFormats, ", ")+
		" (default fp8; linear all; in layers the first three)")
	fl.IntVar(&f.chunk, "chunk", 0, "most tokens of a step of a prefill (default 4096; 128 on a processor)")
	fl.StringVar(&f.keys, "keys", "", "format of indexer keys, fp8 or mxfp4 (default fp8, in store v41 mxfp4)")
	fl.StringVar(&f.store, "store", "", "in what bytes caches are kept, v4 or v41 (default the model's own)")
	fl.BoolVar(&f.invariant, "invariant", false, "bits of a token that no batch and no cut of a prompt changes")
	for _, name := range []string{"keys", "store", "invariant"} {
		only(fl, name, suites...)
	}
	for _, name := range []string{"model", "weights"} {
		only(fl, name, append([]string{"linear"}, suites...)...)
	}
	only(fl, "chunk", "layer", "prefill")
	only(fl, "kind", "layer")
}

// settle reads the flags that are names of something.
func (f *layerFlags) settle() error {
	var err error
	if f.format, err = keyFormat("bench", f.keys); err == nil {
		f.records, err = storeOf("bench", f.store)
	}
	return err
}

// keyFormat returns the format of indexer keys of a name, 0 for "".
func keyFormat(op, name string) (cache.IndexKeyFormat, error) {
	if name == "" {
		return 0, nil
	}
	return named(op, "keys", name, "fp8 or mxfp4", cache.IndexKeyFP8, cache.IndexKeyMXFP4)
}

// storeOf returns what records have a name, 0 for "".
func storeOf(op, name string) (model.Records, error) {
	if name == "" {
		return 0, nil
	}
	return named(op, "store", name, "v4 or v41", model.RecordsV4, model.RecordsV41)
}

// named returns the one of some values that has the name that a flag gives.
func named[T fmt.Stringer](op, flag, name, want string, values ...T) (none T, err error) {
	for _, v := range values {
		if v.String() == name {
			return v, nil
		}
	}
	return none, &vk.ArgumentError{Op: op, Arg: flag, Got: fmt.Sprintf("%q", name), Want: want}
}

func (f benchFlags) layerOptions() bench.LayerOptions {
	return bench.LayerOptions{Common: f.Common, Models: f.layer.models, Kinds: f.layer.kinds, Weights: f.layer.weights,
		Batches: f.batches, Contexts: f.contexts,
		Prefill: f.prefill, Chunk: f.layer.chunk, Keys: f.layer.format, Records: f.layer.records,
		Invariant: f.layer.invariant}
}
