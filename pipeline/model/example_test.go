package model_test

import (
	"fmt"
	"os"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
)

// A checkpoint is opened, which reads its configuration and maps its files. No device is needed.
func Example() {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	check(random.Write(dir, random.Config(0, 4, 128), 1)) // in place of a downloaded one

	checkpoint, err := model.Open(dir, model.CheckpointOptions{})
	check(err)
	defer checkpoint.Close()
	for i, l := range checkpoint.Config.Layers {
		fmt.Println(i, l.Name, "tokens of an entry:", l.Ratio)
	}
	// Output:
	// 0 window tokens of an entry: 0
	// 1 C4A tokens of an entry: 4
	// 2 C128A tokens of an entry: 128
}
