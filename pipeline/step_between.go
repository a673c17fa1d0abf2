package pipeline

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const opRecordAgain = "pipeline: record again"

// Between is a place in the commands of a step: in front of a layer, or behind the last
// one. EngineOptions.Between is called for every such place, in their order, and records
// with rec what makes the input of the next layer of the output of the one before:
// launches of the caller's kernels (vk.Device.Kernel), fills, copies, operations of
// this module. The recorder derives the barriers. Of rec's methods it calls only
// Dispatch, Fill, Copy, Section and Separate.
//
// All layers share one tensor of inputs and one of outputs, which may be read and
// written. In front of layer 0 the input holds what Step.SetInput, or commands that
// wrote Step.Input, put there; it may as well be made of memory of the caller's, such as
// token ids. Results go to such memory too, or stay in Output for Step.ReadOutput. The
// host may write it from Engine.Begin to Step.Submit, and read it after Step.Wait. With
// Submit, what is in front of layer 0 comes before the step's index lists, or runs beside
// them: nothing of it waits for more than the metadata below, if it reads any.
//
// The function is called by Engine.Prepare, Step.Submit and Step.SubmitLayer, for each
// size of step when that is recorded: when it is first needed, once its times are known
// (EngineOptions.SubmitBudget), after caches have grown, after SetTiming and RecordAgain.
// The tensors may be others each time. For one size it has to record the same operations
// in the same order, as their times are known by their numbers. They count for the
// budget as all others do; a launch that takes longer alone is divided if its kernel is
// vk.KernelSpec.Divisible. The engine is locked meanwhile: the function must not call
// methods of the engine, its sessions or its steps, nor wait for anyone who does.
//
// What is recorded runs for every step of the size, and after an error it may run again
// for the same one: what it adds to has to be set in front of layer 0. Memory that it
// uses has to stay open until the engine is closed, for it may be recorded anew at
// any time; to use other memory, RecordAgain.
//
// An error of the function ends the recording. It arrives wrapped, with the place, and
// Prepare or Submit can be tried again.
//
// R below is MaxSessions: sessions go by Session.Number. These tensors are the step's
// metadata, to be read only.
type Between struct {
	Layer  int           // that comes next; Engine.Layers() behind the last one
	Tokens int           // T, as Step.Size
	Output tensor.Tensor // what the layer before gave: [T, Hidden] bf16, or f32 with Ranks; zero in front of layer 0
	Input  tensor.Tensor // what the next layer takes: [T, Hidden] bf16; zero behind the last one

	QueryStart tensor.Tensor // [R+1] i32: rows QueryStart[r] to QueryStart[r+1]-1 are session r's
	SeqLens    tensor.Tensor // [R] i32: tokens of session r, the step's included; 0 of one that is not in the step
	TokenToReq tensor.Tensor // [T] i32: the session of a row; 0 for padding
	Positions  tensor.Tensor // [T] i32: a token's place in its sequence, from 0; 0 for padding
	IsValid    tensor.Tensor // [T] u8: 1; 0 for padding
}

// chained reports whether what enters a layer is made from the output of the one before by
// commands of the caller's.
func (e *Engine) chained() bool { return e.opts.Between != nil }

// oneTensor reports whether all layers have one tensor of inputs and one of outputs: those
// of another layer are not needed any more when a layer runs.
func (e *Engine) oneTensor() bool { return e.opts.LayerByLayer || e.chained() }

// given is how many layers, from the first on, get their inputs from outside.
func (e *Engine) given() int {
	if e.chained() {
		return 1
	}
	return len(e.layers)
}

// recordBetween records what the caller has in front of a layer, or behind the last one.
func (b *bucket) recordBetween(rec *vk.Recorder, layer int) error {
	e, in := b.e, &b.device
	if !e.chained() {
		return nil
	}
	at := Between{Layer: layer, Tokens: b.tokens, QueryStart: in.queryStart, SeqLens: in.seqLens,
		TokenToReq: in.request, Positions: in.positions, IsValid: in.valid}
	where := fmt.Sprintf("in front of layer %d", layer)
	if layer > 0 {
		at.Output = b.out.of(layer - 1)
	}
	if layer < len(e.layers) {
		at.Input = b.in.of(layer)
	} else {
		where = fmt.Sprintf("behind layer %d", layer-1)
	}
	rec.Section("between")
	if err := e.opts.Between(rec, at); err != nil {
		return fmt.Errorf("EngineOptions.Between, %s: %w", where, err)
	}
	return nil
}

// checkOrder demands that layers that are submitted one by one come in their order where
// the caller's commands are between them, each once: those commands may add to something.
// From layer 0 on everything begins again.
func (st *Step) checkOrder(layer int) error {
	e := st.e
	if !e.chained() || layer <= 0 || e.ran[layer-1] && !e.ran[layer] {
		return nil
	}
	next := 0
	for next < len(e.ran) && e.ran[next] {
		next++
	}
	want := "0"
	if next > 0 && next < len(e.ran) {
		want = fmt.Sprintf("0 or %d, the next one", next)
	}
	return &vk.ArgumentError{Op: opSubmit, Arg: "layer", Got: fmt.Sprint(layer), Want: want}
}

// RecordAgain makes steps that begin from now on, and Prepare, record their commands anew.
// It is for callers whose EngineOptions.Between would record something else than it did:
// commands use the memory and the arguments that they were recorded with.
//
// Errors: the context's while a step is in progress; vk.ErrClosed, vk.ErrDeviceLost.
func (e *Engine) RecordAgain(ctx context.Context) error {
	return e.renew(ctx, opRecordAgain, func() {})
}

// renew drops all recorded commands, while no step is in progress, and makes a change
// that those to come are recorded by.
func (e *Engine) renew(ctx context.Context, op string, change func()) error {
	if err := e.enter(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.usable()
	if err == nil {
		err = e.forget()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, e.note(err))
	}
	change()
	return nil
}
