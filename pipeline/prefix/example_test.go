package prefix_test

import (
	"context"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	weights "github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/vk"
)

// A prompt that was computed once is opened from a folder, as another process with the same
// weights could. What is left of it is computed.
func Example() {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "example"})
	check(err)
	defer in.Close()
	adapter, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE")) // "" is the first GPU
	check(err)
	dev, err := adapter.Open(vk.DeviceOptions{})
	check(err)
	defer dev.Close()

	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	check(weights.Write(dir, weights.Config(0), 1)) // in place of a downloaded one
	checkpoint, err := model.Open(dir, model.CheckpointOptions{})
	check(err)
	defer checkpoint.Close()
	ctx := context.Background()
	layers, err := checkpoint.Upload(ctx, dev, nil)
	check(err)
	defer model.CloseLayers(layers)
	engine, err := pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 200, MaxSessions: 4, MaxStep: 64, LayerByLayer: true, Rewind: 1})
	check(err)
	defer engine.Close()

	store, err := prefix.OpenFolder(dir+"/prompts", 1<<30)
	check(err)
	keeper, err := prefix.New(engine, store, prefix.Options{})
	check(err)
	prompt := make([]int32, 130)
	for range 2 {
		session, have, err := keeper.Open(ctx, prompt)
		check(err)
		fmt.Println(have, "of", len(prompt), "tokens are there")
		for at := have; at < len(prompt); at = session.Len() {
			step, err := engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: min(64, len(prompt)-at)})
			check(err)
			for i := range layers {
				check(step.SetInput(i, 0, make([]float32, min(64, len(prompt)-at)*checkpoint.Config.Hidden)))
				check(step.RunLayer(ctx, i))
			}
			check(step.Commit())
		}
		check(keeper.Keep(ctx, session, prompt))
		check(session.Close())
	}
	// Output:
	// 0 of 130 tokens are there
	// 129 of 130 tokens are there
}
