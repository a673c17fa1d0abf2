package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "kv_", cache.PushLayouts) }
