package pipeline_test

import (
	"context"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

var _ = readme

// readme holds the README's twenty lines, so that they compile; internal/arch compares them.
func readme(ctx context.Context, dir string, x, y []float32) {
	instance := need(vk.NewInstance(vk.InstanceOptions{}))
	adapter := need(instance.Pick("")) // the first GPU, else a CPU
	dev := need(adapter.Open(vk.DeviceOptions{}))

	checkpoint := need(model.Open(dir, model.CheckpointOptions{})) // config.json and safetensors
	layers := need(checkpoint.Upload(ctx, dev, nil))               // weights stay as they are stored
	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 65536, MaxSessions: 32, MaxStep: 2048, MaxCacheBytes: 40 << 30, LayerByLayer: true}))

	session := need(engine.Open())                                               // a sequence
	step := need(engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: 1})) // more chunks: a batch
	for i := range layers {
		check(step.SetInput(i, 0, x)) // x: [1][hidden] of f32
		check(step.RunLayer(ctx, i))
		check(step.ReadOutput(i, 0, y)) // the rest of your model makes the next x of y
	}
	check(step.Commit()) // only now is the session a token longer
}
