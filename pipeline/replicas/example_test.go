package replicas_test

import (
	"context"
	"fmt"
	"log"
	"os"

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

// gpu is a replica.
type gpu struct {
	name   string
	dev    *vk.Device
	engine *pipeline.Engine
}

func (g gpu) Sessions() int { return g.engine.Stats().Sessions }
func (g gpu) Err() error    { return g.dev.Err() }

// open says where the session is. With a pipeline/prefix.Keeper for each engine and one store it
// would begin with what any of the GPUs has computed of the prompt.
func (g gpu) open() (*pipeline.Session, error) {
	fmt.Println("a session on", g.name)
	return g.engine.Open()
}

// Two GPUs; where there is one, it is opened twice.
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

	var list []gpu
	for _, name := range []string{"the first", "the second"} {
		dev := need(adapter.Open(vk.DeviceOptions{}))
		defer dev.Close()
		layers := need(checkpoint.Upload(ctx, dev, nil))
		defer model.CloseLayers(layers)
		options := pipeline.EngineOptions{MaxTokens: 1000, MaxSessions: 2, MaxStep: 4}
		engine := need(pipeline.NewEngine(ctx, dev, checkpoint.Config, layers, options))
		defer engine.Close()
		list = append(list, gpu{name, dev, engine})
	}
	hidden := make([]float32, checkpoint.Config.Hidden)
	for range 3 {
		session := need(replicas.Open(list, gpu.open))
		outputs := need(session.Append(ctx, [][]float32{hidden}))
		fmt.Println(session.Len(), "token,", len(outputs), "layer")
	}
	// Output:
	// a session on the first
	// 1 token, 1 layer
	// a session on the second
	// 1 token, 1 layer
	// a session on the first
	// 1 token, 1 layer
}
