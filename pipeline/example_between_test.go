package pipeline_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A whole model in one submission: the program's own kernels are recorded between the
// layers of attention. Here one of them stands for all, which adds the output of a layer to a
// residual and norms the sum for the next layer.
func ExampleEngineOptions_between() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)

	// A kernel is SPIR-V with storage buffers in set 0 and push constants, whose entry
	// point is main. A program embeds its own; this one is of vkmla's benchmark.
	module := need(os.ReadFile("../internal/lab/bench/kernels/spv/bench_residual.spv"))
	kernel := need(dev.Kernel(vk.KernelSpec{Name: "residual", SPIRV: module,
		Bindings: []vk.Access{vk.Read, vk.ReadWrite, vk.Write}, PushSize: 8}))

	// Memory of its own: what the host writes, what stays on the device, what the host
	// reads. It has room for the largest step and is closed after the engine.
	const most = 64
	hidden := checkpoint.Config.Hidden
	embedded := need(tensor.NewIn(dev, vk.Upload, "embedded tokens", tensor.BF16, most, hidden))
	defer embedded.Close()
	residual := need(tensor.New(dev, "residual", tensor.F32, most, hidden))
	defer residual.Close()
	final := need(tensor.NewIn(dev, vk.Readback, "normed output", tensor.BF16, most, hidden))
	defer final.Close()

	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 1000, MaxSessions: 4, MaxStep: most,
		Between: func(rec *vk.Recorder, at pipeline.Between) error {
			rows := func(t tensor.Tensor) vk.View { return t.Rows(0, at.Tokens).View() }
			from, to := at.Output, at.Input
			push := struct{ Width, First uint32 }{Width: uint32(hidden)}
			if at.Layer == 0 {
				from, push.First = embedded, 1 // the residual begins with it
			}
			if at.Layer == len(layers) {
				to = final // for the head, which would be recorded here, too
			}
			return rec.Dispatch(vk.Dispatch{Kernel: kernel, Groups: [3]uint32{uint32(at.Tokens), 1, 1},
				Bind: []vk.View{rows(from), rows(residual), rows(to)}, Push: vk.Bytes(&push)})
		}}))
	defer engine.Close()

	session := need(engine.Open())
	for _, n := range []int{5, 1} { // a prompt of 5 tokens, and one that comes after it
		step := need(engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: n}))
		defer step.Abort() // does nothing after Commit

		// From Begin to Submit the device leaves the memory alone.
		for i := range n * hidden {
			binary.LittleEndian.PutUint16(embedded.Mapped()[2*i:], 0x3F80) // 1, as bf16
		}
		check(step.Run(ctx)) // all layers and all kernels, in one submission
		check(step.Commit())

		squares := 0.0
		for i := range hidden {
			bits := binary.LittleEndian.Uint16(final.Mapped()[2*((n-1)*hidden+i):])
			v := math.Float32frombits(uint32(bits) << 16)
			squares += float64(v) * float64(v)
		}
		fmt.Printf("%d tokens, the last one's hidden state has a mean square of %.2f\n", session.Len(), squares/float64(hidden))
	}
	// Output:
	// 5 tokens, the last one's hidden state has a mean square of 1.00
	// 6 tokens, the last one's hidden state has a mean square of 1.00
}
