package pipeline

import (
	"fmt"

	"github.com/vkmla/vkmla/pipeline/internal/commands"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Between is a place in the commands of a step: in front of a layer, or after the last one.
// EngineOptions.Between is called for every such place, in order. It records with rec how the input
// of the next layer is made from the output of the one before: launches of the caller's kernels
// (vk.Device.Kernel), fills, copies, operations of this module. The recorder derives the barriers.
// Of rec's methods it calls only Dispatch, Fill, Copy and Section.
//
// All layers share one tensor of inputs and one of outputs, which may be read and written. In front
// of layer 0 the input holds what Step.SetInput, or commands that wrote Step.Input, put there.
// Without either, what is recorded there has to overwrite all of it, as Step.Input counts. It may
// make the input from the caller's own memory, such as token ids; the host may write that from
// Engine.Begin to Step.Submit. Results go to such memory, read after Step.Wait, or stay in Output
// for Step.ReadOutput. With Submit, what is in front of layer 0 comes before the step's index lists
// or runs beside them; it waits for no more than the metadata below, if it reads any.
//
// Engine.Prepare, Step.Submit and Step.SubmitLayer call the function whenever a size of step is
// recorded: when it is first needed, once its times are known (see Step.Submit), after caches have
// grown, after SetTiming. The tensors may differ each time, but for
// one size it has to record the same operations in the same order: their times are known by their
// numbers. They count for the budget; a launch that exceeds it alone is divided if its kernel is
// vk.KernelSpec.Divisible. The engine is locked meanwhile: the function must not call methods of
// the engine, its sessions or its steps, nor wait for anyone who does.
//
// What is recorded runs for every step of the size, and after an error it may run again for the
// same step, so memory that it adds to is set in front of layer 0. Memory that it uses stays open
// until the engine is closed, since it may be recorded again at any time.
//
// An error of the function ends the recording. It arrives wrapped, with the place, and Prepare or
// Submit can be tried again.
//
// R below is MaxSessions: sessions go by Session.Number. These tensors are the step's metadata, to
// be read only.
type Between struct {
	Layer  int           // the next layer; Engine.Layers() after the last one
	Tokens int           // T, as Step.Size
	Output tensor.Tensor // of the layer before: [T, Hidden] bf16, or f32 of one rank's weights; zero in front of layer 0
	Input  tensor.Tensor // of the next layer: [T, Hidden] bf16; zero after the last one

	QueryStart tensor.Tensor // [R+1] i32: rows QueryStart[r] to QueryStart[r+1]-1 are session r's
	SeqLens    tensor.Tensor // [R] i32: tokens of session r, the step's included; 0 for one without a chunk
	TokenToReq tensor.Tensor // [T] i32: the session of a row; 0 for padding
	Positions  tensor.Tensor // [T] i32: a token's place in its sequence, from 0; 0 for padding
	IsValid    tensor.Tensor // [T] u8: 1; 0 for padding

	// Draft: the step's tokens are blocks of drafts (Chunk.Draft). It begins with the first layer
	// that drafts, for which all holds that is said of layer 0.
	Draft bool
}

// between is EngineOptions.Between by the places of package commands; nil without it.
func (o *EngineOptions) between() func(rec *vk.Recorder, at commands.Place) error {
	if o.Between == nil {
		return nil
	}
	return func(rec *vk.Recorder, at commands.Place) error { return o.Between(rec, Between(at)) }
}

// checkOrder demands that a layer runs after those that it takes entries, picks or candidates from.
// Where the caller's commands are between layers, each has to run once, in order: those commands
// may add to something. From the first layer on everything begins again.
func (st *Step) checkOrder(layer int) error {
	e, ran := st.e, st.e.now.ran
	if layer >= 0 {
		l := &e.layers[layer]
		for _, i := range []int{l.Entries, l.Picks, l.Blocks} {
			if i >= 0 && i != layer && !ran[i] {
				return badArgument(opSubmit, "layer", layer, "%d first, from which it takes entries, picks or candidates", i)
			}
		}
	}
	if !e.sizes.Chained() || layer <= st.first || ran[layer-1] && !ran[layer] {
		return nil
	}
	next := st.first
	for next < len(ran) && ran[next] {
		next++
	}
	want := fmt.Sprint(st.first)
	if next > st.first && next < len(ran) {
		want = fmt.Sprintf("%d or %d, the next one", st.first, next)
	}
	return badArgument(opSubmit, "layer", layer, "%s", want)
}
