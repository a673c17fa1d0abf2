package indexer_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// The best columns of rows of scores, in any order, and -1 where there are too few.
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

	ctx := context.Background()
	best, err := indexer.NewTopK(dev, indexer.TopKConfig{K: 3})
	check(err)
	upload := func(dt tensor.DType, values any, shape ...int) tensor.Tensor {
		t, err := tensor.New(dev, "example", dt, shape...)
		check(err)
		data := make([]byte, t.Bytes())
		_, err = binary.Encode(data, binary.LittleEndian, values)
		check(err)
		check(t.Upload(ctx, data))
		return t
	}
	scores := upload(tensor.F32, []float32{1, 5, 2, 5, 9, 9, 9, 9}, 2, 4)
	defer scores.Close()
	lens := upload(tensor.I32, []int32{4, 2}, 2) // columns that count
	defer lens.Close()
	picks := upload(tensor.I32, make([]int32, 6), 2, 3)
	defer picks.Close()
	args := indexer.TopKArgs{Logits: scores, Lens: lens, Out: picks}
	if n := best.ScratchBytes(2, 4); n > 0 {
		scratch, err := dev.NewBuffer(vk.BufferSpec{Label: "scratch", Size: n})
		check(err)
		defer scratch.Close()
		args.Scratch = scratch.Whole()
	}

	rec, err := dev.NewRecorder()
	check(err)
	check(best.Record(rec, args))
	cmd, err := rec.End()
	check(err)
	defer cmd.Close()
	check(cmd.Run(ctx))

	got, data := make([]int32, 6), make([]byte, picks.Bytes())
	check(picks.Download(ctx, data))
	_, err = binary.Decode(data, binary.LittleEndian, got)
	check(err)
	slices.Sort(got[:3])
	slices.Sort(got[3:])
	fmt.Println(got)
	// Output: [1 2 3 -1 0 1]
}
