package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

type runFlags struct {
	model, inputs, outputs, expect, prefix string
	device, profile, variant, keys, output string
	store                                  string // "": the model's own
	draft                                  string // "": the checkpoint's own layers that draft
	layers                                 []int  // nil: those that have inputs
	prefill, chunk                         int    // prefill below 0: all tokens
	quantise                               bool   // inputs of products
	invariant                              bool   // to how tokens are divided
	measure                                bool   // see measured
}

// runLong precedes the flags in --help.
const runLong = `Run reads the attention of a DeepSeek-V4 or V4.1 checkpoint (a folder of config.json and
safetensors; of V4 also a .gguf file, of several parts the first) and runs layers one after
the other, each with its own input. Layers that take entries or picks from others run
together with these.

The file of inputs has an array L<i>.in for each layer i, [tokens, hidden] or [sequences,
tokens, hidden], of float32, float64, float16, or bf16 as uint16: the hidden states that
enter the layer's attention, after the layer's input norm. The first --prefill tokens go
through the layer in steps of --chunk, the others one at a time. The file of outputs gets
L<i>.out of the same shape in float32: the hidden states that leave the attention. A layer
with an indexer also gets L<i>.topk [tokens, index_topk] int32: the compressed entries that
it picked for each token, in ascending order, then -1; so does one that takes another's.
Layers that only predict ahead, mtp.0 and on, have the numbers after those of the model's
own layers.

A layer of a DSpark draft block, of V4.1 or of a V4 that has dspark_block_size, has D.main
[tokens, hidden], what the model makes of its context (main_norm and main_proj of the target
layers' states: after each layer in V4, before it in V4.1), and D.in
[blocks, dspark_block_size, hidden], and gets D.out; for mtp.1 it is D1., and so on. The last
block comes after all of the context, each one before it a token earlier.

With --expect, outputs are compared with recorded ones: arrays of the same names and
prefix, which may be in the file of inputs, too.

  vkmla run --model DIR --inputs DIR/layers.npz --prefix fp8kv. --expect DIR/layers.npz

There is a row for each layer's out and, where it was recorded, topk, or L<i>.picks of the
layer i whose indexer picked: the same, or bytes or booleans [tokens, entries] that are set
for what was picked. ERROR of out is
1 - 2*sum(xy)/sum(x^2+y^2), of all tokens or of the worst one, without those whose picks
differ; of topk it is the share of picks that differ.

Exit status: 0 if all outputs were written and agree, 1 if a layer differs or was not
recorded, 2 if run could not do its work; then the file of outputs is unchanged, unless it
is a pipe or a device, which is written to as outputs come.`

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --model DIR --inputs FILE.npz [--outputs FILE.npz] [--expect FILE.npz]",
		Short: "Run the attention layers of a checkpoint",
		Long:  runLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("prefill") {
				f.prefill = -1
			} else if f.prefill < 0 {
				return fmt.Errorf("run: --prefill is %d, want at least 0", f.prefill)
			}
			if f.chunk < 1 {
				return fmt.Errorf("run: --chunk is %d, want at least 1", f.chunk)
			}
			return runRun(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.model, "model", "", "folder of the checkpoint, or a .gguf file")
	fl.StringVar(&f.draft, "draft", "", "a draft block in a .gguf file of its own")
	fl.StringVar(&f.inputs, "inputs", "", ".npz file with the inputs")
	fl.StringVar(&f.outputs, "outputs", "", ".npz file for the outputs")
	fl.StringVar(&f.expect, "expect", "", ".npz file with recorded outputs to compare with")
	fl.StringVar(&f.prefix, "prefix", "", "what stands before the names of inputs and of recorded outputs, such as fp8kv.")
	fl.IntSliceVar(&f.layers, "layers", nil, "numbers of layers, with commas (default those that have an input)")
	fl.IntVar(&f.prefill, "prefill", 0, "tokens that go in as chunks (default all)")
	fl.IntVar(&f.chunk, "chunk", 128, "most tokens of a chunk")
	fl.StringVar(&f.keys, "keys", "", "how the indexer's keys and queries are stored: fp8 or mxfp4 (default fp8, with --store v41 mxfp4)")
	fl.StringVar(&f.store, "store", "", "in what bytes caches are kept: v4 or v41 (default the model's own)")
	fl.StringVar(&f.variant, "variant", "", "of the attention: base, da, cm or cmb, see info --help (default the best that the device has)")
	deviceFlags(fl, &f.device, &f.profile)
	measureFlag(fl, &f.measure)
	fl.BoolVar(&f.quantise, "quantise-activations", false,
		"give products inputs of as few bits as their weights have: E4M3 for FP8, E2M1 by input_scale for NVFP4")
	fl.BoolVar(&f.invariant, "invariant", false, "the same bits however --prefill and --chunk divide the tokens")
	fl.StringVarP(&f.output, "output", "o", "table", "with --expect: table, csv or json, one object per line")
	cmd.MarkFlagsOneRequired("outputs", "expect")
	for _, name := range []string{"model", "inputs"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // a name that is not a flag
		}
	}
	return cmd
}

