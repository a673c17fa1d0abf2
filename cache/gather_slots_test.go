package cache_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestGatherSlots(t *testing.T) { testkit.TestOp(t, "dequant_gather_slots") }
