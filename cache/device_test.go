package cache_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var do = testkit.Do

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func upload[T any](t testing.TB, dev *vk.Device, dt tensor.DType, v []T, shape ...int) tensor.Tensor {
	t.Helper()
	return testkit.Upload(t, dev, dt, v, shape...)
}

func download[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	return testkit.Download[T](t, x)
}

func encode[T any](v []T) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}

// newCache makes a cache full of poison, which the test closes at its end.
func newCache(t testing.TB, dev *vk.Device, pages, page, stride int) cache.KVCache {
	t.Helper()
	c := must[cache.KVCache](t)(cache.NewKV(dev, cache.KVConfig{Pages: pages, Layout: must[cache.Layout](t)(cache.NewLayout(page, stride))}))
	t.Cleanup(func() { c.Close() })
	fill(t, c.Pool, 0xFF)
	return c
}

// fill writes a byte over a pool.
func fill(t testing.TB, pool tensor.Tensor, b byte) {
	t.Helper()
	require.NoError(t, pool.Upload(t.Context(), bytes.Repeat([]byte{b}, int(pool.Bytes()))))
}

// refuses demands that every call fails with an argument error and that running
// what was recorded all the same leaves the tensor as it is.
func refuses(t *testing.T, dev *vk.Device, untouched tensor.Tensor, calls map[string]func(rec *vk.Recorder) error) {
	t.Helper()
	before := download[byte](t, bytesOf(untouched))
	do(t, dev, func(rec *vk.Recorder) error {
		for name, call := range calls {
			var arg *vk.ArgumentError
			if err := call(rec); !errors.Is(err, vk.ErrArgument) || !errors.As(err, &arg) {
				t.Errorf("%s: %v, want an argument error", name, err)
			} else if arg.Got == "" || arg.Want == "" {
				t.Errorf("%s: %v does not say what was wrong and what is expected", name, err)
			}
		}
		return nil
	})
	assert.True(t, bytes.Equal(before, download[byte](t, bytesOf(untouched))), "a refused call wrote something")
}

func bytesOf(x tensor.Tensor) tensor.Tensor {
	x.Shape, x.DType = []int{int(x.Bytes())}, tensor.U8
	return x
}

func randomK(rng *rand.Rand, n int) []uint16 {
	k := make([]uint16, n*cache.D)
	for i := range k {
		k[i] = uint16(rng.UintN(1<<16)) &^ 0x4000 // finite, below 2
	}
	return k
}

