package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/vectors"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

type runFlags struct {
	model, inputs, outputs, prefix, device, path string
	layers                                       []int // nil: those that have inputs
	prefill, chunk                               int   // prefill below 0: all tokens
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --model DIR --inputs FILE.npz --outputs FILE.npz",
		Short: "Run the attention layers of a checkpoint",
		Long: `Run reads the attention of a DeepSeek-V4 checkpoint (config.json and safetensors)
and runs layers, one after the other, each with an input of its own.

The file of inputs has an array L<i>.in for each layer i: [tokens, hidden], float32
or bf16 as uint16, the hidden states that enter the layer's attention, after the
layer's input norm. The first --prefill tokens of each go through the layer in steps
of --chunk, the others one at a time. The file of outputs gets L<i>.out [tokens,
hidden] float32, the hidden states that leave the attention, and for a layer with an
indexer L<i>.topk [tokens, index_topk] int32, the compressed entries that it picked for
each token, in ascending order and then -1.

Exit status: 0 if all outputs were written, 2 otherwise; then the file of outputs is
as it was before, unless it is a pipe or a device, which is written to meanwhile.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("prefill") {
				f.prefill = -1
			} else if f.prefill < 0 {
				return fmt.Errorf("run: --prefill is %d, want at least 0", f.prefill)
			}
			if f.chunk < 1 {
				return fmt.Errorf("run: --chunk is %d, want at least 1", f.chunk)
			}
			return runRun(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.model, "model", "", "folder of the checkpoint")
	fl.StringVar(&f.inputs, "inputs", "", ".npz file with the inputs")
	fl.StringVar(&f.outputs, "outputs", "", ".npz file for the outputs")
	fl.StringVar(&f.prefix, "prefix", "", "what stands before the names of inputs, such as fp8kv.")
	fl.IntSliceVar(&f.layers, "layers", nil, "numbers of layers, with commas (default those that have an input)")
	fl.IntVar(&f.prefill, "prefill", 0, "tokens that go in as chunks (default all)")
	fl.IntVar(&f.chunk, "chunk", 128, "most tokens of a chunk")
	fl.StringVar(&f.path, "output-path", "bf16", "what wo_a multiplies with: bf16, fp8 or fp8-packed (for FP8 weights)")
	fl.StringVar(&f.device, "device", "", "device: index, part of its name, or UUID (default the first GPU, else the first CPU)")
	for _, name := range []string{"model", "inputs", "outputs"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // a name that is not a flag
		}
	}
	return cmd
}

func runRun(ctx context.Context, f runFlags, stderr io.Writer) error {
	path, err := outputPath("run", f.path)
	if err != nil {
		return err
	}
	in, err := vectors.OpenArchive(f.inputs)
	if err != nil {
		return fmt.Errorf("run: inputs: %w", err)
	}
	defer in.Close()
	if f.layers == nil {
		cfg, err := pipeline.LoadConfig(f.model)
		if err != nil {
			return err
		}
		for i := range cfg.Layers() {
			if in.Has(f.input(i)) {
				f.layers = append(f.layers, i)
			}
		}
		if f.layers == nil {
			return fmt.Errorf("run: %s has none of the arrays %s to %s", f.inputs, f.input(0), f.input(cfg.Layers()-1))
		}
	}
	c, err := pipeline.OpenCheckpoint(f.model, pipeline.CheckpointOptions{Layers: f.layers})
	if err != nil {
		return err
	}
	defer c.Close()
	dev, close, err := openDevice(f.device)
	if err != nil {
		return err
	}
	defer close()
	return replaceFile(f.outputs, func(w io.Writer) error {
		r := layerRun{f: f, path: path, dev: dev, in: in, out: vectors.NewArchiveWriter(w), cfg: c.Config, p: newProgress(stderr)}
		defer r.p.clear()
		for i := range c.Layers {
			if err := r.layer(ctx, c.Layers[i:i+1]); err != nil {
				return err
			}
		}
		return r.out.Close()
	})
}

// input is the name of a layer's input.
func (f *runFlags) input(layer int) string { return fmt.Sprintf("%sL%d.in", f.prefix, layer) }

// replaceFile writes a file that is there as a whole or not at all, with the mode of the
// one that it replaces, which may be at the end of links. What is not a regular file, such
// as a pipe or a device, is written to as it is.
func replaceFile(path string, write func(io.Writer) error) error {
	st, err := os.Stat(path)
	switch {
	case err == nil && !st.Mode().IsRegular():
		return writeInto(path, write)
	case err == nil:
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return fmt.Errorf("run: outputs: %w", err)
		}
	default:
		// A link to nothing: the file would have to be made where it leads.
		if _, e := os.Lstat(path); e == nil || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("run: outputs: %w", err)
		}
	}
	name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%x", filepath.Base(path), rand.Uint64()))
	tmp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("run: outputs: %w", err)
	}
	defer os.Remove(name) // does nothing after the file got its name
	err = write(tmp)
	if err == nil && st != nil {
		err = tmp.Chmod(st.Mode().Perm())
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := os.Rename(name, path); err != nil {
		return fmt.Errorf("run: outputs: %w", err)
	}
	return nil
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
	f    runFlags
	path pipeline.OutputPath
	dev  *vk.Device
	in   *vectors.Archive
	out  *vectors.ArchiveWriter
	cfg  pipeline.Config
	p    *progress
}

// layer runs the one layer of the list. Its weights are on the device only meanwhile.
func (r *layerRun) layer(ctx context.Context, list []pipeline.LayerWeights) error {
	n := list[0].Layer
	hidden, tokens, err := r.hidden(n)
	if err != nil {
		return err
	}
	weights, err := pipeline.UploadLayers(ctx, r.dev, list, func(done, total int64) {
		r.p.show("layer %d: %d of %d MiB of weights", n, done>>20, total>>20)
	})
	if err != nil {
		return err
	}
	defer weights[0].Close()
	engine, err := pipeline.NewEngine(ctx, r.dev, r.cfg, weights, pipeline.EngineOptions{MaxTokens: tokens, MaxStep: r.f.chunk, KeepTopK: true, Output: r.path})
	if err != nil {
		return err
	}
	defer engine.Close()
	session, err := engine.Open()
	if err != nil {
		return err
	}
	var all pipeline.Appended
	for at := 0; at < tokens; {
		step := 1
		if prefill := r.f.prefill; prefill < 0 || at < prefill {
			step = min(r.f.chunk, tokens-at)
			if prefill >= 0 {
				step = min(step, prefill-at)
			}
		}
		got, err := session.Append(ctx, [][]float32{hidden[at*r.cfg.Hidden : (at+step)*r.cfg.Hidden]})
		if err != nil {
			return err
		}
		all.Out, all.TopK = append(all.Out, got[0].Out...), append(all.TopK, got[0].TopK...)
		at += step
		r.p.show("layer %d: %d of %d tokens", n, at, tokens)
	}
	err = r.out.Add(fmt.Sprintf("L%d.out", n), vectors.FromF32(all.Out, tokens, r.cfg.Hidden))
	if err == nil && list[0].Ratio == pipeline.RatioC4A {
		err = r.out.Add(fmt.Sprintf("L%d.topk", n), vectors.FromI32(all.TopK, tokens, engine.TopK()))
	}
	return err
}

// hidden reads the input of a layer.
func (r *layerRun) hidden(layer int) (values []float32, tokens int, err error) {
	name := r.f.input(layer)
	a, err := r.in.Array(name)
	if err != nil {
		return nil, 0, fmt.Errorf("run: inputs: %w", err)
	}
	switch a.Type {
	case vectors.F32:
		values = a.F32()
	case vectors.U16:
		values = a.BF16()
	}
	if values == nil || len(a.Shape) != 2 || a.Shape[0] < 1 || a.Shape[1] != r.cfg.Hidden {
		return nil, 0, &vk.ArgumentError{Op: "run: inputs", Arg: name, Got: a.String(),
			Want: fmt.Sprintf("[tokens, %d] float32, or uint16 for bf16", r.cfg.Hidden)}
	}
	return values, a.Shape[0], nil
}