func runRun(ctx context.Context, f runFlags, stdout, stderr io.Writer) error {
	r := layerRun{f: f, p: newProgress(stderr)}
	var err error
	if r.store, err = storeOf("run", f.store); err != nil {
		return err
	}
	if r.keys, err = keyFormat("run", f.keys); err != nil {
		return err
	}
	if r.in, err = vectors.OpenArchive(f.inputs); err != nil {
		return fmt.Errorf("run: inputs: %w", err)
	}
	defer r.in.Close()
	if f.expect != "" {
		if r.want, err = openExpectation(f, stdout); err != nil {
			return err
		}
		defer r.want.file.Close()
	}
	if f.layers == nil {
		if f.layers, err = r.all(); err != nil {
			return err
		}
	}
	c, err := model.Open(f.model, model.CheckpointOptions{Layers: f.layers, Drafts: f.draft})
	if err != nil {
		return err
	}
	defer c.Close()
	tellOfImages(stderr, c)
	if widened := c.Widened.String(); widened != "" {
		fmt.Fprintln(stderr, "vkmla:", widened)
	}
	dev, close, err := openDevice(f.device, f.profile)
	if err != nil {
		return err
	}
	defer close()
	if f.measure {
		if err := measured(ctx, dev, stderr); err != nil {
			return err
		}
	}
	r.dev, r.cfg = dev, c.Config
	if r.want != nil {
		r.want.begin(describe.OriginOf(dev.Adapter(), f.profile))
	}
	defer r.p.clear()
	if f.outputs == "" {
		err = r.run(ctx, c.Layers, io.Discard)
	} else {
		err = replaceFile(f.outputs, func(w io.Writer) error { return r.run(ctx, c.Layers, w) })
	}
	if r.p.clear(); err != nil || r.want == nil {
		return err
	}
	return r.want.end()
}

// tellOfImages says that a model also sees images, which this command leaves out.
func tellOfImages(stderr io.Writer, c *model.Checkpoint) {
	if c.Images {
		fmt.Fprintln(stderr, "vkmla: the model's images are left out: only the layers of its text are read")
	}
}

// stem returns what the names of a layer's arrays begin with.
func (f *runFlags) stem(all []model.Layer, layer int) string {
	n := layer - slices.IndexFunc(all, func(l model.Layer) bool { return l.Block })
	switch {
	case !all[layer].Block:
		return fmt.Sprintf("%sL%d.", f.prefix, layer)
	case n == 0:
		return f.prefix + "D."
	}
	return fmt.Sprintf("%sD%d.", f.prefix, n)
}

// input returns the name of a layer's input.
func (r *layerRun) input(layer int) string { return r.f.stem(r.cfg.Layers, layer) + "in" }

