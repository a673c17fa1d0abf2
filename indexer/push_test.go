package indexer_test

import (
	"testing"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/testkit"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "idx_", indexer.PushLayouts) }
