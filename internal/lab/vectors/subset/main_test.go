package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

const golden = "../../../../testdata/golden"

func list(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "cases.txt")
	require.NoError(t, os.WriteFile(f, []byte(text), 0o600))
	return f
}

func TestSubset(t *testing.T) {
	to := t.TempDir()
	old := filepath.Join(to, "old.npz")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, subset(golden, to, list(t, "# one\nget_compressed_slot_mapping.c128\n\n")))
	_, err := os.Stat(old)
	assert.Error(t, err, "an old archive is still there")
	a, err := vectors.Open(golden)
	require.NoError(t, err)
	b, err := vectors.Open(to)
	require.NoError(t, err)
	require.Len(t, b.Ops(), 1)
	require.Len(t, b.Cases("get_compressed_slot_mapping"), 1)
	assert.Equal(t, a.Machine, b.Machine)
	x, err := a.Case("get_compressed_slot_mapping", "c128")
	require.NoError(t, err)
	y, err := b.Case("get_compressed_slot_mapping", "c128")
	require.NoError(t, err, "the case changed")
	assert.Equal(t, string(y.Want["slot_mapping"].Data), string(x.Want["slot_mapping"].Data), "the case changed")
}

func TestSubsetErrors(t *testing.T) {
	for name, cases := range map[string]string{
		"unknown case":              "get_compressed_slot_mapping.c9",
		"inputs of a case left out": "xpu_sparse_decode.h64_empty_row",
	} {
		assert.Error(t, subset(golden, t.TempDir(), list(t, cases)), "%s: no error", name)
	}
	assert.Error(t, subset(golden, t.TempDir(), "/does/not/exist"), "no list: no error")
}

// TestCommitted holds the folder in the repository against its list and the
// limits that its README states.
func TestCommitted(t *testing.T) {
	want, err := readList("../../../../testdata/cases.txt")
	require.NoError(t, err)
	s, err := vectors.Open(golden)
	require.NoError(t, err)
	for _, op := range s.Ops() {
		for _, c := range s.Cases(op) {
			assert.True(t, want[op+"."+c], "%s.%s is not in cases.txt", op, c)
			delete(want, op+"."+c)
		}
	}
	for c := range want {
		t.Errorf("%s is not in the folder", c)
	}
	files, err := filepath.Glob(filepath.Join(golden, "*"))
	require.NoError(t, err)
	total := int64(0)
	for _, f := range files {
		st, err := os.Stat(f)
		require.NoError(t, err)
		total += st.Size()
		assert.LessOrEqual(t, st.Size(), int64(maxFile), "%s has %d bytes", f, st.Size())
	}
	assert.LessOrEqual(t, total, int64(7<<20), "the folder has %d bytes", total)
}
