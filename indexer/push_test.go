package indexer_test

import (
	"testing"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "idx_", indexer.PushLayouts) }
