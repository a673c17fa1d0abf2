package pipeline

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/tensor"
)

// Input returns the tensor for the hidden states of the step's tokens for a layer, after the
// layer's own input norm: [T, Hidden] bf16 on the device, with the rows of Rows. Padding rows may
// hold anything. Commands that write it are submitted, or uploads done, before the layer is
// submitted. Commands of the same device run in the order of submission: those submitted after
// SubmitLayer(i) may read Output(i) and write Input(i+1) without a Wait.
//
// A layer does not run on rows that were not written: they are another session's, of an earlier
// step. Unless SetInput gave them, the rows of all chunks have to be overwritten by what was
// submitted since Begin: copies, fills, vk.Device.Upload, and launches of kernels, which count as
// writing all that they bind or reach as vk.Write, and nothing as vk.ReadWrite. With
// EngineOptions.LayerByLayer all layers have one input, and what was written for one counts for the
// next.
//
// With EngineOptions.Between all layers have one input. The caller writes that of layer 0; what
// Between records reads it, and writes those of the others.
//
// Input, Output and TopK are zero tensors for an unknown layer.
func (st *Step) Input(layer int) tensor.Tensor { return st.b.In(layer) }

// checkInputs demands that the inputs of a layer, or of all, were set if any was.
func (st *Step) checkInputs(layer int) error {
	e := st.e
	if !st.host {
		return nil
	}
	first, end := st.layers(layer)
	_, given := e.sizes.Given(st.draft)
	for i := first; i < min(end, given); i++ {
		for chunk := range st.e.now.parts {
			if !st.e.now.set[i*e.opts.MaxSessions+chunk] {
				return badArgument(opSubmit, "inputs", fmt.Sprintf("none for layer %d, chunk %d", i, chunk), "all or none from host memory")
			}
		}
	}
	return nil
}

// checkWritten demands that the inputs of a layer, or of all, were written on the device since
// Begin, unless they come from host memory.
func (st *Step) checkWritten(layer int) error {
	e, b := st.e, st.b
	if st.host || st.reuses {
		return nil
	}
	first, end := st.layers(layer)
	_, given := e.sizes.Given(st.draft)
	for i := first; i < min(end, given); i++ {
		rows := b.In(i).View()
		rows.Size = uint64(2 * st.tokens * e.cfg.Hidden)
		if door.Overwritten(rows) {
			continue
		}
		if e.sizes.Chained() {
			if _, err := b.Commands(st.key(layer), st.work); err != nil {
				return err
			}
			if b.Begins(st.draft) {
				continue
			}
		}
		return badArgument(opSubmit, "inputs", fmt.Sprintf("none for layer %d", i),
			"those of all %d tokens, from SetInput or written to Step.Input since Begin", st.tokens)
	}
	return nil
}
