package pipeline_test

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/vk"
)

// The attention of a model, layer by layer: what enters a layer depends on what the one
// before gave. The rest of the model is the program's own; here an addition stands for it.
func Example() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)
	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 1000, MaxSessions: 4, MaxStep: 64, LayerByLayer: true}))
	defer engine.Close()

	session := need(engine.Open())
	for _, n := range []int{5, 1} { // a prompt of 5 tokens, and one that comes after it
		step := need(engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: n}))
		defer step.Abort() // does nothing after Commit

		x := slices.Repeat([]float32{1}, n*checkpoint.Config.Hidden) // [n, Hidden], from the embedding
		attention := make([]float32, len(x))
		for i := range layers {
			check(step.SetInput(i, 0, x)) // after the layer's norm
			check(step.RunLayer(ctx, i))
			check(step.ReadOutput(i, 0, attention))
			for k := range x {
				x[k] += attention[k] // and then the experts
			}
		}
		check(step.Commit()) // only now is the session longer
		fmt.Println(session.Len(), "tokens")
	}
	// Output:
	// 5 tokens
	// 6 tokens
}

// exampleModel opens a device and writes a small checkpoint with random weights.
func exampleModel() (dev *vk.Device, dir string, done func()) {
	in := need(vk.NewInstance(vk.InstanceOptions{AppName: "example"}))
	dev = need(need(in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))).Open(vk.DeviceOptions{}))
	dir = need(os.MkdirTemp("", "example"))
	check(random.Write(dir, random.Config(0, 4, 128), 1))
	return dev, dir, func() {
		check(os.RemoveAll(dir))
		check(dev.Close())
		in.Close()
	}
}

func need[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
