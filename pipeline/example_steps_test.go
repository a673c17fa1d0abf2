package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Experts on the processor: while they compute for half of the sequences, the device attends for
// the other half. Each half is a step in progress. BenchmarkTwoSteps says what that gains.
func ExampleEngineOptions_steps() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)
	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{
		MaxTokens: 1000, MaxSessions: 4, MaxStep: 64, LayerByLayer: true, Steps: 2}))
	defer engine.Close()

	var experts sync.Mutex // they use all cores, so one half at a time
	decode := func(half []*pipeline.Session, tokens int) {
		hidden := checkpoint.Config.Hidden
		for range tokens {
			var chunks []pipeline.Chunk
			for _, s := range half {
				chunks = append(chunks, pipeline.Chunk{Session: s, Tokens: 1})
			}
			step := need(engine.Begin(ctx, chunks...))
			defer step.Abort() // does nothing after Commit

			x := slices.Repeat([]float32{1}, len(half)*hidden) // from the embedding
			attention := make([]float32, len(x))
			for i := range layers {
				for k := range half {
					check(step.SetInput(i, k, x[k*hidden:][:hidden]))
				}
				check(step.RunLayer(ctx, i)) // the other half may have its experts meanwhile
				for k := range half {
					check(step.ReadOutput(i, k, attention[k*hidden:][:hidden]))
				}
				experts.Lock()
				for k := range x {
					x[k] += attention[k] // stands for them
				}
				experts.Unlock()
			}
			check(step.Commit())
		}
	}

	sessions := make([]*pipeline.Session, 4)
	for i := range sessions {
		sessions[i] = need(engine.Open())
	}
	var halves sync.WaitGroup
	halves.Go(func() { decode(sessions[:2], 3) })
	halves.Go(func() { decode(sessions[2:], 3) })
	halves.Wait()
	for _, s := range sessions {
		fmt.Print(s.Len(), " ")
	}
	fmt.Println("tokens")
	// Output:
	// 3 3 3 3 tokens
}