// replaceFile writes a file that is there as a whole or not at all, see files.Replace. What is not
// a regular file, such as a pipe or a device, is written to as it is.
func replaceFile(path string, write func(io.Writer) error) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return writeInto(path, write)
	}
	var failed error
	err := files.Replace(path, 0o666, func(w io.Writer) error {
		failed = write(w)
		return failed
	})
	if err != nil && failed == nil {
		return fmt.Errorf("run: outputs: %w", err)
	}
	return err
}

// writeInto writes to what is there, which cannot be replaced. A pipe without a reader is
// an error: waiting for one could not be interrupted.
func writeInto(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("run: outputs: %w", err)
	}
	err = write(f)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// layerRun runs layers from one archive to another.
type layerRun struct {
	f     runFlags
	keys  cache.IndexKeyFormat // 0: as store says
	store model.Records        // 0: the model's own
	dev   *vk.Device
	in    *vectors.Archive
	out   *vectors.ArchiveWriter
	want  *expectation // nil: nothing is expected
	cfg   model.Config
	p     *progress
}

// all returns the layers that have an input.
func (r *layerRun) all() ([]int, error) {
	cfg, err := model.LoadConfig(r.f.model)
	if err != nil {
		return nil, err
	}
	all := cfg.Layers
	switch more, err := model.LoadConfigWithDrafts(r.f.model, r.f.draft); {
	case err == nil:
		all = more.Layers
	case r.f.draft != "" || r.drafting(len(all)):
		return nil, err
	}
	layers, err := r.given(all)
	if err != nil {
		return nil, err
	}
	if layers == nil {
		return nil, fmt.Errorf("run: %s has none of the arrays %s to %s%s", r.f.inputs,
			r.f.stem(all, 0)+"in", r.f.stem(all, len(cfg.Layers)-1)+"in", r.prefixes())
	}
	return layers, nil
}

// given returns the layers that the names of arrays ask for, in order. It refuses an input that no
// layer takes, and half of what a layer of a draft block takes.
func (r *layerRun) given(all []model.Layer) (layers []int, err error) {
	stems := map[string]int{}
	for i := range all {
		stems[r.f.stem(all, i)] = i
	}
	for _, name := range r.in.Names() {
		m := r.layerInput(name)
		if m == nil {
			continue
		}
		stem := strings.TrimSuffix(name, m[2])
		layer, known := stems[stem]
		other := stem + map[string]string{"in": "main", "main": "in"}[m[2]]
		switch n, err := strconv.Atoi(m[1]); {
		case !known && err == nil && n < len(all) && all[n].Block:
			stem = r.f.stem(all, n)
			first := slices.IndexFunc(all, func(l model.Layer) bool { return l.Block })
			return nil, fmt.Errorf("run: inputs: %s: mtp.%d drafts: give %smain and %sin", name, n-first, stem, stem)
		case !known:
			return nil, fmt.Errorf("run: inputs: %s: the model has no such layer, its last one has %sin", name, r.f.stem(all, len(all)-1))
		case all[layer].Block && !r.in.Has(other):
			return nil, fmt.Errorf("run: inputs: %s needs %s", name, other)
		case m[2] == "in":
			layers = append(layers, layer)
		}
	}
	slices.Sort(layers)
	return layers, nil
}

var inputNames = regexp.MustCompile(`^(?:L(\d+)\.|D\d*\.)(in|main)$`)

// layerInput takes the name of an input apart: a layer's number, "" for one of a draft block, and
// what it is of the layer. It is nil for another name.
func (r *layerRun) layerInput(name string) []string {
	rest, prefixed := strings.CutPrefix(name, r.f.prefix)
	m := inputNames.FindStringSubmatch(rest)
	if !prefixed || m == nil || m[1] != "" && m[2] == "main" {
		return nil
	}
	return m
}

