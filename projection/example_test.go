package projection_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A linear layer: y = x W^T, here with weights in bf16.
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
	const n, k = 16, 32
	linear, err := projection.NewLinear(dev, projection.LinearConfig{N: n, K: k, Weights: projection.FormatBF16, Out: tensor.F32})
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
	ones, rows := make([]uint16, k), make([]uint16, n*k) // bf16
	for i := range ones {
		ones[i] = 0x3f80
	}
	rows[5*k], rows[5*k+1] = 0x4000, 0x3f80 // 2 and 1
	x, w, y := upload(tensor.BF16, ones, 1, k), upload(tensor.BF16, rows, n, k), upload(tensor.F32, make([]float32, n), 1, n)
	defer x.Close()
	defer w.Close()
	defer y.Close()

	rec, err := dev.NewRecorder()
	check(err)
	check(linear.Record(rec, projection.LinearArgs{X: x, W: projection.LinearWeights{Data: w}, Out: y}))
	cmd, err := rec.End()
	check(err)
	defer cmd.Close()
	check(cmd.Run(ctx))

	got, data := make([]float32, n), make([]byte, y.Bytes())
	check(y.Download(ctx, data))
	_, err = binary.Decode(data, binary.LittleEndian, got)
	check(err)
	fmt.Println(got[4:7])
	// Output: [0 3 0]
}
