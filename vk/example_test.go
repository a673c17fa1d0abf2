package vk_test

import (
	"context"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/vk"
)

// Bytes go to a device's memory, are copied there by recorded commands, and come back.
func Example() {
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "example"})
	check(err)
	defer in.Close()
	adapter, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE")) // "" is the first GPU
	check(err)
	dev, err := adapter.Open(vk.DeviceOptions{})
	check(err)
	defer dev.Close()

	a, err := dev.NewBuffer(vk.BufferSpec{Label: "a", Size: 16})
	check(err)
	defer a.Close()
	b, err := dev.NewBuffer(vk.BufferSpec{Label: "b", Size: 16})
	check(err)
	defer b.Close()

	rec, err := dev.NewRecorder() // it derives the barrier between the two
	check(err)
	check(rec.Fill(a.Whole(), 7))
	check(rec.Copy(b.Whole(), a.Whole()))
	cmd, err := rec.End()
	check(err)
	defer cmd.Close()

	ctx := context.Background()
	check(cmd.Run(ctx)) // as often as one likes
	got := make([]byte, 4)
	check(dev.Download(ctx, got, b.View(12, 4)))
	fmt.Println(got, dev.MemoryInUse()["a"], "bytes of a")
	// Output: [7 0 0 0] 16 bytes of a
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
