package tensor_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A tensor is a range of a device's memory with a shape. Rows are a tensor of the same memory.
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
	x, err := tensor.New(dev, "x", tensor.F32, 3, 2) // holds anything
	check(err)
	defer x.Close()
	row := make([]byte, 8)
	_, err = binary.Encode(row, binary.LittleEndian, []float32{1, 2})
	check(err)
	check(x.Rows(0, 1).Upload(ctx, make([]byte, 8)))
	check(x.Rows(1, 2).Upload(ctx, row))

	got, data := make([]float32, 4), make([]byte, 16)
	check(x.Rows(0, 2).Download(ctx, data))
	_, err = binary.Decode(data, binary.LittleEndian, got)
	check(err)
	fmt.Println(x, got)
	// Output: [3, 2] f32 [0 0 1 2]
}
