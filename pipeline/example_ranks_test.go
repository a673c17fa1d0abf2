package pipeline_test

import (
	"context"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Two ranks have half of a layer's heads each, usually on two devices. Their outputs are f32
// partial sums; the program adds them in the order of the ranks and rounds once.
func Example_ranks() {
	dev, dir, done := exampleModel()
	defer done()
	ctx := context.Background()

	const n = 5
	var x, sum []float32
	for rank := range 2 {
		checkpoint := need(model.Open(dir, model.CheckpointOptions{Layers: []int{0}, Rank: rank, Ranks: 2}))
		defer checkpoint.Close()
		if rank == 0 {
			x, sum = make([]float32, n*checkpoint.Config.Hidden), make([]float32, n*checkpoint.Config.Hidden)
			for i := range x {
				x[i] = float32(math.Sin(float64(i)))
			}
		}
		for i, v := range oneLayer(ctx, dev, checkpoint, x) {
			sum[i] += v
		}
	}
	whole := need(model.Open(dir, model.CheckpointOptions{Layers: []int{0}}))
	defer whole.Close()
	var wrong, all float64
	for i, v := range oneLayer(ctx, dev, whole, x) {
		wrong += math.Pow(float64(sum[i]-v), 2)
		all += math.Pow(float64(v), 2)
	}
	fmt.Println("the sum is the whole layer's output:", math.Sqrt(wrong/all) < 1./128)
	// Output:
	// the sum is the whole layer's output: true
}

// oneLayer returns what a layer of a checkpoint, or of one rank's part of it, makes of x.
func oneLayer(ctx context.Context, dev *vk.Device, c *model.Checkpoint, x []float32) []float32 {
	layers := need(c.Upload(ctx, dev, nil))
	defer model.CloseLayers(layers)
	engine := need(pipeline.NewEngine(ctx, dev, c.Config, layers, pipeline.EngineOptions{MaxTokens: 100}))
	defer engine.Close()
	session := need(engine.Open())
	return need(session.Append(ctx, [][]float32{x}))[0].Out
}
