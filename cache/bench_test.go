package cache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// timeGPU reports the median device time of one launch that record makes. Launch i
// of a round should use other memory than launch i-1, so that none finds its
// inputs in a cache.
func timeGPU(b *testing.B, dev *vk.Device, bytes int, record func(rec *vk.Recorder, i int) error) {
	const launches = 32
	rec := must[*vk.Recorder](b)(dev.NewRecorder())
	defer rec.Close()
	for i := range launches {
		must[int](b)(rec.Timestamp())
		require.NoError(b, record(rec, i))
	}
	must[int](b)(rec.Timestamp())
	cmd := must[*vk.Commands](b)(rec.End())
	defer cmd.Close()
	var us []float64
	for b.Loop() {
		if err := cmd.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
		ns := must[[]float64](b)(cmd.Timestamps())
		for i := range launches {
			us = append(us, (ns[i+1]-ns[i])/1e3)
		}
	}
	slices.Sort(us)
	median := us[len(us)/2]
	b.ReportMetric(median, "gpu-us")
	b.ReportMetric(float64(bytes)/median/1e3, "GB/s")
	b.ReportMetric(0, "ns/op")
}

func benchVariants(b *testing.B, sizes []int, f func(b *testing.B, dev *vk.Device, variant string, rows int)) {
	dev := testkit.Device(b)
	for _, variant := range []string{"base", "da"} {
		for _, rows := range sizes {
			b.Run(fmt.Sprintf("%s/rows=%d", variant, rows), func(b *testing.B) { f(b, dev, variant, rows) })
		}
	}
}

var benchRows = []int{1, 32, 128, 4096}

const benchPages = 2048 // 77 MB, 128 Ki slots

func BenchmarkInsert(b *testing.B) {
	benchVariants(b, benchRows, func(b *testing.B, dev *vk.Device, variant string, rows int) {
		op := must[*cache.Insert](b)(cache.NewInsert(dev, cache.InsertConfig{Page: 64, Variant: variant}))
		c := newCache(b, dev, benchPages, 64, 0)
		rng := rand.New(rand.NewPCG(1, 1))
		k := upload(b, dev, tensor.BF16, randomK(rng, rows), rows, cache.D)
		var slots []tensor.Tensor
		perm := rng.Perm(benchPages * 64)
		for i := range 32 {
			s := make([]int64, rows)
			for j := range s {
				s[j] = int64(perm[(i*rows+j)%len(perm)])
			}
			slots = append(slots, upload(b, dev, tensor.I64, s, rows))
		}
		timeGPU(b, dev, rows*(2*cache.D+cache.RecordV4.SlotBytes()), func(rec *vk.Recorder, i int) error {
			return op.Record(rec, cache.InsertArgs{K: k, Slots: slots[i], Cache: c})
		})
	})
}

func BenchmarkGatherSlots(b *testing.B) {
	benchVariants(b, benchRows, func(b *testing.B, dev *vk.Device, variant string, rows int) {
		op := must[*cache.GatherSlots](b)(cache.NewGatherSlots(dev, cache.GatherSlotsConfig{Page: 64, Variant: variant}))
		c := newCache(b, dev, benchPages, 64, 0)
		rng := rand.New(rand.NewPCG(1, 1))
		out := must[tensor.Tensor](b)(tensor.New(dev, "bench", tensor.BF16, rows, cache.D))
		b.Cleanup(func() { out.Close() })
		perm := rng.Perm(benchPages * 64)
		var idx []tensor.Tensor
		for i := range 32 {
			s := make([]int32, rows)
			for j := range s {
				s[j] = int32(perm[(i*rows+j)%len(perm)])
			}
			idx = append(idx, upload(b, dev, tensor.I32, s, rows))
		}
		timeGPU(b, dev, rows*(2*cache.D+cache.RecordV4.SlotBytes()), func(rec *vk.Recorder, i int) error {
			return op.Record(rec, cache.GatherSlotsArgs{Out: out, Cache: c, Indices: idx[i]})
		})
	})
}

// BenchmarkGather unpacks rows of 4 requests together.
func BenchmarkGather(b *testing.B) {
	benchVariants(b, []int{16, 512, 65536}, func(b *testing.B, dev *vk.Device, variant string, rows int) {
		op := must[*cache.Gather](b)(cache.NewGather(dev, cache.GatherConfig{Page: 64, Variant: variant}))
		const requests = 4
		rows /= requests
		c := newCache(b, dev, benchPages, 64, 0)
		out := must[tensor.Tensor](b)(tensor.New(dev, "bench", tensor.BF16, requests, rows, cache.D))
		b.Cleanup(func() { out.Close() })
		perm := rand.New(rand.NewPCG(1, 1)).Perm(benchPages)
		width := (rows + 63) / 64
		table, lens := make([]int32, requests*width), make([]int32, requests)
		for i := range table {
			table[i] = int32(perm[i])
		}
		for i := range lens {
			lens[i] = int32(rows)
		}
		tt, st := upload(b, dev, tensor.I32, table, requests, width), upload(b, dev, tensor.I32, lens, requests)
		timeGPU(b, dev, requests*rows*(2*cache.D+cache.RecordV4.SlotBytes()), func(rec *vk.Recorder, i int) error {
			return op.Record(rec, cache.GatherArgs{Out: out, Cache: c, SeqLens: st, Table: tt})
		})
	})
}