// A pool larger than a descriptor can hold: the da variants are chosen, and work
// on both sides of the limit; the base variants refuse it with a typed error.
func TestPoolBeyondDescriptor(t *testing.T) {
	dev := testkit.Device(t)
	limit := dev.Caps().MaxStorageBufferRange
	l := must[cache.Layout](t)(cache.NewLayout(64, 0))
	edge := int(limit / uint64(l.Stride)) // the page that the limit falls into
	pages := edge + 20
	size := uint64(l.Stride * pages)
	if lacks := dev.Caps().Missing(opkit.Builds("kv_insert")[1].Requires); len(lacks) > 0 {
		t.Skipf("device lacks %v", lacks)
	}
	if size > dev.Caps().HeapBytes/2 || size > 1<<34 {
		t.Skipf("a pool beyond the descriptor's %d bytes is too large to try", limit)
	}
	c, err := cache.NewKV(dev, cache.KVConfig{Pages: pages, Layout: l})
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer c.Close()

	var arg *vk.ArgumentError
	_, err = cache.NewInsert(dev, cache.PagesConfig{Page: 64, MaxBytes: size, Variant: "base"})
	require.ErrorAs(t, err, &arg, "base for %d bytes", size)
	insert := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	slots := must[*cache.GatherSlots](t)(cache.NewGatherSlots(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	gather := must[*cache.Gather](t)(cache.NewGather(dev, cache.PagesConfig{Page: 64, MaxBytes: size}))
	require.Equal(t, "da", insert.Variant())
	require.Equal(t, "da", slots.Variant())
	require.Equal(t, "da", gather.Variant())

	ids := []int32{0, int32(edge - 1), int32(edge), int32(edge + 1), int32(pages - 1)}
	var at []int64
	var idx []int32
	for _, id := range ids {
		for _, s := range []int64{0, 31, 63} {
			at = append(at, int64(id)*64+s)
			idx = append(idx, int32(at[len(at)-1]))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	k := randomK(rng, len(at))
	kt, st := upload(t, dev, tensor.BF16, k, len(at), cache.D), upload(t, dev, tensor.I64, at, len(at))
	out := must[tensor.Tensor](t)(tensor.New(dev, "test", tensor.BF16, len(idx), cache.D))
	defer out.Close()
	rows := must[tensor.Tensor](t)(tensor.New(dev, "test", tensor.BF16, 1, 64, cache.D))
	defer rows.Close()
	table, seq := upload(t, dev, tensor.I32, []int32{0, int32(edge)}, 1, 2), upload(t, dev, tensor.I32, []int32{128}, 1)
	lens := upload(t, dev, tensor.I32, []int32{64}, 1)
	base := must[*cache.Insert](t)(cache.NewInsert(dev, cache.PagesConfig{Page: 64}))

	do(t, dev, func(rec *vk.Recorder) error {
		assert.ErrorIs(t, base.Record(rec, cache.InsertArgs{K: kt, Slots: st, Cache: c}), vk.ErrArgument,
			"base variant on a pool of %d bytes", size)
		return errors.Join(
			insert.Record(rec, cache.InsertArgs{K: kt, Slots: st, Cache: c}),
			slots.Record(rec, cache.GatherSlotsArgs{Out: out, Cache: c, Indices: upload(t, dev, tensor.I32, idx, len(idx))}),
			gather.Record(rec, cache.GatherArgs{Out: rows, Cache: c, SeqLens: seq, GatherLens: lens, Table: table}),
		)
	})
	// The same rows in a small pool on the host.
	small, ref := make([]byte, len(ids)*l.Stride), make([]int64, len(at))
	want, refIdx := make([]uint16, len(at)*cache.D), make([]int32, len(at))
	for i, s := range at {
		ref[i] = int64(i/3)*64 + s%64
		refIdx[i] = int32(ref[i])
	}
	require.NoError(t, errors.Join(cache.InsertRef(small, l, k, ref), cache.GatherSlotsRef(want, small, l, refIdx)))
	got := download[uint16](t, out)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("slot %d, value %d: 0x%04x, want 0x%04x", at[i/cache.D], i%cache.D, got[i], want[i])
		}
	}
	page := download[uint16](t, rows)
	for j, s := range []int{0, 31, 63} {
		for d := range cache.D {
			if g, w := page[s*cache.D+d], want[(6+j)*cache.D+d]; g != w {
				t.Fatalf("gathered slot %d of page %d, value %d: 0x%04x, want 0x%04x", s, edge, d, g, w)
			}
		}
	}
}

// The n-th allocation fails, for every n: each time a clean error that is the hook's, and nothing
// left over.
func TestAllocationFailure(t *testing.T) {
	adapter := testkit.Device(t).Adapter()
	failed := errors.New("no memory, says the test")
	scenario := func(hook func(uint64) error) (err error) {
		dev, err := adapter.Open(vk.DeviceOptions{MemoryHook: hook, Staging: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dev.Close()) }()
		c, err := cache.NewKV(dev, cache.KVConfig{Pages: 3, Layout: cache.Layout{Page: 2, Stride: 1728}})
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.Pool.Upload(t.Context(), bytes.Repeat([]byte{0xFF}, int(c.Pool.Bytes()))); err != nil {
			return err
		}
		k, err := tensor.New(dev, "k", tensor.BF16, 1, cache.D)
		if err != nil {
			return err
		}
		defer k.Close()
		s, err := tensor.New(dev, "slots", tensor.I64, 1)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := errors.Join(k.Upload(t.Context(), make([]byte, k.Bytes())), s.Upload(t.Context(), make([]byte, 8))); err != nil {
			return err
		}
		insert, err := cache.NewInsert(dev, cache.PagesConfig{Page: 2})
		if err != nil {
			return err
		}
		rec, err := dev.NewRecorder()
		if err != nil {
			return err
		}
		defer rec.Close()
		if err := insert.Record(rec, cache.InsertArgs{K: k, Slots: s, Cache: c}); err != nil {
			return err
		}
		cmd, err := rec.End()
		if err != nil {
			return err
		}
		defer cmd.Close()
		if err := cmd.Run(t.Context()); err != nil {
			return err
		}
		return c.Pool.Download(t.Context(), make([]byte, c.Pool.Bytes()))
	}
	for n := 0; ; n++ {
		count := 0
		err := scenario(func(uint64) error {
			count++
			if count == n+1 {
				return fmt.Errorf("allocation %d: %w", n, failed)
			}
			return nil
		})
		if count <= n {
			require.NoError(t, err, "without a failure")
			t.Logf("%d allocations", n)
			assert.GreaterOrEqual(t, n, 4, "only %d allocations were seen", n)
			return
		}
		require.ErrorIs(t, err, failed, "allocation %d failed, the error", n)
	}
}

func TestNewKVArguments(t *testing.T) {
	dev := testkit.Device(t)
	for name, cfg := range map[string]cache.KVConfig{
		"no pages":       {Pages: 0, Layout: cache.Layout{Page: 64, Stride: 37440}},
		"no layout":      {Pages: 1},
		"stride":         {Pages: 1, Layout: cache.Layout{Page: 64, Stride: 37372}},
		"too many slots": {Pages: 1 << 25, Layout: cache.Layout{Page: 64, Stride: 37440}},
	} {
		_, err := cache.NewKV(dev, cfg)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	_, err := cache.NewKV(dev, cache.KVConfig{Pages: 1 << 24, Layout: cache.Layout{Page: 64, Stride: 1<<31 - 8}})
	assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory, "32 PiB")
}
