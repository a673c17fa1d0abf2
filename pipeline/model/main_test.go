package model_test

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }
