package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The documents have the tables that follow from the registries.
func TestTables(t *testing.T) {
	n := 0
	require.NoError(t, each("../../..", func(path, got, want string) error {
		n++
		assert.Equal(t, want, got, "%s: make generate", path)
		return nil
	}))
	assert.Equal(t, 2, n)
	assert.Equal(t, "## A\n\n|a|\n|---|\nnew\n\n## B\n|---|\n|old|\n", replaced("## A\n\n|a|\n|---|\n|old|\n|older|\n\n## B\n|---|\n|old|\n",
		func(heading string) string { return map[string]string{"A": "new\n"}[heading] }))
}
