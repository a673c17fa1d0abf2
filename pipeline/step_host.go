package pipeline

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opInput  = "pipeline: set input"
	opOutput = "pipeline: read output"
	opPicks  = "pipeline: read top-k"
	opAppend = "pipeline: append"
)

// SetInput gives a layer the hidden states of a chunk's tokens from host memory: values
// [n, Hidden], rounded to bf16. If one input of a step is set like this, all have to be, each
// before its layer is submitted. Outputs and what is kept are then copied back for ReadOutput and
// ReadTopK. With EngineOptions.LayerByLayer a layer has to run before the next one's
// inputs are set. With EngineOptions.Between only layer 0 has inputs.
//
// Errors: vk.ErrArgument for an unknown layer or chunk, a wrong number of values, or a later layer
// with Between; vk.ErrBusy while a layer is with the device; vk.ErrClosed, vk.ErrDeviceLost; those
// of vk.Device.NewBuffer, the first time for a size.
func (st *Step) SetInput(layer, chunk int, values []float32) error {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	to, err := st.hostInput(layer, chunk, len(values))
	if err == nil {
		numfmt.BF16EncodeSlice(to, values)
	}
	return err
}

// HostInput is SetInput without a copy: where in host memory the hidden states of a chunk's tokens
// go for a layer, [n, Hidden] bits of bf16. The caller writes them, all of them, until the layer is
// submitted; until then they are whatever was there. The memory is mapped: it may be slow to read,
// and to write out of order. It must not be used once the layer was submitted or the step has
// ended, nor after Engine.Close.
//
// Errors: those of SetInput.
func (st *Step) HostInput(layer, chunk int) ([]uint16, error) {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	return st.hostInput(layer, chunk, -1)
}

// hostInput returns the memory for inputs; n is the number of values that the caller has, negative
// for any.
func (st *Step) hostInput(layer, chunk, n int) ([]uint16, error) {
	e, now := st.e, &st.e.now
	x, err := st.chunk(opInput, layer, chunk, n, e.cfg.Hidden)
	if err != nil {
		return nil, err
	}
	if first, end := e.sizes.Given(st.draft); layer >= end {
		return nil, badArgument(opInput, "layer", layer, "%d: EngineOptions.Between makes the inputs of the others", first)
	}
	if !st.host {
		if err := st.b.OpenHost(); err != nil {
			return nil, fmt.Errorf("%s: %w", opInput, e.note(err))
		}
		st.host = true
		clear(now.set)
	}
	if e.opts.LayerByLayer && st.layer != layer { // this layer's inputs replace the other's
		clear(now.set[st.layer*e.opts.MaxSessions:][:len(now.parts)])
	}
	st.layer = layer
	now.set[layer*e.opts.MaxSessions+chunk] = true
	return part[uint16](st.b.HostIn(layer), x, e.cfg.Hidden), nil
}

// part is the rows of a chunk in mapped memory.
func part[E uint16 | float32 | int32](t tensor.Tensor, x commands.Part, width int) []E {
	all := t.Mapped()
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(all))), len(all)/t.DType.Size())[x.First*width:][:x.N*width]
}

// ReadOutput copies a layer's result for a chunk's tokens to values [n, Hidden], after Wait and
// before the step ends. With EngineOptions.LayerByLayer or Between it has to be read before the
// next layer runs, so after Submit only the last one's is there; if Between writes to Output, it
// is what Between left there.
//
// Errors: vk.ErrArgument for an unknown layer or chunk, a wrong number of values, or a result that
// is not in host memory; vk.ErrBusy while a layer is with the device; vk.ErrClosed,
// vk.ErrDeviceLost.
func (st *Step) ReadOutput(layer, chunk int, values []float32) error {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	x, err := st.hostOutput(layer, chunk, len(values))
	if err != nil {
		return err
	}
	if t, width := st.b.HostOut(layer), st.e.cfg.Hidden; t.DType == tensor.F32 {
		copy(values, part[float32](t, x, width))
	} else {
		numfmt.BF16DecodeSlice(values, part[uint16](t, x, width))
	}
	return nil
}

