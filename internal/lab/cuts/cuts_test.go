package cuts_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/cuts"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestCuts runs every scenario; with VKMLA_TEST_FULL=1 at full length, for a GPU.
func TestCuts(t *testing.T) {
	dev := testkit.Device(t)
	o := cuts.Options{Log: t.Logf}
	if os.Getenv("VKMLA_TEST_FULL") == "1" {
		o.Size = cuts.Full
	}
	l, err := cuts.Open(t.Context(), dev, o)
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close()) }()
	for _, s := range cuts.Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Logf("%v: %s", s.Reports, s.Proves)
			assert.NoError(t, s.Run(t.Context(), l))
		})
	}
}
