package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestTableUpdate(t *testing.T) { testkit.TestOp(t, "table_update") }

func TestTableUpdateRefOfHalfAnEntry(t *testing.T) {
	assert.ErrorIs(t, cache.TableUpdateRef(nil, []uint32{0, 1}), vk.ErrArgument)
}