// HostOutput is ReadOutput without a copy, for outputs of bf16: a layer's result for a chunk's
// tokens, [n, Hidden] bits in mapped host memory, which may be slow to read more than once. It must
// not be used once another layer was submitted or the step has ended, nor after Engine.Close.
//
// Errors: those of ReadOutput; vk.ErrArgument for outputs of f32, which one rank's weights give.
func (st *Step) HostOutput(layer, chunk int) ([]uint16, error) {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	x, err := st.hostOutput(layer, chunk, -1)
	if err != nil {
		return nil, err
	}
	t := st.b.HostOut(layer)
	if t.DType != tensor.BF16 {
		return nil, badArgument(opOutput, "layer", "f32 partial sums of one rank's weights", "outputs of bf16")
	}
	return part[uint16](t, x, st.e.cfg.Hidden), nil
}

// hostOutput checks that a layer's result can be read.
func (st *Step) hostOutput(layer, chunk, n int) (x commands.Part, err error) {
	if x, err = st.chunk(opOutput, layer, chunk, n, st.e.cfg.Hidden); err == nil {
		err = st.readable(opOutput, layer, st.e.sizes.OneTensor())
	}
	if err == nil && !st.e.sizes.Chained() {
		err = st.gives(opOutput, layer)
	}
	return x, err
}

// ReadTopK is ReadOutput for the picks of a layer with an indexer: values [n, TopK]. It needs
// EngineOptions.KeepTopK. With Between, the picks of all layers can be read after Submit.
//
// Errors: those of ReadOutput; vk.ErrArgument without KeepTopK, and for a layer without
// an indexer.
func (st *Step) ReadTopK(layer, chunk int, values []int32) error {
	st.e.mu.Lock()
	defer st.e.mu.Unlock()
	width := st.e.TopK()
	x, err := st.chunk(opPicks, layer, chunk, len(values), width)
	if err != nil {
		return err
	}
	if !st.e.opts.KeepTopK {
		return badArgument(opPicks, "EngineOptions.KeepTopK", "false", "true, for picks to be kept")
	}
	if spec := st.e.layers[layer].Spec; spec.Picks != model.PickOwn {
		return badArgument(opPicks, "layer", fmt.Sprintf("%d, of kind %s", layer, spec.Name), "one with an indexer")
	}
	if err := st.readable(opPicks, layer, st.e.opts.LayerByLayer); err != nil {
		return err
	}
	copy(values, part[int32](st.b.HostTopK(layer), x, width))
	return nil
}

// chunk checks the arguments of a call about a chunk, with n values unless n is negative.
func (st *Step) chunk(op string, layer, chunk, n, width int) (x commands.Part, err error) {
	parts := st.e.now.parts
	if err = st.active(); err == nil && st.flying != nil {
		err = vk.ErrBusy
	}
	if err != nil {
		return x, fmt.Errorf("%s: %w", op, err)
	}
	bad := func(arg string, got, first, end int) error {
		return badArgument(op, arg, got, "%d to %d", first, end-1)
	}
	switch {
	case layer < st.first || layer >= len(st.e.layers):
		return x, bad("layer", layer, st.first, len(st.e.layers))
	case chunk < 0 || chunk >= len(parts):
		return x, bad("chunk", chunk, 0, len(parts))
	case n >= 0 && n != parts[chunk].N*width:
		return x, badArgument(op, "values", n, "%d for each of %d tokens", width, parts[chunk].N)
	}
	return parts[chunk], nil
}

// readable demands that a layer's results are in host memory: it ran with inputs from there and,
// where layers share a tensor of those results, no layer ran since.
func (st *Step) readable(op string, layer int, shared bool) error {
	if st.e.now.shown[layer] && (!shared || st.latest == layer) {
		return nil
	}
	return badArgument(op, "layer", fmt.Sprintf("%d, whose result is not in host memory", layer),
		"one that just ran with inputs from there")
}

// gives demands a layer that gives something in the step.
func (st *Step) gives(op string, layer int) error {
	if spec := st.e.layers[layer].Spec; spec.Block && !st.draft {
		got := fmt.Sprintf("%d, of kind %s, for tokens that are no block", layer, spec.Name)
		return badArgument(op, "layer", got, "Chunk.Draft, or another layer")
	}
	return nil
}

