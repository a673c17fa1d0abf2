package pipeline_test

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Two sequences that begin alike, in steps with tokens of both.
func ExampleEngine() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()
	layers := need(checkpoint.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)
	engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, pipeline.EngineOptions{MaxTokens: 1000, MaxSessions: 4, MaxStep: 64, LayerByLayer: true}))
	defer engine.Close()

	// A prompt of 100 tokens, in two steps. Append takes what enters all layers beforehand,
	// which a test has and a model has not: see the example of the package.
	hidden := make([][]float32, len(layers))
	for i := range hidden {
		hidden[i] = make([]float32, 100*checkpoint.Config.Hidden)
	}
	session := need(engine.Open())
	results := need(session.Append(ctx, hidden))
	fmt.Println(session.Len(), "tokens,", len(results[0].Out)/checkpoint.Config.Hidden, "rows of layer 0")

	// A second sequence goes on from there, with the same pages.
	fork := need(session.Fork())

	// A step with a token of one and four draft tokens of the other. Tokens lie in the
	// rows that Rows says, in tensors on the device, which commands of the program's own
	// may write and read as well.
	step := need(engine.Begin(ctx, pipeline.Chunk{Session: session, Tokens: 1}, pipeline.Chunk{Session: fork, Tokens: 4}))
	for i := range layers {
		check(step.Input(i).Upload(ctx, make([]byte, step.Input(i).Bytes())))
		check(step.RunLayer(ctx, i)) // to step.Output(i)
	}
	first, end := step.Rows(1)
	fmt.Println("drafts in rows", first, "to", end-1, "of", step.Output(0))
	check(step.Commit())

	// Two of the drafts were not what the model wants. EngineOptions.Rewind says how far
	// back a session can go; here, not at all.
	fmt.Println(session.Len(), fork.Len(), fork.Truncate(102) != nil)
	// Output:
	// 100 tokens, 100 rows of layer 0
	// drafts in rows 1 to 4 of [8, 192] bf16
	// 101 104 true
}
