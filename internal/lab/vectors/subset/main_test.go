package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

const golden = "../../../../testdata/golden"

func list(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "cases.txt")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSubset(t *testing.T) {
	to := t.TempDir()
	old := filepath.Join(to, "old.npz")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := subset(golden, to, list(t, "# one\nget_compressed_slot_mapping.c128\n\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old archive is still there")
	}
	a, err := vectors.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	b, err := vectors.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Ops()) != 1 || len(b.Cases("get_compressed_slot_mapping")) != 1 || b.Machine != a.Machine {
		t.Errorf("subset has %v", b.Ops())
	}
	x, err := a.Case("get_compressed_slot_mapping", "c128")
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Case("get_compressed_slot_mapping", "c128")
	if err != nil || string(x.Want["slot_mapping"].Data) != string(y.Want["slot_mapping"].Data) {
		t.Errorf("the case changed: %v", err)
	}
}

func TestSubsetErrors(t *testing.T) {
	for name, cases := range map[string]string{
		"unknown case":              "get_compressed_slot_mapping.c9",
		"inputs of a case left out": "xpu_sparse_decode.h64_empty_row",
	} {
		if err := subset(golden, t.TempDir(), list(t, cases)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := subset(golden, t.TempDir(), "/does/not/exist"); err == nil {
		t.Error("no list: no error")
	}
}

// TestCommitted holds the folder in the repository against its list and the
// limits that its README states.
func TestCommitted(t *testing.T) {
	want, err := readList("../../../../testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, err := vectors.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range s.Ops() {
		for _, c := range s.Cases(op) {
			if !want[op+"."+c] {
				t.Errorf("%s.%s is not in cases.txt", op, c)
			}
			delete(want, op+"."+c)
		}
	}
	for c := range want {
		t.Errorf("%s is not in the folder", c)
	}
	files, err := filepath.Glob(filepath.Join(golden, "*"))
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if total += st.Size(); st.Size() > maxFile {
			t.Errorf("%s has %d bytes", f, st.Size())
		}
	}
	if total > 7<<20 {
		t.Errorf("the folder has %d bytes", total)
	}
}
