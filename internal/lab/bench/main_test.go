package bench

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