// drafting reports whether there are inputs of layers that draft, those after the model's own.
func (r *layerRun) drafting(own int) bool {
	return slices.ContainsFunc(r.in.Names(), func(name string) bool {
		m := r.layerInput(name)
		if m == nil {
			return false
		}
		layer, err := strconv.Atoi(m[1])
		return err != nil || layer >= own // err: a block of drafts, D
	})
}

// prefixes says with which --prefix there would be inputs.
func (r *layerRun) prefixes() string {
	var found []string
	for _, name := range r.in.Names() {
		rest, ok := strings.CutSuffix(name, ".in")
		if at := strings.LastIndex(rest, "L"); ok && at > 0 {
			found = append(found, "--prefix "+rest[:at])
		}
	}
	if found = slices.Compact(found); len(found) == 0 {
		return ""
	}
	return "; it has some with " + strings.Join(found, ", ")
}

// run runs layers and writes their outputs.
func (r *layerRun) run(ctx context.Context, layers []model.LayerWeights, w io.Writer) error {
	r.out = vectors.NewArchiveWriter(w)
	for _, g := range groups(r.cfg.Layers, layers) {
		run := r.group
		if r.cfg.Layers[layers[g[0]].Layer].Block {
			run = r.drafts
		}
		if err := run(ctx, layers[g[0]:g[1]]); err != nil {
			return err
		}
	}
	return r.out.Close()
}

// groups divides layers so that those that take from others are with these: [from, to) of each.
func groups(spec []model.Layer, layers []model.LayerWeights) (list [][2]int) {
	for i, w := range layers {
		list = append(list, [2]int{i, i + 1})
		for _, from := range spec[w.Layer].From() {
			at := slices.IndexFunc(layers[:i], func(w model.LayerWeights) bool { return w.Layer == from })
			for at >= 0 && at < list[len(list)-1][0] {
				n := len(list) - 1
				list[n-1][1] = i + 1
				list = list[:n]
			}
		}
	}
	return list
}

// group runs the layers of a list in one engine. Their weights are on the device only meanwhile.
func (r *layerRun) group(ctx context.Context, list []model.LayerWeights) error {
	var hidden []vectors.Array
	var shape []int
	for i, w := range list {
		x, s, err := r.hidden(r.input(w.Layer))
		if err != nil {
			return err
		}
		if i > 0 && !slices.Equal(s, shape) {
			return fmt.Errorf("run: %s has the shape %v, want %v of %s, which runs with it",
				r.input(w.Layer), s, shape, r.input(list[0].Layer))
		}
		hidden, shape = append(hidden, x), s
	}
	weights, err := r.upload(ctx, list)
	if err != nil {
		return err
	}
	defer model.CloseLayers(weights)
	tokens := shape[len(shape)-1]
	engine, err := pipeline.NewEngine(ctx, r.dev, r.cfg, weights, r.options(tokens))
	if err != nil {
		return err
	}
	defer engine.Close()
	all := make([]pipeline.Appended, len(list))
	for at := 0; at < hidden[0].Len(); at += tokens * r.cfg.Hidden {
		part := make([]vectors.Array, len(list))
		for i, x := range hidden {
			part[i] = x.Part(at, at+tokens*r.cfg.Hidden)
		}
		if err := r.sequence(ctx, engine, list[0].Layer, part, all); err != nil {
			return err
		}
	}
	for i, w := range list {
		from := slices.IndexFunc(list, func(o model.LayerWeights) bool { return o.Layer == r.cfg.Layers[w.Layer].PicksOf })
		if err := r.put(w.Layer, shape, engine.TopK(), all[i].Out, all[max(from, 0)].TopK); err != nil {
			return err
		}
	}
	return nil
}

func (r *layerRun) upload(ctx context.Context, list []model.LayerWeights) ([]*model.DeviceLayer, error) {
	return model.Upload(ctx, r.dev, list, func(done, total int64) {
		r.p.show("layer %d: %d of %d MiB of weights", list[0].Layer, done>>20, total>>20)
	})
}

