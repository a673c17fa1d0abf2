package projection_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/projection"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "proj_", projection.PushLayouts) }
