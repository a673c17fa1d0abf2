package attention_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A token attends one row of a paged cache: the output is that row, for each head.
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
	const heads, page = 4, 64
	layout, err := cache.NewLayout(page, 0)
	check(err)
	pages, err := cache.NewKV(dev, cache.KVConfig{Pages: 1, Layout: layout})
	check(err)
	defer pages.Close()
	insert, err := cache.NewInsert(dev, cache.PagesConfig{Page: page})
	check(err)
	decode, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: heads, WindowPage: page, OnDemand: true})
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
	row[3] = 0x3fc0                // 1.5
	k, slots := upload(tensor.BF16, row, 1, cache.D), upload(tensor.I64, []int64{5}, 1)
	defer k.Close()
	defer slots.Close()
	q := upload(tensor.BF16, make([]uint16, heads*cache.D), 1, heads, cache.D)
	defer q.Close()
	out := upload(tensor.BF16, make([]uint16, heads*cache.D), 1, heads, cache.D)
	defer out.Close()
	indices, lens := upload(tensor.I32, []int32{5}, 1, 1), upload(tensor.I32, []int32{1}, 1)
	defer indices.Close()
	defer lens.Close()
	args := attention.DecodeArgs{Q: q, Out: out, Window: attention.SlotSet{Cache: pages, Indices: indices, Lens: lens}}
	if n := decode.ScratchBytes(1, 1, 0); n > 0 {
		scratch, err := dev.NewBuffer(vk.BufferSpec{Label: "scratch", Size: n})
		check(err)
		defer scratch.Close()
		args.Scratch = scratch.Whole()
	}

	rec, err := dev.NewRecorder()
	check(err)
	check(insert.Record(rec, cache.InsertArgs{K: k, Slots: slots, Cache: pages}))
	check(decode.Record(rec, args))
	cmd, err := rec.End()
	check(err)
	defer cmd.Close()
	check(cmd.Run(ctx))

	got, data := make([]uint16, heads*cache.D), make([]byte, out.Bytes())
	check(out.Download(ctx, data))
	_, err = binary.Decode(data, binary.LittleEndian, got)
	check(err)
	fmt.Printf("%#x %#x\n", got[3], got[3*cache.D+3])
	// Output: 0x3fc0 0x3fc0
}