// Appended is the result of a layer for n tokens.
type Appended struct {
	Out  []float32 // [n, Hidden]; nil where a layer gives nothing, see Chunk
	TopK []int32   // [n, TopK]: the indexer's picks, ascending, then -1; nil without an indexer or EngineOptions.KeepTopK
}

// Append runs the next n tokens of a session through all layers, with hidden states in host
// memory: [n, Hidden] values for each layer. It takes them in steps of MaxStep tokens and a
// smaller last one, commits each, and returns the results of each layer. With
// EngineOptions.Between only layer 0 has inputs, and only the last layer has outputs. How tokens
// are divided among calls matters only for the rounding of sums.
//
// Errors: vk.ErrArgument for hidden states of other shapes; those of Begin, Step.SetInput,
// Step.Submit and Step.Wait. Steps before the failing one are done: Len counts their tokens, the
// result holds theirs, and the rest may be appended again.
func (s *Session) Append(ctx context.Context, hidden [][]float32) ([]Appended, error) {
	e, width := s.e, s.e.cfg.Hidden
	e.mu.Lock()
	err := s.usable() // without tokens there is no step to find out
	e.mu.Unlock()
	if err == nil && ctx == nil {
		err = alive(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opAppend, err)
	}
	_, given := e.sizes.Given(false)
	bad := func(got any) error {
		return badArgument(opAppend, "hidden", got, "as many times %d values for each of %d layers", width, given)
	}
	if len(hidden) != given {
		return nil, bad(fmt.Sprintf("%d layers", len(hidden)))
	}
	for i, h := range hidden {
		if len(h)%width != 0 || len(h) != len(hidden[0]) {
			return nil, bad(fmt.Sprintf("%d values for layer %d", len(h), i))
		}
	}
	n := len(hidden[0]) / width
	if n > e.opts.MaxTokens-s.Len() { // checked here, so that it is all or nothing
		return nil, fmt.Errorf("%s: %w: %d tokens and %d more, of at most %d", opAppend, ErrSequenceFull, s.Len(), n, e.opts.MaxTokens)
	}
	res := make([]Appended, len(e.layers))
	for at := 0; at < n; {
		m := min(e.opts.MaxStep, n-at)
		if err := s.appendStep(ctx, hidden, at, m, res); err != nil {
			for i := range res { // layers may have run before the step failed
				res[i].Out = res[i].Out[:min(at*width, len(res[i].Out))]
				res[i].TopK = res[i].TopK[:min(at*e.TopK(), len(res[i].TopK))]
			}
			return res, fmt.Errorf("%s: %w", opAppend, err)
		}
		at += m
	}
	return res, nil
}

// appendStep runs tokens at to at+n-1 of hidden.
func (s *Session) appendStep(ctx context.Context, hidden [][]float32, at, n int, res []Appended) error {
	e, width := s.e, s.e.cfg.Hidden
	st, err := e.Begin(ctx, Chunk{Session: s, Tokens: n})
	if err != nil {
		return err
	}
	set := func(i int) error { return st.SetInput(i, 0, hidden[i][at*width:][:n*width]) }
	last := len(e.layers) - 1
	read := func(i int) (err error) {
		r, gives := &res[i], st.gives(opOutput, i) == nil
		if !e.sizes.Chained() && gives || e.sizes.Chained() && i == last {
			r.Out = append(r.Out, make([]float32, n*width)...)
			err = st.ReadOutput(i, 0, r.Out[at*width:])
		}
		if err == nil && !st.TopK(i).IsZero() {
			r.TopK = append(r.TopK, make([]int32, n*e.TopK())...)
			err = st.ReadTopK(i, 0, r.TopK[at*e.TopK():])
		}
		return err
	}
	each := func(layers int, f func(int) error) {
		for i := 0; i < layers && err == nil; i++ {
			err = f(i)
		}
	}
	if e.opts.LayerByLayer {
		each(len(e.layers), func(i int) error {
			if err := set(i); err != nil {
				return err
			}
			if err := st.RunLayer(ctx, i); err != nil {
				return err
			}
			return read(i)
		})
	} else {
		if each(len(hidden), set); err == nil {
			err = st.Run(ctx)
		}
		each(len(e.layers), read)
	}
	if err != nil {
		return errors.Join(err, st.Abort())
	}
	return st.Commit()
}