// put writes and compares the outputs of layer n, of tokens of that shape, and its picks.
func (r *layerRun) put(n int, shape []int, k int, values []float32, picks []int32) error {
	var topk vectors.Array
	out := vectors.FromF32(values, append(slices.Clone(shape), r.cfg.Hidden)...)
	stem := strings.TrimPrefix(r.f.stem(r.cfg.Layers, n), r.f.prefix)
	err := r.out.Add(stem+"out", out)
	if err == nil && r.cfg.Layers[n].Picks != model.PickNone {
		topk = vectors.FromI32(picks, append(slices.Clone(shape), k)...)
		err = r.out.Add(stem+"topk", topk)
	}
	if err == nil && r.want != nil {
		r.p.clear()
		from := strings.TrimPrefix(r.f.stem(r.cfg.Layers, r.cfg.Layers[n].PicksOf), r.f.prefix)
		err = r.want.layer(stem, from, fmt.Sprintf("layer %d, %s", n, r.cfg.Layers[n].Name), out, topk)
	}
	return err
}

// options returns those of an engine for sequences of a number of tokens.
func (r *layerRun) options(tokens int) pipeline.EngineOptions {
	return pipeline.EngineOptions{MaxTokens: tokens, MaxStep: r.f.chunk, KeepTopK: true, Keys: r.keys, Records: r.store,
		QuantiseActivations: r.f.quantise, Variant: r.f.variant, Invariant: r.f.invariant}
}

// sequence runs the tokens of a sequence through the engine's layers, from number n of the model
// on, and appends what comes out to all.
func (r *layerRun) sequence(ctx context.Context, engine *pipeline.Engine, n int, hidden []vectors.Array, all []pipeline.Appended) error {
	session, err := engine.Open()
	if err != nil {
		return err
	}
	tokens := hidden[0].Len() / r.cfg.Hidden
	for at := 0; at < tokens; {
		step := 1
		if prefill := r.f.prefill; prefill < 0 || at < prefill {
			step = min(r.f.chunk, tokens-at)
			if prefill >= 0 {
				step = min(step, prefill-at)
			}
		}
		part := make([][]float32, len(hidden))
		for i, x := range hidden {
			part[i] = float32s(x.Part(at*r.cfg.Hidden, (at+step)*r.cfg.Hidden))
		}
		got, err := session.Append(ctx, part)
		if err != nil {
			return err
		}
		for i, g := range got {
			all[i].Out, all[i].TopK = append(all[i].Out, g.Out...), append(all[i].TopK, g.TopK...)
		}
		at += step
		r.p.show("layer %d: %d of %d tokens", n, at, tokens)
	}
	return session.Close()
}

func float32s(a vectors.Array) []float32 {
	values := make([]float32, 0, a.Len())
	for _, v := range a.Float64s() {
		values = append(values, float32(v))
	}
	return values
}

// hidden reads hidden states, after a look at their type and shape. shape is [tokens], or
// [sequences, tokens].
func (r *layerRun) hidden(name string) (values vectors.Array, shape []int, err error) {
	a, err := r.in.Head(name)
	if err != nil {
		return a, nil, fmt.Errorf("run: inputs: %w", err)
	}
	float := slices.Contains([]vectors.Type{vectors.F32, vectors.F64, vectors.F16, vectors.U16}, a.Type)
	if n := len(a.Shape); !float || n != 2 && n != 3 || a.Shape[n-1] != r.cfg.Hidden || slices.Contains(a.Shape, 0) {
		return a, nil, &vk.ArgumentError{Op: "run: inputs", Arg: name, Got: a.String(),
			Want: fmt.Sprintf("[tokens, %d] or [sequences, tokens, %d] of floats, or of uint16 for bf16", r.cfg.Hidden, r.cfg.Hidden)}
	}
	if values, err = r.in.Array(name); err != nil {
		return a, nil, fmt.Errorf("run: inputs: %w", err)
	}
	return values, values.Shape[:len(values.Shape)-1], nil
}
