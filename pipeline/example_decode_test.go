package pipeline_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// One decode step of a C4A layer: token 4 of a sequence. Tokens 0 to 3 are in the
// window cache as rows of ones, and together in the compressed cache as a row of
// twos; the new token's row is threes. A query of zeros weighs all six rows alike,
// so that the output is their mean, 9/6.
func ExampleDecode() {
	in := need(vk.NewInstance(vk.InstanceOptions{AppName: "example"}))
	defer in.Close()
	adapter := need(in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))) // "" is the best one
	dev := need(adapter.Open(vk.DeviceOptions{}))
	defer dev.Close()

	out, lse := decodeToken(context.Background(), dev)
	fmt.Printf("out %.2f\nlse %.3f, which is ln %.2f\n", out, lse, math.Exp(float64(lse)))
	// Output:
	// out 1.50
	// lse 1.792, which is ln 6.00
}

func decodeToken(ctx context.Context, dev *vk.Device) (out, lse float32) {
	const heads, topK = 8, 512
	ones, twos, threes := row(0x3F80), row(0x4000), row(0x4040) // in bf16

	// Each cache is memory for pages of 64 slots. A block pool hands out its pages,
	// a table says which of them a sequence has: for 5 tokens and 1 group of 4.
	layout := need(cache.NewLayout(64, 0))
	window := need(cache.NewKV(dev, cache.KVConfig{Pages: 8, Layout: layout}))
	defer window.Close()
	compressed := need(cache.NewKV(dev, cache.KVConfig{Pages: 8, Layout: layout}))
	defer compressed.Close()
	windowTable := need(cache.NewTable(need(cache.NewBlockPool(8)), layout.Page))
	compressedTable := need(cache.NewTable(need(cache.NewBlockPool(8)), layout.Page))
	need(windowTable.Append(5))
	need(compressedTable.Append(1))

	// What earlier steps left in their first pages.
	store := func(c cache.KVCache, rows []uint16, slots ...int64) {
		pages := make([]byte, layout.PoolBytes(c.Pages()))
		check(cache.InsertRef(pages, layout, rows, slots))
		check(c.Pool.Upload(ctx, pages))
	}
	store(window, slices.Repeat(ones, 4), 0, 1, 2, 3)
	store(compressed, twos, 0)

	// The step's tensors share one buffer, here of memory that the host sees.
	arena := need(tensor.NewArena(dev, vk.Readback, "example", 1<<20))
	defer arena.Close()
	put := func(dt tensor.DType, values any, shape ...int) tensor.Tensor {
		x := need(arena.Alloc(dt, shape...))
		need(binary.Encode(x.Mapped(), binary.LittleEndian, values))
		return x
	}
	step := pipeline.StepArgs{
		QueryStart: put(tensor.I32, []int32{0, 1}, 2), SeqLens: put(tensor.I32, []int32{5}, 1),
		TokenToReq: put(tensor.I32, []int32{0}, 1), IsValid: put(tensor.U8, []byte{1}, 1),
		WindowTable:     put(tensor.I32, windowTable.Blocks(), 1, 1),
		CompressedTable: put(tensor.I32, compressedTable.Blocks(), 1, 1),
	}
	picks := slices.Repeat([]int32{-1}, topK)
	picks[0] = 0 // the indexer picked the one group there is
	layer := pipeline.LayerArgs{
		Q: put(tensor.BF16, make([]uint16, heads*512), 1, heads, 512), KV: put(tensor.BF16, threes, 1, 512),
		TopK: put(tensor.I32, picks, 1, topK), Window: window, Compressed: compressed,
		Out: need(arena.Alloc(tensor.BF16, 1, heads, 512)), LSE: need(arena.Alloc(tensor.F32, 1, heads)),
	}

	// Recorded once, the commands can run for every step: only buffers change.
	decode := need(pipeline.NewDecode(dev, pipeline.DecodeConfig{
		Tokens: 1, Heads: heads, Ratio: pipeline.RatioC4A, TopK: topK, WindowCache: window, CompressedCache: compressed,
	}))
	defer decode.Close()
	rec := need(dev.NewRecorder())
	defer rec.Close()
	check(decode.RecordStep(rec, step))
	check(decode.RecordLayer(rec, step, layer))
	commands := need(rec.End())
	defer commands.Close()
	check(commands.Run(ctx))

	bits := binary.LittleEndian.Uint16(layer.Out.Mapped()) // of head 0, number 0
	need(binary.Decode(layer.LSE.Mapped(), binary.LittleEndian, &lse))
	return math.Float32frombits(uint32(bits) << 16), lse
}

// row is a row whose 512 numbers have the same bits.
func row(bf16 uint16) []uint16 { return slices.Repeat([]uint16{bf16}, 512) }
