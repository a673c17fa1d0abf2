package pipeline_test

import (
	"os"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// TestSessionsV41 is TestSessions for layers that share entries, picks and candidates, in both
// records. VKMLA_TEST_FULL=1 does all.
func TestSessionsV41(t *testing.T) {
	testkit.WithoutMatrices(t)
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	t.Run("v41", func(t *testing.T) {
		if full {
			testSessions(t, &v41Sessions, nil)
		} else {
			testSessions(t, &v41Sessions, []string{"truncate", "layers", "save"})
		}
	})
	t.Run("v4", func(t *testing.T) {
		if !full {
			t.Skip("VKMLA_TEST_FULL is not set")
		}
		testSessions(t, &v41InV4, nil)
	})
}
