package pipeline_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
	"github.com/vkmla/vkmla/vk/share"
)

// Hidden states in memory that another device, or CUDA, has as well: it writes what enters the
// layers and reads what they give. A semaphore orders both.
func ExampleStep_Submit() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)

	// Memory of the program's own, with room for the largest step.
	const most = 64
	row := uint64(2 * checkpoint.Config.Hidden) // bytes of a token, bf16
	in := need(dev.NewBuffer(vk.BufferSpec{Label: "shared input", Size: most * row, Export: true}))
	defer in.Close()
	out := need(dev.NewBuffer(vk.BufferSpec{Label: "shared output", Size: most * row, Export: true}))
	defer out.Close()

	// Another device of the same GPU imports it. CUDA would call cuImportExternalMemory with the
	// handle, Allocated and Dedicated.
	other := need(dev.Adapter().Open(vk.DeviceOptions{}))
	defer other.Close()
	theirIn := need(share.Import(other, "input", vk.DeviceLocal, need(share.Export(in))))
	defer theirIn.Close()
	theirOut := need(share.Import(other, "output", vk.DeviceLocal, need(share.Export(out))))
	defer theirOut.Close()

	// With NewSemaphore(true), Export and ImportSemaphore the other device, or CUDA, would wait and
	// signal itself. Here the host does it in its place: not every driver exports semaphores.
	semaphore := need(dev.NewSemaphore(false))
	defer semaphore.Close()

	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 1000, MaxStep: most,
		Between: func(rec *vk.Recorder, at pipeline.Between) error {
			rows := uint64(at.Tokens) * row
			switch at.Layer {
			case 0:
				return rec.Copy(at.Input.View(), in.View(0, rows))
			case len(layers):
				return rec.Copy(out.View(0, rows), at.Output.View())
			}
			return rec.Copy(at.Input.View(), at.Output.View()) // and the rest of the model
		}}))
	defer engine.Close()

	session := need(engine.Open())
	for i, n := range []int{5, 1} { // a prompt of 5 tokens, and one that comes after it
		written, ran := uint64(2*i+1), uint64(2*i+2)
		step := need(engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: n}))
		defer step.Abort() // does nothing after Commit
		check(step.Submit(vk.Sync{Wait: []vk.At{{Semaphore: semaphore, Value: written}},
			Signal: []vk.At{{Semaphore: semaphore, Value: ran}}}))

		bytes := make([]byte, uint64(n)*row) // the other side, which the step waits for
		for k := range len(bytes) / 2 {
			binary.LittleEndian.PutUint16(bytes[2*k:], 0x3F80) // 1, as bf16
		}
		check(other.Upload(ctx, theirIn.View(0, uint64(len(bytes))), bytes))
		check(semaphore.Signal(written))

		check(semaphore.Wait(ctx, ran)) // the other side again
		check(other.Download(ctx, bytes, theirOut.View(0, uint64(len(bytes)))))
		check(step.Wait(ctx))
		check(step.Commit())
		zeros := 0
		for _, b := range bytes {
			if b == 0 {
				zeros++
			}
		}
		fmt.Println(session.Len(), "tokens, all zeros:", zeros == len(bytes))
	}
	// Output:
	// 5 tokens, all zeros: false
	// 6 tokens, all zeros: false
}
