package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestTableUpdate(t *testing.T) { testkit.TestOp(t, "table_update") }

func TestTableUpdateArguments(t *testing.T) {
	dev := testkit.Device(t)
	x := testkit.Must[*cache.TableUpdate](t)(cache.NewTableUpdate(dev))
	list, table := testkit.Upload(t, dev, tensor.U32, []uint32{0, 1}, 2), testkit.Upload(t, dev, tensor.I32, []int32{0}, 1)
	testkit.Refuses(t, dev, "List", func(rec *vk.Recorder) error { return x.Record(rec, cache.TableUpdateArgs{List: list, Tables: table}) })
	testkit.Refuses(t, dev, "Tables", func(rec *vk.Recorder) error {
		return x.Record(rec, cache.TableUpdateArgs{List: list.Rows(0, 1), Tables: list})
	})
	assert.ErrorIs(t, cache.TableUpdateRef(nil, []uint32{0, 1}), vk.ErrArgument)
}
