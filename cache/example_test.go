package cache_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A row goes into a page of a cache, as FP8 with scales, and is read back as bf16.
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
	layout, err := cache.NewLayout(64, 0) // slots of a page
	check(err)
	pages, err := cache.NewKV(dev, cache.KVConfig{Pages: 2, Layout: layout})
	check(err)
	defer pages.Close()
	insert, err := cache.NewInsert(dev, cache.InsertConfig{Page: 64})
	check(err)
	gather, err := cache.NewGatherSlots(dev, cache.GatherSlotsConfig{Page: 64})
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
	row := make([]uint16, cache.D) // bf16
	row[0], row[511] = 0x3f80, 0xc000
	k, out := upload(tensor.BF16, row, 1, cache.D), upload(tensor.BF16, make([]uint16, cache.D), 1, cache.D)
	defer k.Close()
	defer out.Close()
	slots, indices := upload(tensor.I64, []int64{70}, 1), upload(tensor.I32, []int32{70}, 1) // page 1, slot 6
	defer slots.Close()
	defer indices.Close()

	rec, err := dev.NewRecorder()
	check(err)
	check(insert.Record(rec, cache.InsertArgs{K: k, Slots: slots, Cache: pages}))
	check(gather.Record(rec, cache.GatherSlotsArgs{Out: out, Cache: pages, Indices: indices}))
	cmd, err := rec.End()
	check(err)
	defer cmd.Close()
	check(cmd.Run(ctx))

	data := make([]byte, out.Bytes())
	check(out.Download(ctx, data))
	_, err = binary.Decode(data, binary.LittleEndian, row)
	check(err)
	fmt.Printf("%#x %#x %#x\n", row[0], row[1], row[511])
	// Output: 0x3f80 0x0 0xc000
}
