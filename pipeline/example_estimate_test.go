package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// What a server does before its first request: find out what fits, and run every size of step.
func ExampleEngineOptions_Estimate() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	options := pipeline.EngineOptions{MaxTokens: 1000, MaxSessions: 2, MaxStep: 4, LayerByLayer: true,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}

	// Sessions of the full length, for as many as there can be. Nothing is uploaded yet.
	plan := need(options.Estimate(ctx, dev, checkpoint.Config, need(checkpoint.Plan()), 1000, 1000))
	fmt.Println("a session fits in", plan.Held/2 == checkpoint.Config.CacheBytes(1000))
	options.CacheBytes, options.MaxCacheBytes = plan.Caches, plan.Caches // they never grow

	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)
	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, options))
	defer engine.Close()
	check(engine.Warm(ctx))
	memory := engine.Memory()
	fmt.Println("within the plan", memory.Total() <= plan.Total())
	fmt.Println("sizes", engine.Sizes(), "and", engine.Stats().Steps, "steps so far")
	// Output:
	// a session fits in true
	// within the plan true
	// sizes [1 2 4] and 0 steps so far
}
