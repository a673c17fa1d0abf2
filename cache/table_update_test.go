package cache_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TestTableUpdate compares with the reference: counts below, at and beyond the
// capacity, words that are not there.
func TestTableUpdate(t *testing.T) {
	dev := testkit.Device(t)
	x := testkit.Must[*cache.TableUpdate](t)(cache.NewTableUpdate(dev))
	rng := rand.New(rand.NewPCG(1, 1))
	for _, capacity := range []int{1, 2, 61, 64, 321} {
		for _, count := range []uint32{0, 1, uint32(capacity), uint32(capacity) + 1, 1 << 31} {
			words := rng.Perm(3 * capacity)
			table, list := make([]int32, 2*capacity), []uint32{count}
			for i := range table {
				table[i] = rng.Int32()
			}
			for i := range capacity {
				list = append(list, uint32(words[i]), rng.Uint32())
			}
			list[1] = 1 << 31
			to, from := testkit.Upload(t, dev, tensor.I32, table, 2, capacity), testkit.Upload(t, dev, tensor.U32, list, len(list))
			testkit.Do(t, dev, func(rec *vk.Recorder) error {
				return x.Record(rec, cache.TableUpdateArgs{List: from, Tables: to})
			})
			require.NoError(t, cache.TableUpdateRef(table, list))
			assert.True(t, slices.Equal(testkit.Download[int32](t, to), table),
				"capacity %d, count %d: tables differ", capacity, count)
		}
	}
	list, table := testkit.Upload(t, dev, tensor.U32, []uint32{0, 1}, 2), testkit.Upload(t, dev, tensor.I32, []int32{0}, 1)
	testkit.Refuses(t, dev, "List", func(rec *vk.Recorder) error { return x.Record(rec, cache.TableUpdateArgs{List: list, Tables: table}) })
	testkit.Refuses(t, dev, "Tables", func(rec *vk.Recorder) error {
		return x.Record(rec, cache.TableUpdateArgs{List: list.Rows(0, 1), Tables: list})
	})
	assert.ErrorIs(t, cache.TableUpdateRef(nil, []uint32{0, 1}), vk.ErrArgument)
}
