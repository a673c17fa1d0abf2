package projection_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var (
	do      = testkit.Do
	refuses = testkit.Refuses
	normal  = testkit.Normal
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func TestRefArguments(t *testing.T) {
	c := newQInsertCase(rand.New(rand.NewPCG(3, 4)), 9, 3)
	pool, row, table := make([]byte, c.pages*c.layout.Stride), make([]uint16, cache.D), make([]float32, cache.RopeDim)
	insert := func(heads int, slots []int64) error {
		return projection.QInsertRef(c.q, heads, c.kv, slots, c.positions, c.table, 0, pool, c.layout)
	}
	for name, err := range map[string]error{
		"QInsertRef heads":           insert(2, c.slots),
		"QInsertRef slots":           insert(c.heads, append(c.slots, 1)),
		"QKVNormRef row":             projection.QKVNormRef(row[:10], make([]float32, cache.D), 0, row[:10]),
		"InverseRopeRef heads":       projection.InverseRopeRef(row, 3, []int32{0}, table),
		"InverseRopeRef no heads":    projection.InverseRopeRef(nil, 0, nil, table),
		"InverseRopeRef table":       projection.InverseRopeRef(row, 1, []int32{0}, table[:40]),
		"InverseRopeQuantRef scales": projection.InverseRopeQuantRef(row, 1, 1, []int32{0}, table, make([]byte, 512), make([]byte, 3)),
	} {
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
}
