package projection_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
)

func TestLinear(t *testing.T) { testkit.TestOp(t, "linear") }
