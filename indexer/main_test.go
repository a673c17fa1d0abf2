package indexer_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var (
	do      = testkit.Do
	refuses = testkit.Refuses
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }
