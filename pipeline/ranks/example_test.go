package ranks_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/pipeline/ranks"
	"github.com/vkmla/vkmla/vk"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func need[T any](v T, err error) T {
	check(err)
	return v
}

// A layer on two GPUs, each with half of the heads; where there is one, it is opened twice.
func Example() {
	ctx := context.Background()
	dir := need(os.MkdirTemp("", "ranks"))
	defer os.RemoveAll(dir)
	check(random.Write(dir, random.Config(0), 1))
	instance := need(vk.NewInstance(vk.InstanceOptions{}))
	defer instance.Close()
	adapter := need(instance.Pick(""))
	var devices []*vk.Device
	for range 2 {
		dev := need(adapter.Open(vk.DeviceOptions{}))
		defer dev.Close()
		devices = append(devices, dev)
	}
	engine := need(ranks.New(ctx, dir, devices, model.CheckpointOptions{}, pipeline.EngineOptions{MaxTokens: 1000, MaxStep: 4}))
	defer engine.Close()

	session := need(engine.Open())
	step := need(engine.Begin(ctx, ranks.Chunk{Session: session, Tokens: 2}))
	defer step.Abort() // does nothing after Commit
	x := make([]float32, 2*engine.Config().Hidden)
	x[0] = 1
	y := make([]float32, len(x))
	for layer := range engine.Layers() {
		check(step.SetInput(layer, 0, x))
		check(step.RunLayer(ctx, layer))
		check(step.ReadOutput(layer, 0, y))
	}
	check(step.Commit())
	fmt.Println(session.Len(), "tokens")
	// Output:
	// 2 tokens
}
