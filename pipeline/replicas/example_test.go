package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/pipeline/replicas"
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

// A server with two GPUs; where there is one, it is opened twice.
func Example() {
	ctx := context.Background()
	dir := need(os.MkdirTemp("", "replicas"))
	defer os.RemoveAll(dir)
	check(random.Write(dir, random.Config(0), 1))
	instance := need(vk.NewInstance(vk.InstanceOptions{}))
	defer instance.Close()
	adapter := need(instance.Pick(""))
	checkpoint := need(model.Open(dir, model.CheckpointOptions{}))
	defer checkpoint.Close()

	options := pipeline.EngineOptions{MaxTokens: 1000, MaxSessions: 8, MaxStep: 4, MaxCacheBytes: 64 << 20, Invariant: true}
	var list []replicas.Replica
	for range 2 {
		dev := need(adapter.Open(vk.DeviceOptions{}))
		defer dev.Close()
		layers := need(checkpoint.Upload(ctx, dev, nil))
		defer model.CloseLayers(layers)
		engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, options))
		defer engine.Close()
		list = append(list, replicas.Replica{Engine: engine, Device: dev, MaxCacheBytes: options.MaxCacheBytes})
	}
	group := need(replicas.New(list, replicas.Options{}))

	// run takes a replica's part of a step through the layers.
	hidden := make([]float32, 4*checkpoint.Config.Hidden)
	run := func(ctx context.Context, p replicas.Part) error {
		for i := range p.Chunks {
			first, end := p.Step.Rows(i)
			if err := p.Step.SetInput(0, i, hidden[:(end-first)*checkpoint.Config.Hidden]); err != nil {
				return err
			}
		}
		return p.Step.Run(ctx) // and read its outputs
	}
	prompts := [][]int32{{1, 2, 3}, {9, 8, 7}, {1, 2, 3, 4, 5}}
	for _, prompt := range prompts {
		session, n, err := group.Open(ctx, prompt)
		check(err)
		fmt.Printf("%d of %d tokens are there, on replica %d\n", n, len(prompt), session.Replica())
		err = group.Step(ctx, run, replicas.Chunk{Session: session, Tokens: prompt[n:]})
		if failed := (&replicas.StepError{}); errors.As(err, &failed) && errors.Is(err, cache.ErrPoolFull) {
			_, err = group.Relieve(ctx, failed.Failed[0].Replica) // and again
		}
		check(err)
	}
	// Output:
	// 0 of 3 tokens are there, on replica 0
	// 0 of 3 tokens are there, on replica 1
	// 3 of 5 tokens are there, on replica 0
}
