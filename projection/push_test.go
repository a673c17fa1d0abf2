package projection_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/projection"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "proj_", projection.PushLayouts) }
